"""Pure decisions: the live entries worth re-writing at the head of the log, and the reason why the others stay.

A live set that became sparse is a long sequence of short ranges: memory for its holder, seeks for its reader
it, and segments that a few entries each keep alive. Copies of these entries behind the last index are neighbours, one
range instead of many; the old ones die, and the ordinary phases reclaim them. The price is their bytes, written once
more, and that the log's owner must learn the new indexes: so this is done on request only, never by a policy.

Only whole runs are chosen (a run is a maximal range of live neighbours), oldest first, so that the oldest segments
become free; only those that are read wholly from segments which a compaction may touch; only while the byte budget
lasts; and none at all unless enough ranges vanish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from compaction.segments.errors import ClumpRefusedError, InvalidGroupError
from compaction.segments.model import MAX_INDEX, BoolArray, RowArray, U64Array
from compaction.segments.planning.unreferenced import SegmentLimits, compactable_refs
from compaction.segments.reading.view import LogState
from compaction.segments.snapshot.live_indexes import LiveSet

DEFAULT_SHORTER_THAN: Final = 8
DEFAULT_MIN_RANGES: Final = 16
DEFAULT_MAX_BYTES: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class ClumpOptions:
    """The selection of entries to re-write.

    Runs of fewer than `shorter_than` live neighbours are re-written if that makes the live set at least `min_ranges`
    ranges shorter, and at most `max_bytes` of payload. `owner_reads_maps`: the owner of a log in a Ra system finds what
    was moved, which Ra does not. InvalidGroupError when out of range.
    """

    shorter_than: int = DEFAULT_SHORTER_THAN
    min_ranges: int = DEFAULT_MIN_RANGES
    max_bytes: int = DEFAULT_MAX_BYTES
    owner_reads_maps: bool = False

    def __post_init__(self) -> None:
        if self.shorter_than < 2:
            raise InvalidGroupError(f"runs shorter than {self.shorter_than}: at least 2, a run has one entry or more")
        if self.min_ranges < 1 or self.max_bytes < 1:
            raise InvalidGroupError(
                f"min_ranges {self.min_ranges} and max_bytes {self.max_bytes} must both be positive"
            )


class StaysReason(StrEnum):
    """The reason why a run of live entries is not re-written."""

    LONG_ENOUGH = "LongEnough"
    """It has as many neighbours as was asked for."""
    NOT_READABLE = "NotReadable"
    """No readable record holds one of its indexes: look into the log before anything else."""
    SEGMENT_STAYS = "SegmentStays"
    """Its segment is the newest one or reaches above the snapshot: nothing could be reclaimed of it yet."""
    TOO_LARGE = "TooLarge"
    """One of its entries alone exceeds the limit of a segment."""
    OVER_BUDGET = "OverBudget"
    """The bytes that may be written are used up by older runs."""
    TOO_LITTLE_GAIN = "TooLittleGain"
    """Too few ranges would vanish in all."""


@dataclass(frozen=True, slots=True)
class LeftOutRuns:
    """Runs that stay where they are for one reason; `entries` of them are readable, of `bytes` of payload."""

    reason: StaysReason
    runs: int
    entries: int
    bytes: int
    first: int
    detail: str


@dataclass(frozen=True, slots=True)
class ClumpRound:
    """The content of one new segment: `old` indexes in order, re-written from index `first` on."""

    old: LiveSet
    first: int
    bytes: int

    @property
    def last(self) -> int:
        return self.first + len(self.old) - 1


@dataclass(frozen=True, slots=True)
class LogHead:
    """The end of a log: the segment its owner would append to, the last index, and the term of the next entries."""

    newest: str
    last: int
    term: int


@dataclass(frozen=True, slots=True)
class ClumpPlan:
    """The entries that would be re-written.

    `ranges_after` is an estimate: of the live set at the owner's next snapshot, if nothing dies until then.
    `freed_segments`, `freed_bytes`: segment files that hold nothing live afterwards.
    """

    snapshot_index: int
    snapshot_term: int
    head: LogHead
    rounds: tuple[ClumpRound, ...]
    left_out: tuple[LeftOutRuns, ...]
    live_entries: int
    ranges_before: int
    ranges_after: int
    freed_segments: int
    freed_bytes: int

    @property
    def entries(self) -> int:
        return sum(len(part.old) for part in self.rounds)

    @property
    def bytes(self) -> int:
        """Payload to copy."""
        return sum(part.bytes for part in self.rounds)


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Readable live entries at or below the snapshot, ascending; `stays`: in a segment that may not be touched."""

    idx: U64Array
    length: RowArray
    stays: BoolArray
    segment: RowArray


