"""Checks of two readings of one directory, some time apart: what must only grow, and what must not go. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from compaction.segments.checking import checks
from compaction.segments.checking.facts import CheckProblem, Content, LogFacts, OwnerRule, SystemFacts
from compaction.segments.model import SegmentIndex, segment_number, torn_from
from compaction.segments.system.rules import LogRow
from compaction.segments.wal.files import wal_number


def violations(before: SystemFacts, after: SystemFacts) -> Iterator[CheckProblem]:
    """Of all rules that two readings can show. A log whose directory is gone was deleted."""
    old = {log.name: log for log in before.logs}
    for log in after.logs:
        if log.name in old:
            yield from segments_grow(old[log.name], log)
            yield from numbers_ascend(old[log.name], log)
            yield from nothing_vanishes(old[log.name], log)
            yield from snapshots_advance(old[log.name], log)
    yield from wal_grows(before, after)


def segments_grow(before: LogFacts, after: LogFacts) -> Iterator[CheckProblem]:
    """A file keeps its records; only the newest gets more. Another file under the name is a compacted one."""
    old = {segment.name: segment for segment in before.state.segments}
    last = before.state.newest if before.state.segments else ""
    for segment in after.state.segments:
        known = old.get(segment.name)
        if known is None or known.identity == segment.identity or known.identity.inode != segment.identity.inode:
            continue
        if not _continues(known, segment):
            yield CheckProblem(
                OwnerRule.SEGMENTS_GROW,
                str(segment.path),
                "records that it held are others now",
                "fix the owner: append only",
            )
        elif segment.count > known.count and segment.name != last:
            what = f"it was appended to, while {last} was the newest segment"
            yield CheckProblem(
                OwnerRule.SEGMENTS_GROW, str(segment.path), what, "fix the owner: append to the newest segment"
            )


def _continues(old: SegmentIndex, new: SegmentIndex) -> bool:
    """Return whether the records before the torn ones are unchanged. An owner clears torn records when it starts."""
    columns = ((old.idx, new.idx), (old.term, new.term), (old.offset, new.offset), (old.length, new.length))
    torn = torn_from(old)
    size = old.count if torn is None else torn
    return new.count >= size and all(np.array_equal(mine, theirs[:size]) for mine, theirs in columns)


def numbers_ascend(before: LogFacts, after: LogFacts) -> Iterator[CheckProblem]:
    """A name that was not there has a higher number than all that were."""
    old = {*(segment.name for segment in before.state.segments), *(before.links or {})}
    highest = max((segment_number(name) for name in old), default=0)
    for segment in after.state.segments:
        if segment.name not in old and segment_number(segment.name) <= highest:
            what = f"it is a new segment, though number {highest} was taken before"
            remedy = "fix the owner: the next segment has the highest number of all names, links included, plus one"
            yield CheckProblem(OwnerRule.NUMBERS_ASCEND, str(segment.path), what, remedy)


def nothing_vanishes(before: LogFacts, after: LogFacts) -> Iterator[CheckProblem]:
    """Report a needed entry that is gone or differs.

    An entry that was overwritten above the earlier snapshot, and all behind it, may go.
    """
    row, now = after.row, after.content()
    kept: dict[int, Content] = {index: item for index, item in before.content().items() if row.needs(index)}
    floor = -1 if before.row.snapshot_index is None else before.row.snapshot_index
    overwritten = _overwritten_from(kept, now, floor, _end(row, now))
    for index in sorted(kept):
        if overwritten is not None and index >= overwritten:
            return
        if index not in now:
            what = f"the entry of index {index} is gone, though the log needs it"
        elif _differs(kept[index], now[index]):
            what = f"the entry of index {index} is another, below the snapshot"
        else:
            continue
        remedy = "restore it from a copy or from another member, and fix the owner, or the compactor that deleted it"
        yield CheckProblem(OwnerRule.NOTHING_VANISHES, str(after.directory), what, remedy)
        return


def _end(row: LogRow, now: Mapping[int, Content]) -> tuple[int, int]:
    """Index and term of the log's last entry, or of its snapshot."""
    last = max(now, default=-1)
    if row.snapshot_index is not None and row.snapshot_index > last:
        return row.snapshot_index, row.snapshot_term
    return last, now[last].term if now else -1


def _overwritten_from(
    kept: Mapping[int, Content], now: Mapping[int, Content], floor: int, end: tuple[int, int]
) -> int | None:
    """The first index above `floor` that was overwritten: its entry is another now, or the log ends below it, in a
    later term than the entry's.
    """
    others = (index for index, item in kept.items() if index in now and _differs(item, now[index]))
    cut = (index for index, item in kept.items() if index > end[0] and item.term < end[1])
    return min((index for index in (*others, *cut) if index > floor), default=None)


def _differs(content: Content, other: Content) -> bool:
    return content[:2] != other[:2] or bool(content.crc and other.crc and content.crc != other.crc)


def snapshots_advance(before: LogFacts, after: LogFacts) -> Iterator[CheckProblem]:
    """Index and term of the newest snapshot never go back, and dead entries stay dead."""
    if not before.snapshots:
        return
    old = before.snapshots[-1]
    new = after.snapshots[-1] if after.snapshots else None
    if new is None or new.index < old.index or new.term < old.term:
        now = "there is none" if new is None else f"the newest is of index {new.index}, term {new.term}"
        what = f"its snapshot was of index {old.index}, term {old.term}, and now {now}"
        yield CheckProblem(
            OwnerRule.SNAPSHOTS_ADVANCE, str(after.directory), what, "fix the owner: a snapshot replaces older ones"
        )
        return
    if new.path != old.path:
        yield from checks.revived(old, new)


def wal_grows(before: SystemFacts, after: SystemFacts) -> Iterator[CheckProblem]:
    """Whole records stay as they were; only the newest file gets more; the oldest goes first. Not so files that hold
    records of logs that their owner could not open: those are replaced, and stay.
    """
    old = {wal.path.name: wal for wal in before.wal}
    newest = max(old, default="")
    for wal in after.wal:
        known = old.get(wal.path.name)
        if known is None:
            if newest and wal_number(wal.path.name) <= wal_number(newest):
                what = f"it is a new file, though {newest} was there before"
                yield CheckProblem(
                    OwnerRule.WAL_GROWS, str(wal.path), what, "fix the owner: the next file has the next number"
                )
        elif wal.kept is False and not wal.is_held:
            what = f"its first {known.whole} bytes, which were whole records, are others now"
            yield CheckProblem(OwnerRule.WAL_GROWS, str(wal.path), what, "fix the owner: append only")
        elif wal.records > known.records and wal.path.name != newest:
            what = f"it was appended to, while {newest} was the newest file"
            yield CheckProblem(OwnerRule.WAL_GROWS, str(wal.path), what, "fix the owner: append to the newest file")
    left = {wal.path.name for wal in after.wal}
    gone = [name for name in old if name not in left]
    if gone and any(wal.path.name < max(gone) for wal in after.wal if not wal.is_held):
        path = str(old[max(gone)].path)
        what = "it is gone, while an older file is still there"
        yield CheckProblem(
            OwnerRule.WAL_GROWS, path, what, "fix the owner: files go oldest first, or older entries come back"
        )
