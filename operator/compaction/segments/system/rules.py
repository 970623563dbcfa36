"""Decisions of the owner of a log, from plain data and with the clock passed in: writes, snapshots, flushes,
compactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from compaction.segments.errors import InvalidEntryError, LogGapError, SegmentLogError, WriteRefusedError
from compaction.segments.memtable import LogEntry, LogPosition, Seq
from compaction.segments.model import MAX_INDEX
from compaction.segments.planning.plan import LogPlan
from compaction.segments.planning.unreferenced import compactable_refs
from compaction.segments.reading.view import LogState
from compaction.segments.snapshot.directories import MAX_INDEXES_BYTES, LogSnapshot, SnapshotOrigin
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.wal.codec import MAX_PAYLOAD_BYTES

# The state of a log's snapshot, as one value that is replaced, never changed (docs/design/segment-wal.md#row).
#
# The write-ahead log asks it for the smallest live index, the segment writer for everything that must be kept,
# readers for what may be missing. It is published only after the snapshot that it describes is durable.


@dataclass(frozen=True, slots=True)
class LogRow:
    """`snapshot_index` None: no snapshot, so everything is kept. `live` None beside a snapshot: what is live at or
    below it is unknown, so everything is kept as well, and nothing is ever taken for dead.

    `coming`: of the snapshot that is being made visible. A compaction in another process goes by it from that moment
    on, and this row by it only afterwards: until then all is kept that either needs, and only what both need is certain
    to be found. It stays when making it visible fails: the directory may show it.
    """

    snapshot_index: int | None = None
    snapshot_term: int = 0
    live: LiveSet | None = None
    coming: LogRow | None = None
    smallest_live: int = field(init=False)
    """Nothing below this index is needed any more."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "smallest_live", self._smallest())

    @classmethod
    def of(cls, snapshot: LogSnapshot | None) -> LogRow:
        """The row of the newest snapshot of a directory, or of a log without one."""
        return cls() if snapshot is None else cls(snapshot.index, snapshot.term, snapshot.live)

    def _smallest(self) -> int:
        if self.snapshot_index is None or self.live is None:
            return 0
        if self.live and self.live.largest > self.snapshot_index:
            raise SegmentLogError(f"live index {self.live.largest} is above the snapshot's index {self.snapshot_index}")
        return self.live.smallest if self.live else self.snapshot_index + 1

    def needs(self, index: int) -> bool:
        """Return whether the log must hold the entry of this index, if it was ever written."""
        if self.snapshot_index is None or self.live is None or index > self.snapshot_index:
            return True
        return index in self.live

    @property
    def certain(self) -> LiveSet:
        """The live indexes that were written and must be found: in a mem table or in a segment."""
        live = LiveSet.empty() if self.live is None else self.live
        if self.coming is None or self.coming.live is None:
            return live
        return live.intersection(self.coming.live)

    @property
    def end(self) -> LogPosition | None:
        """The last entry that a snapshot covers, or one that is coming: nothing at or below it is overwritten."""
        if self.coming is not None:
            return self.coming.end
        return None if self.snapshot_index is None else LogPosition(self.snapshot_index, self.snapshot_term)

    def needed(self, indexes: Seq) -> Seq:
        """Those of the indexes that must be kept: all above the snapshot, and the live ones at or below it."""
        if self.snapshot_index is None or self.live is None:
            return indexes
        above = indexes.within(self.snapshot_index + 1, MAX_INDEX)
        return above.over(indexes.limit(self.snapshot_index).intersection(self.live))


# Decisions of an owner to compact its own log: pure, over numbers, with the clock passed in.
#
# What a compaction then does is `plan.plan_log`'s, as for everybody. A policy of the operator has thresholds of its
# own; both may compact one log, under the same fence.


class Due(StrEnum):
    """The reason why a log is compacted now."""

    REQUESTED = "Requested"
    SPARSE = "Sparse"
    """Too little of what may be compacted is live, by entries or by bytes."""
    LARGE = "Large"
    """So many bytes can be reclaimed."""
    TIMER = "Timer"
    """The last compaction is long enough ago."""


