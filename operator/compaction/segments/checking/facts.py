"""Facts of a system of logs as plain data, and the rules that an owner of logs keeps to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from compaction.errors import CompactionError
from compaction.segments.directory.owner import Marker
from compaction.segments.errors import CorruptSnapshotError, InvalidCutError, SegmentLogError
from compaction.segments.model import SegmentIndex
from compaction.segments.reading.view import LogState
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.content import LogCut
from compaction.segments.system.rules import LogRow
from compaction.segments.wal.codec import WalTail

# One reading of a system of logs, as plain data: what the checks, and the comparison of two readings, work on.


class Content(NamedTuple):
    """An entry without its payload. `crc`: CRC-32 of the payload; 0 where a segment stores none."""

    term: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """Records of one log in one write-ahead log file: of indexes `first` to `last`, the last one of `term`."""

    writer: bytes
    records: int
    first: int
    last: int
    term: int
    truncations: int
    payload_bytes: int

    @property
    def log(self) -> str:
        """The id as text; stray bytes are escaped where it is printed."""
        return self.writer.decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class WalFacts:
    """A write-ahead log file. `whole`: bytes up to the end of the last whole record, `mark` their CRC-32.
    `is_held`: its owner has left only records of logs in it that it could not open.

    `damage`: why no more of it can be read. `kept`: whether the whole part of an earlier reading is still the same;
    None without one.
    """

    path: Path
    size: int
    whole: int
    mark: int
    records: int
    writers: tuple[WriterFacts, ...]
    tail: WalTail | None = None
    damage: SegmentLogError | None = None
    kept: bool | None = None
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log. `state`: segments, and the snapshot as it was *before* they were read; `errors`: what cannot be parsed.

    `cut_off`: the newest segment's name, if it has fewer bytes than a header. `torn`: the newest segment as it is, if
    a flush of its end was interrupted; `state` has it without that end, as its owner's next start leaves it.
    `names`: all in the directory; `links`: the target of each segment's name that is a link, a base name unless it
    leads out of the log. `snapshots`: valid ones, oldest first, as they were after; `rejected`: the others. `waiting`:
    entries in the write-ahead log that the log needs, `covered`: whether any record there is of this log. `cut`: what
    does not count, in segments from its first index on. `stranger`: why a Ra server that opens the log finds itself in
    no cluster, or in another one, by its newest snapshot; empty when it does not, or owns no log here.
    """

    state: LogState
    names: tuple[str, ...] = ()
    links: Mapping[str, str] | None = None
    errors: tuple[SegmentLogError, ...] = ()
    cut_off: str = ""
    torn: SegmentIndex | None = None
    snapshots: tuple[LogSnapshot, ...] = ()
    rejected: tuple[CorruptSnapshotError, ...] = ()
    waiting: Mapping[int, Content] | None = None
    covered: bool = False
    half_done: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    compactor_errors: tuple[CompactionError, ...] = ()
    cut: LogCut | None = None
    cut_error: InvalidCutError | None = None
    stranger: str = ""

    @property
    def directory(self) -> Path:
        return self.state.directory

    @property
    def name(self) -> str:
        return self.state.directory.name

    @property
    def row(self) -> LogRow:
        """The state that the newest snapshot describes."""
        return LogRow.of(self.snapshots[-1] if self.snapshots else None)

    @property
    def demanded(self) -> LiveSet | None:
        """Live entries that were live before and after the segments were read: the owner may take snapshots meanwhile.

        None while what is live is unknown.
        """
        live, row = self.state.live, self.row
        if live is None or row.live is None:
            return None
        return live.intersection(row.live)

    def counts(self, index: int) -> bool:
        """Return whether an entry of this index in a segment is part of the log: not one that an installation left."""
        return self.cut is None or index < self.cut.first

    def content(self) -> dict[int, Content]:
        """Return the entries that a reader of the log gets, by index.

        They are those of segments below the first entry of the write-ahead log, and those of the write-ahead log from
        there on; without those that the newest snapshot declares dead.
        """
        row, waiting = self.row, self.waiting or {}
        bound = min(waiting, default=None)
        result: dict[int, Content] = {}
        for ref in self.state.refs:
            segment = self.state.segment(ref.name)
            rows = self.state.readable(ref)
            columns = (segment.idx, segment.term, segment.length, segment.crc)
            for index, term, length, crc in zip(*(column[rows].tolist() for column in columns), strict=True):
                if (bound is None or index < bound) and self.counts(index) and row.needs(index):
                    result[index] = Content(term, length, crc)
        result.update((index, item) for index, item in waiting.items() if row.needs(index))
        return result


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """A system of logs, or one log of it (`wal` then has the files beside it, as they concern the log).

    `is_stopped`: a Ra server has closed its files, and no process has them open. `wal_lost`: a Ra server has been here,
    and no write-ahead log file is.
    """

    directory: Path
    logs: tuple[LogFacts, ...]
    wal: tuple[WalFacts, ...] = ()
    wal_names: tuple[str, ...] = ()
    marker: Marker = Marker.ABSENT
    marker_fault: str = ""
    is_stopped: bool = False
    wal_lost: bool = False


