"""Which ranges changes touch, and how what they touch is cut into parts that are written independently.

Pure: ranges and changes in, a plan out. docs/design/staging.md#where-a-stretch-may-be-cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from compaction.staging.changes import tombstones
from compaction.staging.format.breaks import BreakRule, break_points
from compaction.staging.format.columns import BINARY, RecordColumns, lengths_of
from compaction.staging.format.ranges import RangeInfo
from compaction.staging.tree.aligning import Upcoming

PART_BYTES: Final = 64 << 20
"""Wanted size of a part: some ranges."""


@dataclass(frozen=True, slots=True)
class Part:
    """Something to write by itself: the keys above `after` (None: from the first) up to `until` (None: to the last).

    `ranges`: those of the base that hold such keys. `changes`: how many there are. `records` and `nbytes` are
    estimates of what is read, a range counted where it begins.
    """

    after: bytes | None
    until: bytes | None
    ranges: tuple[RangeInfo, ...]
    changes: int
    records: int
    nbytes: int

    @property
    def start(self) -> bytes:
        """The least key that belongs to it."""
        return b"" if self.after is None else self.after + b"\0"

    @property
    def stop(self) -> bytes | None:
        """The least key behind it, None when all are its own."""
        return None if self.until is None else self.until + b"\0"


def plan_parts(
    ranges: Iterable[RangeInfo], changes: Iterable[RecordColumns], rule: BreakRule, *, part_bytes: int = PART_BYTES
) -> Iterator[RangeInfo | Part]:
    """What becomes of a base in the order of keys: a range that is reused by its id, or a part that is written.

    Every change belongs to exactly one part, whose bounds say which. Parts are of about `part_bytes` where the stretch
    may be cut. RangeRecordError when the keys of changes do not ascend.
    """
    upcoming = Upcoming(changes)
    stretch: _Stretch | None = None
    behind: bytes | None = None
    for info in ranges:
        if is_entered(info, upcoming.first()):
            stretch = stretch or _Stretch(behind, rule, part_bytes)
            yield from stretch.enter(info, upcoming.until(info.max_key))
        else:
            if stretch is not None:
                yield from stretch.end(behind)
                stretch = None
            yield info
        behind = info.max_key
    if upcoming.first() is not None:
        stretch = stretch or _Stretch(behind, rule, part_bytes)
        yield from stretch.append(upcoming.until(None))
        behind = None
    if stretch is not None:
        yield from stretch.end(behind)


def is_entered(info: RangeInfo, change: bytes | None) -> bool:
    """Whether a range is read and written again because of the next change: one up to its last key."""
    return change is not None and change <= info.max_key


class _Stretch:
    """Neighbouring ranges that are entered, on the way into parts."""

    def __init__(self, behind: bytes | None, rule: BreakRule, part_bytes: int) -> None:
        self._raggedness = rule.raggedness
        # Below the least size a range goes on over any key.
        self._most = part_bytes if rule.min_bytes == 0 else None
        self._begin(behind, None)

    def _begin(self, after: bytes | None, info: RangeInfo | None) -> None:
        self._after = after
        self._ranges = [info] if info else []
        self._changes = self._records = self._bytes = 0

    def enter(self, info: RangeInfo, changes: Iterable[RecordColumns]) -> Iterator[Part]:
        """A range and the changes up to its last key; the parts that are full."""
        self._ranges.append(info)
        self._records += info.count
        self._bytes += info.estimated_size
        last: RecordColumns | None = None
        for batch in changes:
            yield from self._add(batch, info)
            last = batch
        if self._most is None or self._bytes < self._most or not info.count:
            return
        deleted = last is not None and last.keys[-1].as_py() == info.max_key and not last.values[-1].as_py()
        if not deleted and break_points(pa.array([info.max_key], BINARY), self._raggedness):
            yield from self.end(info.max_key)

    def append(self, changes: Iterable[RecordColumns]) -> Iterator[Part]:
        """Changes behind the last range."""
        for batch in changes:
            yield from self._add(batch, None)

    def end(self, until: bytes | None) -> Iterator[Part]:
        """The last part, when anything is in it."""
        if self._ranges or self._changes:
            yield self._part(until)
        self._begin(until, None)

    def _add(self, batch: RecordColumns, info: RangeInfo | None) -> Iterator[Part]:
        sizes = np.cumsum(lengths_of(batch.keys) + lengths_of(batch.values))
        done = 0
        for row in self._cuts(batch):
            added = int(sizes[row]) - (int(sizes[done - 1]) if done else 0)
            if self._most is None or self._bytes + added < self._most:
                continue
            self._count(row + 1 - done, added)
            done = row + 1
            key = batch.keys[row].as_py()
            yield self._part(key)
            self._begin(key, info if info is not None and key < info.max_key else None)
        left = int(sizes[-1]) - (int(sizes[done - 1]) if done else 0)
        self._count(len(batch) - done, left)

    def _cuts(self, batch: RecordColumns) -> list[int]:
        """The changes after which a range ends, whatever comes before."""
        if self._most is None:
            return []
        deleted = tombstones(batch)
        return [row for row in break_points(batch.keys, self._raggedness) if not deleted[row]]

    def _count(self, changes: int, nbytes: int) -> None:
        self._changes += changes
        self._records += changes
        self._bytes += nbytes

    def _part(self, until: bytes | None) -> Part:
        return Part(self._after, until, tuple(self._ranges), self._changes, self._records, self._bytes)


def overlapping(*lists: Iterable[RangeInfo]) -> Iterator[tuple[tuple[RangeInfo, ...], ...]]:
    """The ranges of several trees in groups whose keys do not overlap, in order; of each tree those of the group.

    A range that overlaps no other is a group of its own.
    """
    sources = [iter(one) for one in lists]
    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        groups: list[list[RangeInfo]] = [[] for _ in heads]
        bound = min(head.min_key for head in heads if head is not None)
        grown = True
        while grown:
            grown = False
            for side, source in enumerate(sources):
                head = heads[side]
                while head is not None and head.min_key <= bound:
                    groups[side].append(head)
                    bound, grown = max(bound, head.max_key), True
                    head = next(source, None)
                heads[side] = head
        yield tuple(map(tuple, groups))
