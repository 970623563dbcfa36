"""Differences of trees, and their three-way merge, by the column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.staging.errors import MergeConflictError, NoChangesError
from compaction.staging.format.columns import BINARY, EMPTY_COLUMNS, I64, RecordColumns, tombstones
from compaction.staging.format.ranges import RangeInfo
from compaction.staging.tree.aligning import ABSENT, Aligned, Mask, Upcoming, aligned, chosen, same_identities, together
from compaction.staging.tree.applying import is_entered, overlapping, write_records
from compaction.staging.tree.storage import RangeStorage

# Differences between two trees, or between a tree and staged changes; by the column.
#
# docs/design/staging.md#diff.

_ABSENT_VALUE: Final = pa.array([b""], BINARY)


class DiffKind(IntEnum):
    """The kind of a difference at a key, seen from the left."""

    ADDED = 1
    CHANGED = 2
    REMOVED = 3


@dataclass(frozen=True, slots=True)
class DiffColumns:
    """Keys that differ, in strictly ascending order: `kinds` are of `DiffKind` (uint8), a value that is not is b"" ."""

    keys: Any
    kinds: npt.NDArray[np.uint8]
    left: Any
    right: Any

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def changes(self) -> RecordColumns:
        """The changes that turn the left side into the right one."""
        return RecordColumns(self.keys, self.right)

    @property
    def reverted(self) -> RecordColumns:
        """The changes that turn the right side into the left one."""
        return RecordColumns(self.keys, self.left)

    def slice(self, begin: int, end: int) -> DiffColumns:
        """Rows `begin` to `end`, without a copy."""
        size = end - begin
        left, right = self.left.slice(begin, size), self.right.slice(begin, size)
        return DiffColumns(self.keys.slice(begin, size), self.kinds[begin:end], left, right)

    def take(self, rows: I64) -> DiffColumns:
        """These rows, copied."""
        places = pa.array(rows)
        return DiffColumns(self.keys.take(places), self.kinds[rows], self.left.take(places), self.right.take(places))

    def rows(self) -> list[tuple[bytes, DiffKind, bytes, bytes]]:
        """Key, kind and both values of each: for tests, and for pages of a listing."""
        kinds = map(DiffKind, self.kinds.tolist())
        columns = self.keys.to_pylist(), kinds, self.left.to_pylist(), self.right.to_pylist()
        return list(zip(*columns, strict=True))


NO_DIFFS: Final = DiffColumns(EMPTY_COLUMNS.keys, np.zeros(0, dtype=np.uint8), EMPTY_COLUMNS.keys, EMPTY_COLUMNS.keys)


def diff(storage: RangeStorage, left_id: str, right_id: str, start: bytes = b"") -> Iterator[DiffColumns]:
    """Yield the differences of the tree `right_id` from `left_id`, for keys from `start` on. No batch is empty.

    Values are equal when their identities are. Ranges that both trees have are not read.
    """
    if left_id == right_id:
        return
    for left, right in overlapping(storage.ranges(left_id, start), storage.ranges(right_id, start)):
        if [item.id for item in left] == [item.id for item in right]:
            continue
        pieces = together(
            EMPTY_COLUMNS, records_of(storage, left, left_id, start), records_of(storage, right, right_id, start)
        )
        for old, new in pieces:
            found = _differing(old, new, aligned(old.keys, new.keys), None)
            if len(found):
                yield found


def diff_changes(storage: RangeStorage, base_id: str, changes: Iterable[RecordColumns]) -> Iterator[DiffColumns]:
    """Yield the differences that staged changes (tombstones among them) make to a tree, in the order of keys. No batch
    is empty.

    A tombstone of a key that the tree has not, and a value of the same identity, differ in nothing. Of a range only
    what lies between the first and the last of its changes is read.
    """
    upcoming = Upcoming(changes)
    first = upcoming.first()
    for info in storage.ranges(base_id, first or b""):
        if (first := upcoming.first()) is None:
            break
        if is_entered(info, first):
            for batch in upcoming.until(info.max_key):
                yield from _changed(_between(storage, info, batch, base_id), batch)
    for batch in upcoming.until(None):
        yield from _changed((), batch)


def union_diffs(
    first: Iterable[DiffColumns], second: Iterable[DiffColumns], *, hiding: Iterable[RecordColumns] = ()
) -> Iterator[DiffColumns]:
    """Two diffs as one: of each key the row of `first`, else of `second`, unless `hiding` has the key."""
    marked = (DiffColumns(item.keys, np.zeros(len(item), dtype=np.uint8), item.keys, item.keys) for item in hiding)
    for item, other, hidden in together(NO_DIFFS, first, second, marked):
        both = aligned(item.keys, other.keys, hidden.keys)
        rows = np.where(both.has(0), both.rows[0], ABSENT)
        free = ~both.has(0) & both.has(1) & ~both.has(2)
        rows = np.where(free, both.rows[1] + len(item), rows)
        every = DiffColumns(
            pa.concat_arrays([item.keys, other.keys]),
            np.concatenate([item.kinds, other.kinds]),
            pa.concat_arrays([item.left, other.left]),
            pa.concat_arrays([item.right, other.right]),
        )
        found = every.take(rows[rows != ABSENT])
        if len(found):
            yield found


def records_of(
    storage: RangeStorage, ranges: Iterable[RangeInfo], metarange: str, start: bytes = b"", stop: bytes | None = None
) -> Iterator[RecordColumns]:
    """The records of some ranges of a tree with start <= key < stop."""
    return chain.from_iterable(storage.range_records(info, start, stop, metarange=metarange) for info in ranges)


def _between(storage: RangeStorage, info: RangeInfo, changes: RecordColumns, base_id: str) -> Iterator[RecordColumns]:
    """Return the records of a range between the first and the last change."""
    first, last = changes.keys[0].as_py(), changes.keys[-1].as_py()
    if last < info.min_key:
        return iter(())
    return storage.range_records(info, first, last + b"\0", metarange=base_id)


def _changed(base: Iterable[RecordColumns], changes: RecordColumns) -> Iterator[DiffColumns]:
    for old, new in together(EMPTY_COLUMNS, base, (changes,)):
        both = aligned(old.keys, new.keys)
        deleted = np.zeros(both.rows[0].size, dtype=np.bool_)
        deleted[both.has(1)] = tombstones(new)
        found = _differing(old, new, both, deleted)
        if len(found):
            yield found


def _differing(
    old: RecordColumns, new: RecordColumns, both: Aligned, deleted: npt.NDArray[np.bool_] | None
) -> DiffColumns:
    """The keys of both that differ. `deleted`: new has a tombstone; its keys alone are regarded then. None: all are."""
    old_rows, new_rows = both.rows
    has_old, has_new = both.has(0), both.has(1)
    if deleted is not None:
        removed, has_new = has_old & deleted, has_new & ~deleted
    else:
        removed = has_old & ~has_new
    added, common = has_new & ~has_old, has_new & has_old
    same = same_identities(old, np.where(common, old_rows, ABSENT), new, new_rows)
    changed = common & ~same
    kinds = np.zeros(old_rows.size, dtype=np.uint8)
    for kind, where in ((DiffKind.ADDED, added), (DiffKind.CHANGED, changed), (DiffKind.REMOVED, removed)):
        kinds[where] = kind
    rows = np.flatnonzero(kinds)
    left_rows = np.where(has_old, old_rows, ABSENT)[rows]
    right_rows = np.where(has_new, new_rows, ABSENT)[rows]
    keys = pa.concat_arrays([old.keys, new.keys]).take(
        pa.array(np.where(left_rows != ABSENT, left_rows, new_rows[rows] + len(old)))
    )
    return DiffColumns(keys, kinds[rows], _values(old, left_rows), _values(new, right_rows))


def _values(records: RecordColumns, rows: I64) -> Any:
    """The values of these rows, b"" for `ABSENT`."""
    last = len(records)
    return pa.concat_arrays([records.values, _ABSENT_VALUE]).take(pa.array(np.where(rows == ABSENT, last, rows)))


# Three-way merge of trees: what source and destination made of their common base, in one tree.
#
# docs/design/staging.md#merge.

SHOWN_CONFLICTS: Final = 10
"""So many keys an error names."""

Ranges = tuple[RangeInfo, ...]


class MergeStrategy(StrEnum):
    """The side that wins where both changed a key differently; without one that is an error."""

    NONE = ""
    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


@dataclass(frozen=True, slots=True)
class MergedTree:
    """The tree of a merge. `written`: its ranges that neither side has, `reused`: how many ranges are a side's."""

    metarange_id: str
    written: Ranges
    reused: int