@dataclass(frozen=True, slots=True)
class DueRules:
    """None of each: not for this reason. `live_share`: 0..1, below which a log is sparse; `debt_bytes`: to reclaim;
    `every`: seconds since the last compaction, or since the log was opened.
    """

    live_share: float | None = None
    debt_bytes: int | None = None
    every: float | None = None


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """The facts for the decision. Entries and bytes: live, and all, in the segments that may be compacted."""

    live_entries: int = 0
    entries: int = 0
    live_bytes: int = 0
    bytes: int = 0
    debt_bytes: int = 0
    debt_segments: int = 0

    @classmethod
    def of(cls, log: LogState, plan: LogPlan) -> CompactionFacts:
        """Of a log at one reading, and its plan."""
        segments = [log.segment(ref.name) for ref in compactable_refs(log)]
        return cls(
            live_entries=plan.live_entries,
            entries=sum(segment.count for segment in segments),
            live_bytes=plan.live_bytes,
            bytes=sum(segment.data_bytes for segment in segments),
            debt_bytes=plan.debt_bytes,
            debt_segments=plan.debt_segments,
        )

    @property
    def live_share(self) -> float:
        """The smaller one of the two shares; 1.0 without anything that may be compacted."""
        pairs = (self.live_entries, self.entries), (self.live_bytes, self.bytes)
        return min((live / total for live, total in pairs if total), default=1.0)


def due(facts: CompactionFacts, rules: DueRules, *, compacted_at: float, now: float) -> Due | None:
    """Return the reason to compact now; None when there is none, or nothing to gain.

    Both times are in seconds of one clock.
    """
    if not facts.debt_segments:
        return None
    if rules.live_share is not None and facts.live_share < rules.live_share:
        return Due.SPARSE
    if rules.debt_bytes is not None and facts.debt_bytes >= rules.debt_bytes:
        return Due.LARGE
    if rules.every is not None and seconds_left(rules, compacted_at=compacted_at, now=now) == 0:
        return Due.TIMER
    return None


def seconds_left(rules: DueRules, *, compacted_at: float, now: float) -> float | None:
    """Until the timer asks for a compaction; None without one. A clock that was set back restarts it."""
    if rules.every is None:
        return None
    return max(0.0, min(rules.every, compacted_at + rules.every - now))


# A log at one moment, as plain data.


@dataclass(frozen=True, slots=True)
class LogStatus:
    """`last`, `last_written`: the last entry, and the last one up to which everything is durable; None without any.

    `segment_bytes` of payload are in `segments` files; `unflushed` entries, and hidden ones, hold `unflushed_bytes` in
    memory and are in the write-ahead log only.
    """

    uid: str
    last: LogPosition | None
    last_written: LogPosition | None
    row: LogRow
    segments: int
    segment_bytes: int
    unflushed: int
    unflushed_bytes: int


# Checks of the writes, truncations and snapshots that a log takes: pure, raising what is wrong.


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """`state`: what the log's machine stores, opaque; an external term where Ra is to read it.

    `live`: the indexes at or below `index` whose entries the machine still needs. `origin` None: that of the log's
    newest snapshot.
    """

    index: int
    term: int
    state: bytes
    live: LiveSet
    origin: SnapshotOrigin | None = None


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Another member's snapshot. `applied`: the last index that is known to be part of every member's log.

    `indexes_bytes`, `data_bytes`: sizes of its two files.
    """

    index: int
    term: int
    applied: int | None
    indexes_bytes: int
    data_bytes: int


def check_entries(entries: Sequence[LogEntry]) -> int:
    """Bytes of their payloads. InvalidEntryError unless indexes are consecutive and files can hold the entries."""
    if not entries:
        raise InvalidEntryError("an append has at least one entry")
    following, total = entries[0].index, 0
    for index, term, payload in entries:
        size = len(payload)
        if not 0 < size <= MAX_PAYLOAD_BYTES:
            raise InvalidEntryError(f"index {index}: a payload has 1..{MAX_PAYLOAD_BYTES} bytes, not {size}")
        # The last index of all stays free: the one behind a log's last must be a number too.
        if not (0 <= index < MAX_INDEX and 0 <= term <= MAX_INDEX):
            raise InvalidEntryError(f"index {index}, term {term}: both are unsigned 64-bit numbers")
        if index != following:
            raise InvalidEntryError(f"index {index} does not follow index {following - 1} in one append")
        following += 1
        total += size
    return total


def check_append(directory: Path, first: int, *, last: int | None, row: LogRow) -> None:
    """LogGapError, WriteRefusedError."""
    if row.end is not None and first <= row.end.index:
        raise WriteRefusedError(str(directory), f"index {first} is not above the snapshot's index {row.end.index}")
    if last is not None and first > last + 1:
        raise LogGapError(str(directory), first, last + 1)


def check_sparse(directory: Path, index: int, previous: int | None, *, last: int | None, truncated: int | None) -> None:
    """WriteRefusedError unless `previous` is the log's last index and no truncated entry lies in the gap."""
    if previous != last:
        raise WriteRefusedError(str(directory), f"index {index} follows {previous}, but the log's last index is {last}")
    if last is not None and index <= last:
        raise WriteRefusedError(str(directory), f"index {index} is not above its previous index {last}")
    if truncated is not None and index > truncated:
        reason = f"the gap before index {index} would bring entries back that were truncated: write {truncated} first"
        raise WriteRefusedError(str(directory), reason)