def mean_run(live: LiveSet) -> float:
    """Mean number of live neighbours in a range; 0 for the empty set."""
    ranges = live.bounds[0].size
    return len(live) / ranges if ranges else 0.0


def log_head(log: LogState) -> LogHead:
    """Return the end of a log, by its segments and its snapshot (whose index may lie above all segments)."""
    last, term = log.snapshot_index or 0, log.snapshot.term if log.snapshot else 0
    if log.refs:
        ref = log.refs[-1]
        rows = log.readable(ref)
        last, term = max(last, ref.last), max(term, int(log.segment(ref.name).term[rows[-1]]))
    return LogHead(newest=log.newest, last=last, term=term)


def plan_clump(log: LogState, request: ClumpOptions, limits: SegmentLimits) -> ClumpPlan:
    """Plan the re-writing of one log, in rounds that each fit one segment.

    Raises:
        ClumpRefusedError: no snapshot of its own, so nothing below one could be replaced; or no index is left.
        LiveSetUnknownError: the snapshot does not say what is live. LiveEntriesMissingError: some of it is lost.
    """
    snapshot = log.snapshot
    if snapshot is None or snapshot.index != log.snapshot_index:
        raise ClumpRefusedError(str(log.directory), "it has no valid snapshot, so every entry is where it must be")
    if log.live is None:
        raise log.live_unknown()
    if log.missing:
        raise log.entries_missing()
    live, head = log.live, log_head(log)
    entries = _gather(log, live)
    run, reasons = _judge(entries, live, request, limits)
    chosen = reasons[run] == ""
    moved = LiveSet.from_indexes(entries.idx[chosen])
    after = _ranges_after(live, moved, head)
    before = live.bounds[0].size
    if moved and before - after < request.min_ranges:
        # All or nothing: below the gain that was asked for, the copies would only cost their bytes.
        reasons[reasons == ""] = StaysReason.TOO_LITTLE_GAIN
        chosen, moved, after = np.zeros_like(chosen), LiveSet.empty(), before
    if head.last + int(chosen.sum()) > MAX_INDEX:
        raise ClumpRefusedError(str(log.directory), f"no index is left behind {head.last}")
    freed = _freed(log, entries, chosen)
    return ClumpPlan(
        snapshot_index=snapshot.index,
        snapshot_term=snapshot.term,
        head=head,
        rounds=tuple(_rounds(entries.idx[chosen], entries.length[chosen], limits, first=head.last + 1)),
        left_out=tuple(_left_out(entries, live, run, reasons, request, limits)),
        live_entries=len(live),
        ranges_before=before,
        ranges_after=after,
        freed_segments=len(freed),
        freed_bytes=sum(freed),
    )


def _gather(log: LogState, live: LiveSet) -> _Entries:
    touchable = {ref.name for ref in compactable_refs(log)}
    idx, length, stays, segment = [], [], [], []
    for number, ref in enumerate(log.refs):
        index, rows = log.segment(ref.name), log.readable(ref)
        rows = rows[live.mask(index.idx[rows])]
        idx.append(index.idx[rows])
        length.append(index.length[rows].astype(np.int64))
        stays.append(np.full(rows.size, ref.name not in touchable))
        segment.append(np.full(rows.size, number, dtype=np.int64))
    if not idx:
        none = np.empty(0, dtype=np.int64)
        return _Entries(none.astype(np.uint64), none, none.astype(np.bool_), none)
    return _Entries(np.concatenate(idx), np.concatenate(length), np.concatenate(stays), np.concatenate(segment))


