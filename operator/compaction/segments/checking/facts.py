"""One reading of a system of logs, as plain data: what the checks, and the comparison of two readings, work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from compaction.errors import CompactionError
from compaction.segments.directory.marker import Marker
from compaction.segments.errors import CorruptSnapshotError, InvalidCutError, SegmentLogError
from compaction.segments.model import SegmentIndex
from compaction.segments.reading.view import LogState
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.system.cut import LogCut
from compaction.segments.system.row import LogRow
from compaction.segments.wal.codec import WalTail


class Content(NamedTuple):
    """What an entry is, without its payload. `crc`: CRC-32 of the payload; 0 where a segment stores none."""

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
        """What the newest snapshot says."""
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
        """Whether an entry of this index in a segment is part of the log: not if an installation left it behind."""
        return self.cut is None or index < self.cut.first

    def content(self) -> dict[int, Content]:
        """What a reader of the log gets, by index: entries of segments below the first one of the write-ahead log, and
        that from there on; without those that the newest snapshot declares dead.
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
        result.update((index, one) for index, one in waiting.items() if row.needs(index))
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
