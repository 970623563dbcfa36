"""Checks of snapshots, of what they declare live, and of whether it is there: pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from compaction.segments.checking.facts import LogFacts
from compaction.segments.checking.rules import Problem, Rule, Window
from compaction.segments.memtable.seq import Seq
from compaction.segments.model import MAX_INDEX, BoolArray, SegmentIndex, U64Array, segment_number
from compaction.segments.planning.unreferenced import find_dead
from compaction.segments.reading.hidden import hidden_entries
from compaction.segments.reading.missing import in_no_segment
from compaction.segments.reading.view import SegmentRef
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.seq import LiveSet

_COPY = "restore the log from a copy or from another member"


def files(log: LogFacts) -> Iterator[Problem]:
    """Newer snapshots than the one in force that are not valid, and one in force that is of another cluster."""
    force = log.snapshots[-1] if log.snapshots else None
    if force is not None and log.stranger:
        remedy = "do not start the server before the snapshot is restored from a copy or from another member"
        yield Problem(Rule.SNAPSHOT_FILES, str(force.data), log.stranger, remedy)
    for error in log.rejected:
        what = str(error)
        remedy = f"the one at index {force.index} is in force: delete the newer" if force else "restore it from a copy"
        yield Problem(Rule.SNAPSHOT_FILES, error.file, what, remedy)


def live_indexes(log: LogFacts) -> Iterator[Problem]:
    """The snapshot in force says what is live. One that it replaced is deleted, file by file."""
    for snapshot in log.snapshots:
        path = str(snapshot.path)
        if snapshot is not log.snapshots[-1]:
            if snapshot.live is None:
                what = f"the snapshot at index {snapshot.index} does not say any more what is live"
                remedy = f"it is replaced by the one at index {log.snapshots[-1].index}, and its owner deletes it"
                yield Problem(Rule.LIVE_INDEXES, path, what, remedy, note=True)
        elif snapshot.live_error is not None:
            yield Problem(Rule.LIVE_INDEXES, path, str(snapshot.live_error), "its owner computes it from the state")
        elif snapshot.live is None:
            what = f"the snapshot at index {snapshot.index} has no `indexes`: what is live is unknown, not empty"
            remedy = "restore the file from a copy, or state what is live with --live or `whenIndexesMissing`"
            yield Problem(Rule.LIVE_INDEXES, path, what, remedy, Window.W2)


def only_shrinks(log: LogFacts) -> Iterator[Problem]:
    """Of each two snapshots that are there."""
    for older, newer in pairwise(log.snapshots):
        yield from revived(older, newer)


def revived(older: LogSnapshot, newer: LogSnapshot) -> Iterator[Problem]:
    """What a newer snapshot declares live that the older one did not."""
    if older.live is None or newer.live is None:
        return
    again = newer.live.clip(0, older.index).without(older.live)
    if again:
        what = f"index {again.smallest} is live, which was dead at the snapshot of index {older.index}: it may be gone"
        remedy = "fix the owner: what was dead below a snapshot stays dead; restore the entry from another member"
        yield Problem(Rule.LIVE_ONLY_SHRINKS, str(newer.path), what, remedy)


def live_entries(log: LogFacts) -> Iterator[Problem]:
    """Every live entry is in a segment or in the write-ahead log."""
    live = log.demanded
    if not live:
        return
    waiting = LiveSet.from_indexes(log.waiting or ())
    held = [_held(segment, live) for segment in log.state.segments]
    missing = live.without(waiting)
    if held and missing:
        missing = missing.without(LiveSet.from_indexes(np.unique(np.concatenate(held))))
    if not missing:
        return
    what = f"{len(missing)} live entries (first index {missing.smallest}) are in no segment and no write-ahead log file"
    source = next((ref.name for ref in log.state.refs if ref.first <= missing.smallest <= ref.last), None)
    if source is None:
        yield Problem(Rule.LIVE_ENTRIES, str(log.directory), what, _COPY)
    else:
        # A compaction of Ra finds the segment by its range, and fails half-way for want of the record.
        yield Problem(Rule.LIVE_ENTRIES, str(log.directory / source), what, _COPY, Window.W7)


def _held(segment: SegmentIndex, live: LiveSet) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    found: np.ndarray[tuple[int], np.dtype[np.uint64]] = segment.idx[live.mask(segment.idx)]
    return found


def hidden(log: LogFacts) -> Iterator[Problem]:
    """Entries that segments hold and no reader gets, though no leader has dropped them."""
    bound = min(log.waiting or (), default=MAX_INDEX)
    row, live = log.row, log.demanded
    above = np.uint64(0 if row.snapshot_index is None else row.snapshot_index + 1)

    def needed(indexes: U64Array) -> BoolArray:
        # From the first one that waits on, a reader asks the write-ahead log; below the snapshot, what is live counts.
        wanted = indexes >= above
        if live is not None:
            wanted |= live.mask(indexes)
        end = bound if log.cut is None else min(bound, log.cut.first)
        return wanted & (indexes < np.uint64(end))

    state = log.state
    lost = live is not None and in_no_segment(state.segments, live).without(LiveSet.from_indexes(log.waiting or ()))
    dead = find_dead(state, state.live) if state.live is not None and not lost else {}
    for one in hidden_entries(state, needed, cut=None if log.cut is None else log.cut.first):
        rule = Rule.SAME_ENTRY if one.replaced else Rule.ENTRIES_ABOVE
        if not one.replaced and live is not None and one.indexes[0] < above:
            rule = Rule.LIVE_ENTRIES
        remedy = f"if {one.by} is an old file under a new name, move it out of the log's directory; else {_COPY}"
        if one.by in dead:
            remedy = "nothing of that file is needed: `compactor segments compact` deletes it after the grace"
        yield Problem(rule, str(state.directory / one.by), str(one), remedy)


def entries_above(log: LogFacts) -> Iterator[Problem]:
    """Indexes above the snapshot: a gap is the trace of a sparse write, unless a segment is missing there."""
    above = 0 if log.row.snapshot_index is None else log.row.snapshot_index + 1
    waiting = Seq.from_indexes(log.waiting or ())
    refs = [ref for ref in log.state.refs if log.counts(ref.first)]
    for ref in refs:
        yield from _holes(log, ref, above, waiting)
    for older, newer in pairwise(ref for ref in refs if ref.last >= above):
        if newer.first > older.last + 1 and not waiting.overlaps(older.last + 1, newer.first - 1):
            yield _gap(log, older, newer)
    ends = [refs[-1].last] if refs and log.counts(refs[-1].last) else []
    if waiting.first is not None and ends and waiting.first > max(ends[0], above - 1) + 1:
        low, high = max(ends[0], above - 1) + 1, waiting.first - 1
        what = f"indexes {low}-{high} are neither in segments nor in the write-ahead log"
        yield Problem(Rule.ENTRIES_ABOVE, str(log.directory), what, _SPARSE, note=True)


_SPARSE = "that is right if the entry behind the gap was a sparse write, as of a snapshot's installation"


def _holes(log: LogFacts, ref: SegmentRef, above: int, waiting: Seq) -> Iterator[Problem]:
    """Indexes above the snapshot that one file steps over."""
    indexes = log.state.segment(ref.name).idx[log.state.readable(ref)]
    indexes = indexes[indexes >= np.uint64(max(above - 1, 0))]
    for place in np.flatnonzero(indexes[1:] - indexes[:-1] > np.uint64(1)).tolist():
        low, high = int(indexes[place]) + 1, int(indexes[place + 1]) - 1
        if low >= above and log.counts(low) and not waiting.overlaps(low, high):
            what = f"no entry of indexes {low}-{high}, above the snapshot, is there, between others of the file"
            yield Problem(Rule.ENTRIES_ABOVE, str(log.directory / ref.name), what, _SPARSE, note=True)


def _gap(log: LogFacts, older: SegmentRef, newer: SegmentRef) -> Problem:
    numbers = segment_number(older.name), segment_number(newer.name)
    what = f"no entry of indexes {older.last + 1}-{newer.first - 1}, above the snapshot, is there"
    if numbers[1] > numbers[0] + 1:
        what += f", and no segment between {older.name} and {newer.name}"
        return Problem(Rule.ENTRIES_ABOVE, str(log.directory), what, _COPY)
    return Problem(Rule.ENTRIES_ABOVE, str(log.directory), what, _SPARSE, note=True)
