"""Staged changes over a tree: the ranges they touch, and the ranges that lakeFS would write of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final, cast

import numpy as np
import pyarrow as pa

from compaction.staging.errors import NoChangesError, RangeRecordError
from compaction.staging.format.columns import BINARY, EMPTY_COLUMNS, RecordColumns, lengths_of, tombstones
from compaction.staging.format.ranges import BreakRule, RangeInfo, break_points, write_ranges
from compaction.staging.tree.aligning import (
    ABSENT,
    ContentFingerprint,
    Upcoming,
    aligned,
    chosen,
    fingerprint,
    same_identities,
    together,
)
from compaction.staging.tree.storage import RangeStorage

# Ranges that changes touch, and the division of what they touch into parts that are written independently.
#
# Pure: ranges and changes in, a plan out. docs/design/staging.md#where-a-stretch-may-be-cut.

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
    """Yield the parts of a base in the order of keys: a range that is reused by its id, or a part that is written.

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
    """Return whether a range is read and written again because of the next change: one up to its last key."""
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
    sources = [iter(item) for item in lists]
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


# Staged changes over a tree: the columns that both give, and the ranges that lakeFS would write of them.
#
# docs/design/staging.md#applying-changes.


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """The numbers of records that were added, changed and removed. What changes nothing (docs/design/staging.md) is not
    counted.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(self.added + other.added, self.changed + other.changed, self.removed + other.removed)

    @property
    def total(self) -> int:
        return self.added + self.changed + self.removed


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """A tree that was written. `written`: its ranges that are not the base's by reference, `reused`: how many are."""

    metarange_id: str
    counts: ChangeCounts
    written: tuple[RangeInfo, ...]
    reused: int


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of a part: its ranges in order, and the fingerprint of the records that they should hold."""

    ranges: tuple[RangeInfo, ...]
    counts: ChangeCounts
    content: str


@dataclass(frozen=True, slots=True)
class TreeRanges:
    """All ranges of a tree in order, and those of them that were written now."""

    every: tuple[RangeInfo, ...]
    written: tuple[RangeInfo, ...]

    @property
    def reused(self) -> int:
        """The number of ranges that are referred to by their ids, unread."""
        return len(self.every) - len(self.written)


def apply(
    storage: RangeStorage,
    base_id: str,
    changes: Iterable[RecordColumns],
    *,
    allow_empty: bool = False,
    keep_equal: bool = True,
) -> AppliedChanges:
    """Put changes over the tree `base_id` ("": without records), and write the tree of both.

    Changes come in batches, in strictly ascending order of their keys; memory is one batch of them and of the base,
    and the list of ranges. NoChangesError when nothing differs, unless `allow_empty`; RangeRecordError when keys do
    not ascend; and what `storage` raises.

    keep_equal: of a base record and a change with the same identity the base record stays, as in a commit; without it
        the change is taken, so that the tree shows exactly what the changes over the base do.
    """
    counter = _Counter()
    tree = write_records(storage, _items(storage, base_id, Upcoming(changes), counter, keep_equal))
    if not counter.counts.total and not allow_empty:
        raise NoChangesError("nothing differs from the base: no tree was written; stage changes, or allow none")
    return AppliedChanges(storage.write_metarange(tree.every), counter.counts, tree.written, tree.reused)


def write_part(
    storage: RangeStorage, part: Part, changes: Iterable[RecordColumns], *, keep_equal: bool = True
) -> PartResult:
    """Write the ranges of one part of a plan. `changes`: those between its bounds. Raises what `apply` raises."""
    counter, content = _Counter(), ContentFingerprint()
    base = chain.from_iterable(storage.range_records(info, part.start, part.stop) for info in part.ranges)
    merged = counter.counted(merge_changes(base, _within(part, changes), keep_equal=keep_equal))
    ranges = tuple(write_ranges(_noted(merged, content), storage.sink, storage.rule))
    return PartResult(ranges, counter.counts, content.text())


def read_back(storage: RangeStorage, ranges: Iterable[RangeInfo]) -> str:
    """The fingerprint of the records that these ranges hold, read from the object storage."""
    return fingerprint(chain.from_iterable(storage.range_records(info) for info in ranges))


def merge_changes(
    base: Iterable[RecordColumns], changes: Iterable[RecordColumns], *, keep_equal: bool = True
) -> Iterator[tuple[RecordColumns, ChangeCounts]]:
    """Yield the records of changes over a base, piece by piece, and the number of records of each piece that differ
    from the base.

    Both in strictly ascending order of their keys. RangeRecordError when a value has no identity.
    """
    for old, new in together(EMPTY_COLUMNS, base, changes):
        if not len(new):
            yield old, ChangeCounts()
            continue
        both = aligned(old.keys, new.keys)
        old_rows, new_rows = both.rows
        has_old, has_new = both.has(0), both.has(1)
        deleted = np.zeros(new_rows.size, dtype=np.bool_)
        deleted[has_new] = tombstones(new)
        live = has_new & ~deleted
        same = same_identities(old, np.where(live, old_rows, ABSENT), new, new_rows)
        equal = same if keep_equal else np.zeros_like(same)
        kept, taken = has_old & (~has_new | equal), live & ~equal
        counts = ChangeCounts(
            added=int((taken & ~has_old).sum()),
            changed=int((taken & has_old & ~same).sum()),
            removed=int((deleted & has_old).sum()),
        )
        rows = np.where(kept, old_rows, ABSENT), np.where(taken, new_rows, ABSENT)
        yield chosen((old, new), rows), counts


def write_records(storage: RangeStorage, items: Iterable[RangeInfo | Iterator[RecordColumns]]) -> TreeRanges:
    """Write the ranges of a tree that consists of ranges that are reused and of records, in the order of keys.

    A reused range ends the one that is being written. Each iterator of records is used up before the next item is
    asked for.
    """
    every: list[RangeInfo] = []
    written: list[RangeInfo] = []
    for reused, group in groupby(items, lambda item: isinstance(item, RangeInfo)):
        if reused:
            every += cast(Iterator[RangeInfo], group)
        else:
            batches = chain.from_iterable(cast(Iterator[Iterator[RecordColumns]], group))
            new = list(write_ranges(batches, storage.sink, storage.rule))
            every += new
            written += new
    return TreeRanges(tuple(every), tuple(written))


class _Counter:
    """Counts of all pieces that went by."""

    def __init__(self) -> None:
        self.counts = ChangeCounts()

    def counted(self, pieces: Iterable[tuple[RecordColumns, ChangeCounts]]) -> Iterator[RecordColumns]:
        for records, counts in pieces:
            self.counts += counts
            if len(records):
                yield records


def _items(
    storage: RangeStorage, base_id: str, upcoming: Upcoming, counter: _Counter, keep_equal: bool
) -> Iterator[RangeInfo | Iterator[RecordColumns]]:
    """The ranges of the base that no change touches, and the records of the others under their changes."""
    for info in storage.ranges(base_id):
        if is_entered(info, upcoming.first()):
            records = storage.range_records(info, metarange=base_id)
            yield counter.counted(merge_changes(records, upcoming.until(info.max_key), keep_equal=keep_equal))
        else:
            yield info
    yield counter.counted(merge_changes((), upcoming.until(None)))


def _within(part: Part, changes: Iterable[RecordColumns]) -> Iterator[RecordColumns]:
    """The changes of a part, checked: in order, and between its bounds."""
    upcoming = Upcoming(changes)
    first = upcoming.first()
    if first is not None and first < part.start:
        raise RangeRecordError(first, "it is a change before the part that is written")
    yield from upcoming.until(part.until)
    if (key := upcoming.first()) is not None:
        raise RangeRecordError(key, "it is a change behind the part that is written")


def _noted(batches: Iterable[RecordColumns], content: ContentFingerprint) -> Iterator[RecordColumns]:
    for batch in batches:
        content.add(batch)
        yield batch