def check_truncate(directory: Path, index: int, row: LogRow) -> None:
    """WriteRefusedError when entries at or below the snapshot would go."""
    end = None if row.end is None else row.end.index
    if index < 0 or (end is not None and index <= end):
        raise WriteRefusedError(str(directory), f"a truncation at {index} reaches below the snapshot's index {end}")


def check_install(directory: Path, request: InstallRequest, row: LogRow, last: LogPosition | None) -> None:
    """WriteRefusedError, with what does not fit."""
    index, applied = request.index, request.applied
    if not (0 <= index < MAX_INDEX and 0 <= request.term <= MAX_INDEX):
        raise WriteRefusedError(str(directory), f"index {index}, term {request.term}: both are unsigned 64-bit numbers")
    if row.snapshot_index is not None and index <= row.snapshot_index:
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is not above the one at {row.snapshot_index}")
    if applied is not None and index <= applied:
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is not above the applied index {applied}")
    if applied is not None and (last is None or applied > last.index):
        end = "it is empty" if last is None else f"its last index is {last.index}"
        raise WriteRefusedError(str(directory), f"index {applied} is not in the log: {end}")
    if not 0 < request.indexes_bytes <= MAX_INDEXES_BYTES or request.data_bytes <= 0:
        raise WriteRefusedError(
            str(directory),
            f"files of {request.indexes_bytes} and {request.data_bytes} bytes are no snapshot: neither is empty, "
            f"indexes has at most {MAX_INDEXES_BYTES} bytes",
        )


def check_snapshot(directory: Path, request: SnapshotRequest, row: LogRow, written: LogPosition | None) -> None:
    """WriteRefusedError, with what does not fit."""
    index, live = request.index, request.live
    if row.snapshot_index is not None and index <= row.snapshot_index:
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is not above the one at {row.snapshot_index}")
    if row.end is not None and index < row.end.index:
        # One that failed: the directory may show it, as the newest.
        raise WriteRefusedError(str(directory), f"a snapshot at {index} is below the one at {row.end.index}")
    if written is None or index > written.index:
        last = "nothing" if written is None else f"index {written.index}"
        raise WriteRefusedError(str(directory), f"a snapshot at {index} covers entries that are not durable: {last} is")
    if live and live.largest > index:
        raise WriteRefusedError(str(directory), f"live index {live.largest} is above the snapshot's index {index}")
    for before in (row, row.coming):
        if before is None or before.snapshot_index is None or before.live is None:
            continue
        if revived := live.clip(0, before.snapshot_index).without(before.live):
            raise WriteRefusedError(
                str(directory),
                f"index {revived.smallest} is live, which it was not at the snapshot of index "
                f"{before.snapshot_index}: its entry may be gone",
            )


# Entries of a rolled write-ahead log file that go into segments: pure (docs/design/segment-wal.md#flush).


def select(written: Sequence[Seq], row: LogRow, stored: int | None = None) -> list[Seq]:
    """Return the part of each table's indexes that a flush writes to segments.

    `written` and the result are oldest table first. `stored`: the last index that the segments hold, None for none.

    Nothing below the smallest live index; of an older table nothing from the first index of a newer one on, which
    overwrites it; below the snapshot live entries only, above it all. And the last dead entry that goes back behind
    what is stored above the snapshot, if no other entry does: without it, what it overwrote would be there again.
    """
    kept: list[Seq] = []
    limit: int | None = None
    for indexes in reversed(written):
        part = indexes if limit is None else indexes.limit(limit - 1) if limit else Seq()
        if indexes.first is not None:
            limit = indexes.first if limit is None else min(limit, indexes.first)
        kept.append(_kept(part, row, stored))
    return kept[::-1]


def _kept(part: Seq, row: LogRow, stored: int | None) -> Seq:
    needed = row.needed(part.floor(row.smallest_live))
    if row.snapshot_index is None or stored is None or stored <= row.snapshot_index:
        return needed
    following = needed.first
    dead = part.limit(min(row.snapshot_index, MAX_INDEX if following is None else following - 1)).last
    if dead is None or following == dead + 1:
        return needed
    return needed.over(Seq([(dead, dead)]))