# Rules that an owner of segment logs keeps to, in any language: the checklist of docs/segment-logs.md, as data.


class OwnerRule(StrEnum):
    """Names of the rules; `CHECKLIST` has their sentences, in order."""

    SEGMENT_NAMES = "segment-names"
    SEGMENT_HEADERS = "segment-headers"
    SEGMENT_RECORDS = "segment-records"
    PAYLOAD_CHECKSUMS = "payload-checksums"
    LINKS = "links"
    SNAPSHOT_FILES = "snapshot-files"
    LIVE_INDEXES = "live-indexes"
    LIVE_ONLY_SHRINKS = "live-only-shrinks"
    LIVE_ENTRIES = "live-entries"
    ENTRIES_ABOVE = "entries-above"
    WAL_FILES = "wal-files"
    WAL_RECORDS = "wal-records"
    WAL_WRITERS = "wal-writers"
    SAME_ENTRY = "same-entry"
    HALF_DONE = "half-done"
    COMPACTOR_FILES = "compactor-files"
    LOG_CUT = "log-cut"
    OWNER_MARKER = "owner-marker"
    SEGMENTS_GROW = "segments-grow"
    NUMBERS_ASCEND = "numbers-ascend"
    NOTHING_VANISHES = "nothing-vanishes"
    WAL_GROWS = "wal-grows"
    SNAPSHOTS_ADVANCE = "snapshots-advance"
    DURABLE_FIRST = "durable-first"
    SNAPSHOT_WHOLE = "snapshot-whole"
    GAPS_REFUSED = "gaps-refused"
    ONE_WRITER = "one-writer"
    RECEIPTS_READ = "receipts-read"


class SeenFacts(StrEnum):
    """The readings that are needed to see whether a rule is kept."""

    ONCE = "one scan of a directory"
    WHILE = "scans some time apart"
    TEST = "a test of the owner"


class ReadWindow(StrEnum):
    """Windows of Ra 3.1.10 that a directory can show (docs/design/segment-commit.md#windows-of-the-reference)."""

    W1 = "W1"
    """Killed between its marker and the copy: its next start destroys the members."""
    W2 = "W2"
    """No `indexes`: it counts as an empty live set."""
    W3 = "W3"
    """Marker and copy stay: later attempts of the process fail."""
    W4 = "W4"
    """Two markers: it does not start."""
    W6 = "W6"
    """Copies do not check CRCs: damage is carried into the compacted file."""
    W7 = "W7"
    """A live index that no source holds: each attempt fails half-way."""


@dataclass(frozen=True, slots=True)
class RuleText:
    """One line of the checklist. `test`: where this project's own owner is tested for a rule that no scan shows."""

    sentence: str
    seen: SeenFacts = SeenFacts.ONCE
    test: str = ""


