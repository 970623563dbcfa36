"""What an owner of segment logs keeps to, in any language: the checklist of docs/segment-logs.md, as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Rule(StrEnum):
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


class Seen(StrEnum):
    """What it takes to see whether a rule is kept."""

    ONCE = "one scan of a directory"
    WHILE = "scans some time apart"
    TEST = "a test of the owner"


class Window(StrEnum):
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
    seen: Seen = Seen.ONCE
    test: str = ""


CHECKLIST: Final[dict[Rule, RuleText]] = {
    Rule.SEGMENT_NAMES: RuleText("a segment is a file named with 16 digits and .segment"),
    Rule.SEGMENT_HEADERS: RuleText("a segment begins with a header; only the newest may still have 0 bytes"),
    Rule.SEGMENT_RECORDS: RuleText("payloads follow each other without a gap; none is empty, all lie in the file"),
    Rule.PAYLOAD_CHECKSUMS: RuleText("the CRC-32 in a record is that of its payload, or 0"),
    Rule.LINKS: RuleText("a link is the old name of a segment: it leads to a lower number in the same directory"),
    Rule.SNAPSHOT_FILES: RuleText(
        "a snapshot is whole, as its name and checksum say; in a Ra system it is of its server's cluster"
    ),
    Rule.LIVE_INDEXES: RuleText("a snapshot says what is live, also if nothing is; nothing above its index"),
    Rule.LIVE_ONLY_SHRINKS: RuleText("what was dead below a snapshot stays dead"),
    Rule.LIVE_ENTRIES: RuleText("each live entry is in a segment or in the write-ahead log"),
    Rule.ENTRIES_ABOVE: RuleText("above the snapshot no segment is missing"),
    Rule.WAL_FILES: RuleText("write-ahead log files have 16 digits, numbers without a gap, and a header each"),
    Rule.WAL_RECORDS: RuleText(
        "only the last record of a write-ahead log file may be torn, and after a clean stop none"
    ),
    Rule.WAL_WRITERS: RuleText("a writer's id is the name of its log's directory"),
    Rule.SAME_ENTRY: RuleText("an index of a term has one payload; an overwrite has a higher term"),
    Rule.HALF_DONE: RuleText("a compaction that died is settled before the owner starts"),
    Rule.COMPACTOR_FILES: RuleText("the compactor's files are left as they are"),
    Rule.LOG_CUT: RuleText("log.cut, where it is there, says which entries of an installation do not count"),
    Rule.OWNER_MARKER: RuleText("compaction.owner, where it is there, names rules that the compactor knows"),
    Rule.SEGMENTS_GROW: RuleText("the newest segment is appended to, and records of no segment change", Seen.WHILE),
    Rule.NUMBERS_ASCEND: RuleText("a new segment has a higher number than all before, links included", Seen.WHILE),
    Rule.NOTHING_VANISHES: RuleText(
        "no entry goes that is live, or above the snapshot and not overwritten", Seen.WHILE
    ),
    Rule.WAL_GROWS: RuleText("only the newest write-ahead log file grows; the oldest goes first", Seen.WHILE),
    Rule.SNAPSHOTS_ADVANCE: RuleText("a newer snapshot has a higher index and no lower term", Seen.WHILE),
    Rule.DURABLE_FIRST: RuleText(
        "acknowledge an entry when it is synced; drop a write-ahead log file when segments have it, synced",
        Seen.TEST,
        "tests/crash/test_log_system_power.py",
    ),
    Rule.SNAPSHOT_WHOLE: RuleText(
        "sync a snapshot and its indexes before the rename that shows them, and the rename before any use",
        Seen.TEST,
        "tests/crash/test_log_system_power.py",
    ),
    Rule.GAPS_REFUSED: RuleText(
        "a write carries the previous index; after a gap nothing is written until it is filled",
        Seen.TEST,
        "tests/stores/segments/wal/test_acceptance.py",
    ),
    Rule.ONE_WRITER: RuleText(
        "one process at a time writes a system, and holds its lock",
        Seen.TEST,
        "tests/stores/segments/system/test_system.py",
    ),
    Rule.RECEIPTS_READ: RuleText(
        "an owner reads the newest receipts of the compactor before it deletes a segment",
        Seen.TEST,
        "tests/crash/test_segment_foreign.py",
    ),
}
"""All rules in the order of their numbers, which begin with 1."""

NUMBERS: Final = {rule: number for number, rule in enumerate(CHECKLIST, 1)}


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that is not kept: by which object, what is wrong, and what to do. `sentence` is all of it.

    `window`: the deviation is one that Ra 3.1.10 makes. `note`: it does no harm as it is.
    """

    rule: Rule
    path: str
    what: str
    remedy: str
    window: Window | None = None
    note: bool = False

    @property
    def sentence(self) -> str:
        """What errors of the library say names its file already."""
        what = self.what if self.what.startswith(self.path) else f"{self.path}: {self.what}"
        return f"{what}; {self.remedy}"
