"""Staged changes over a tree: the columns that both give, and the ranges that lakeFS would write of them.

docs/design/staging.md#applying-changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import cast

import numpy as np

from compaction.staging.changes import tombstones
from compaction.staging.errors import NoChangesError, RangeRecordError
from compaction.staging.format.columns import EMPTY_COLUMNS, RecordColumns
from compaction.staging.format.ranges import RangeInfo, write_ranges
from compaction.staging.tree.aligning import ABSENT, Upcoming, aligned, chosen, same_identities, together
from compaction.staging.tree.fingerprint import ContentFingerprint, fingerprint
from compaction.staging.tree.storage import RangeStorage
from compaction.staging.tree.stretches import Part, is_entered


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """How many records became more, other and fewer. What changes nothing (docs/design/staging.md) is not counted."""

    added: int = 0
    changed: int = 0
    removed: int = 0

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(self.added + other.added, self.changed + other.changed, self.removed + other.removed)

    @property
    def total(self) -> int:
        return self.added + self.changed + self.removed


@dataclass(frozen=True, slots=True)
class Applied:
    """A tree that was written. `written`: its ranges that are not the base's by reference, `reused`: how many are."""

    metarange_id: str
    counts: ChangeCounts
    written: tuple[RangeInfo, ...]
    reused: int


@dataclass(frozen=True, slots=True)
class PartResult:
    """What became of a part: its ranges in order, and the fingerprint of the records that they should hold."""

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
        """How many are referred to by their ids, unread."""
        return len(self.every) - len(self.written)


def apply(
    storage: RangeStorage,
    base_id: str,
    changes: Iterable[RecordColumns],
    *,
    allow_empty: bool = False,
    keep_equal: bool = True,
) -> Applied:
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
    return Applied(storage.write_metarange(tree.every), counter.counts, tree.written, tree.reused)


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
    """What changes over a base give, piece by piece, and how many records of each piece differ from the base.

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