def merge(
    storage: RangeStorage,
    base_id: str,
    source_id: str,
    destination_id: str,
    strategy: MergeStrategy = MergeStrategy.NONE,
) -> MergedTree:
    """Bring what the source changed since the base to the destination.

    NoChangesError when the source is the base; MergeConflictError when both changed a key differently and there is no
    strategy, no tree is written then; and what `storage` raises.
    """
    if source_id == base_id:
        raise NoChangesError("the source has no changes since the base of the merge: nothing was written")
    if base_id == destination_id:
        return MergedTree(source_id, (), sum(1 for _ in storage.ranges(source_id)))
    if source_id == destination_id:
        return MergedTree(destination_id, (), sum(1 for _ in storage.ranges(destination_id)))
    tree = write_records(storage, _items(storage, _Trees(base_id, source_id, destination_id), strategy))
    return MergedTree(storage.write_metarange(tree.every), tree.written, tree.reused)


@dataclass(frozen=True, slots=True)
class _Trees:
    base: str
    source: str
    destination: str


def _items(
    storage: RangeStorage, trees: _Trees, strategy: MergeStrategy
) -> Iterator[RangeInfo | Iterator[RecordColumns]]:
    """Ranges of either side where the whole decides, and records where every key does."""
    base = _Window(storage.ranges(trees.base))
    for source, destination in overlapping(storage.ranges(trees.source), storage.ranges(trees.destination)):
        both = source + destination
        first, last = min(item.min_key for item in both), max(item.max_key for item in both)
        before = base.between(first, last)
        decided = _whole(before, source, destination)
        if decided is not None:
            yield from decided
            continue
        pieces = together(
            EMPTY_COLUMNS,
            records_of(storage, before, trees.base, first, last + b"\0"),
            records_of(storage, source, trees.source),
            records_of(storage, destination, trees.destination),
        )
        yield (merge_records(old, ours, theirs, strategy) for old, ours, theirs in pieces)