CHECKLIST: Final[dict[OwnerRule, RuleText]] = {
    OwnerRule.SEGMENT_NAMES: RuleText("a segment is a file named with 16 digits and .segment"),
    OwnerRule.SEGMENT_HEADERS: RuleText("a segment begins with a header; only the newest may still have 0 bytes"),
    OwnerRule.SEGMENT_RECORDS: RuleText("payloads follow each other without a gap; none is empty, all lie in the file"),
    OwnerRule.PAYLOAD_CHECKSUMS: RuleText("the CRC-32 in a record is that of its payload, or 0"),
    OwnerRule.LINKS: RuleText("a link is the old name of a segment: it leads to a lower number in the same directory"),
    OwnerRule.SNAPSHOT_FILES: RuleText(
        "a snapshot is whole, as its name and checksum say; in a Ra system it is of its server's cluster"
    ),
    OwnerRule.LIVE_INDEXES: RuleText("a snapshot says what is live, also if nothing is; nothing above its index"),
    OwnerRule.LIVE_ONLY_SHRINKS: RuleText("what was dead below a snapshot stays dead"),
    OwnerRule.LIVE_ENTRIES: RuleText("each live entry is in a segment or in the write-ahead log"),
    OwnerRule.ENTRIES_ABOVE: RuleText("above the snapshot no segment is missing"),
    OwnerRule.WAL_FILES: RuleText("write-ahead log files have 16 digits, numbers without a gap, and a header each"),
    OwnerRule.WAL_RECORDS: RuleText(
        "only the last record of a write-ahead log file may be torn, and after a clean stop none"
    ),
    OwnerRule.WAL_WRITERS: RuleText("a writer's id is the name of its log's directory"),
    OwnerRule.SAME_ENTRY: RuleText("an index of a term has one payload; an overwrite has a higher term"),
    OwnerRule.HALF_DONE: RuleText("a compaction that died is settled before the owner starts"),
    OwnerRule.COMPACTOR_FILES: RuleText("the compactor's files are left as they are"),
    OwnerRule.LOG_CUT: RuleText("log.cut, where it is there, says which entries of an installation do not count"),
    OwnerRule.OWNER_MARKER: RuleText("compaction.owner, where it is there, names rules that the compactor knows"),
    OwnerRule.SEGMENTS_GROW: RuleText(
        "the newest segment is appended to, and records of no segment change", SeenFacts.WHILE
    ),
    OwnerRule.NUMBERS_ASCEND: RuleText(
        "a new segment has a higher number than all before, links included", SeenFacts.WHILE
    ),
    OwnerRule.NOTHING_VANISHES: RuleText(
        "no entry goes that is live, or above the snapshot and not overwritten", SeenFacts.WHILE
    ),
    OwnerRule.WAL_GROWS: RuleText("only the newest write-ahead log file grows; the oldest goes first", SeenFacts.WHILE),
    OwnerRule.SNAPSHOTS_ADVANCE: RuleText("a newer snapshot has a higher index and no lower term", SeenFacts.WHILE),
    OwnerRule.DURABLE_FIRST: RuleText(
        "acknowledge an entry when it is synced; drop a write-ahead log file when segments have it, synced",
        SeenFacts.TEST,
        "tests/crash/test_log_system_power.py",
    ),
    OwnerRule.SNAPSHOT_WHOLE: RuleText(
        "sync a snapshot and its indexes before the rename that shows them, and the rename before any use",
        SeenFacts.TEST,
        "tests/crash/test_log_system_power.py",
    ),
    OwnerRule.GAPS_REFUSED: RuleText(
        "a write carries the previous index; after a gap nothing is written until it is filled",
        SeenFacts.TEST,
        "tests/segments/test_wal.py",
    ),
    OwnerRule.ONE_WRITER: RuleText(
        "one process at a time writes a system, and holds its lock",
        SeenFacts.TEST,
        "tests/segments/system/test_system.py",
    ),
    OwnerRule.RECEIPTS_READ: RuleText(
        "an owner reads the newest receipts of the compactor before it deletes a segment",
        SeenFacts.TEST,
        "tests/crash/test_segment_foreign.py",
    ),
}
"""All rules in the order of their numbers, which begin with 1."""

NUMBERS: Final = {rule: number for number, rule in enumerate(CHECKLIST, 1)}


@dataclass(frozen=True, slots=True)
class CheckProblem:
    """A rule that is not kept: by which object, what is wrong, and what to do. `sentence` is all of it.

    `window`: the deviation is one that Ra 3.1.10 makes. `note`: it does no harm as it is.
    """

    rule: OwnerRule
    path: str
    what: str
    remedy: str
    window: ReadWindow | None = None
    note: bool = False

    @property
    def sentence(self) -> str:
        """Return the problem as a sentence. Errors of the library name their file already."""
        what = self.what if self.what.startswith(self.path) else f"{self.path}: {self.what}"
        return f"{what}; {self.remedy}"