def _judge(
    entries: _Entries, live: LiveSet, request: ClumpOptions, limits: SegmentLimits
) -> tuple[RowArray, np.ndarray[tuple[int], np.dtype[np.object_]]]:
    """(run of each entry, reason of each run): the empty reason is that of a run to be re-written."""
    starts, ends = live.bounds
    run = np.searchsorted(starts, entries.idx, side="right").astype(np.int64) - 1
    runs = starts.size
    size = np.zeros(runs, dtype=np.int64)
    np.add.at(size, run, entries.length)
    largest = np.zeros(runs, dtype=np.int64)
    np.maximum.at(largest, run, entries.length)
    found = np.bincount(run, minlength=runs)
    stays = np.bincount(run[entries.stays], minlength=runs) > 0
    reasons = np.full(runs, "", dtype=object)
    neighbours = ends - starts
    reasons[largest > limits.max_bytes] = StaysReason.TOO_LARGE
    reasons[stays] = StaysReason.SEGMENT_STAYS
    reasons[found.astype(np.uint64) != neighbours + np.uint64(1)] = StaysReason.NOT_READABLE
    reasons[neighbours >= np.uint64(request.shorter_than - 1)] = StaysReason.LONG_ENOUGH
    candidates = np.flatnonzero(reasons == "")
    over = np.cumsum(size[candidates]) > request.max_bytes
    reasons[candidates[over]] = StaysReason.OVER_BUDGET
    return run, reasons


def _ranges_after(live: LiveSet, moved: LiveSet, head: LogHead) -> int:
    """Ranges of the live set once `moved` lie side by side behind the head."""
    if not moved:
        return live.bounds[0].size
    stays = live.without(moved)
    joined = bool(stays) and stays.largest == head.last
    return stays.bounds[0].size + (0 if joined else 1)


def _rounds(idx: U64Array, length: RowArray, limits: SegmentLimits, *, first: int) -> Iterator[ClumpRound]:
    """The chosen entries cut where a segment is full; an equal number fits."""
    ends = np.cumsum(length)
    begin = 0
    while begin < idx.size:
        before = int(ends[begin - 1]) if begin else 0
        fits = int(np.searchsorted(ends, before + limits.max_bytes, side="right"))
        end = min(begin + limits.max_entries, fits)
        yield ClumpRound(LiveSet.from_indexes(idx[begin:end]), first=first + begin, bytes=int(ends[end - 1]) - before)
        begin = end


def _freed(log: LogState, entries: _Entries, chosen: BoolArray) -> list[int]:
    """File sizes of the segments whose last live entries are chosen."""
    live = np.bincount(entries.segment, minlength=len(log.refs))
    gone = np.bincount(entries.segment[chosen], minlength=len(log.refs))
    numbers = np.flatnonzero((live > 0) & (live == gone)).tolist()
    return [log.segment(log.refs[number].name).identity.size for number in numbers]


def _left_out(
    entries: _Entries,
    live: LiveSet,
    run: RowArray,
    reasons: np.ndarray[tuple[int], np.dtype[np.object_]],
    request: ClumpOptions,
    limits: SegmentLimits,
) -> Iterator[LeftOutRuns]:
    details = {
        StaysReason.LONG_ENOUGH: f"runs of {request.shorter_than} neighbours or more",
        StaysReason.NOT_READABLE: "no readable record holds every index of the run",
        StaysReason.SEGMENT_STAYS: "in the newest segment, or one that reaches above the snapshot",
        StaysReason.TOO_LARGE: f"an entry is larger than {limits.max_bytes} bytes",
        StaysReason.OVER_BUDGET: f"the {request.max_bytes} bytes that may be written are used up by older runs",
        StaysReason.TOO_LITTLE_GAIN: f"fewer than {request.min_ranges} ranges would vanish in all",
    }
    starts = live.bounds[0]
    for reason, detail in details.items():
        is_it = reasons == reason
        if is_it.any():
            inside = is_it[run]
            yield LeftOutRuns(
                reason=reason,
                runs=int(is_it.sum()),
                entries=int(inside.sum()),
                bytes=int(entries.length[inside].sum()),
                first=int(starts[np.flatnonzero(is_it)[0]]),
                detail=detail,
            )