def _whole(base: Ranges, source: Ranges, destination: Ranges) -> Ranges | None:
    """The ranges that a merge has where one side left them as they were, or both made the same of them."""
    before, ours, theirs = ([item.id for item in ranges] for ranges in (base, source, destination))
    if ours in (theirs, before):
        return destination
    if theirs == before:
        return source
    return None


def merge_records(
    base: RecordColumns, source: RecordColumns, destination: RecordColumns, strategy: MergeStrategy
) -> RecordColumns:
    """The same key by key; a key is in all of the three that have it. MergeConflictError as `merge`."""
    every = aligned(base.keys, source.keys, destination.keys)
    in_base, in_source, in_destination = (every.has(side) for side in range(3))
    base_rows, source_rows, destination_rows = every.rows
    agree = same_identities(source, source_rows, destination, destination_rows) | ~(in_source | in_destination)
    source_kept = same_identities(base, base_rows, source, source_rows) | ~(in_base | in_source)
    destination_kept = same_identities(base, base_rows, destination, destination_rows) | ~(in_base | in_destination)
    conflicts = ~agree & ~source_kept & ~destination_kept
    if strategy is MergeStrategy.NONE and conflicts.any():
        raise MergeConflictError(_first_keys(every, conflicts, source, destination))
    from_source = agree | destination_kept
    if strategy is MergeStrategy.SOURCE_WINS:
        from_source |= conflicts
    rows = np.where(from_source, source_rows, ABSENT), np.where(~from_source, destination_rows, ABSENT)
    return chosen((source, destination), rows)


def _first_keys(
    every: Aligned, conflicts: Mask, source: RecordColumns, destination: RecordColumns
) -> tuple[bytes, ...]:
    """The first keys in conflict; at least one side has each."""
    _, source_rows, destination_rows = every.rows
    rows = np.where(every.has(1), source_rows, destination_rows + len(source))
    keys = pa.concat_arrays([source.keys, destination.keys])
    return tuple(keys.take(pa.array(rows[conflicts][:SHOWN_CONFLICTS])).to_pylist())


class _Window:
    """Ranges of the base, for one stretch of keys after the other."""

    def __init__(self, ranges: Iterator[RangeInfo]) -> None:
        self._ranges = ranges
        self._held: list[RangeInfo] = []

    def between(self, first: bytes, last: bytes) -> Ranges:
        """Those that may have keys from `first` to `last`; what lies before `first` is behind."""
        self._held = [item for item in self._held if item.max_key >= first]
        while not self._held or self._held[-1].min_key <= last:
            info = next(self._ranges, None)
            if info is None:
                break
            if info.max_key >= first:
                self._held.append(info)
        return tuple(item for item in self._held if item.min_key <= last)
