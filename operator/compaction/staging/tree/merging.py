"""Three-way merge of trees: what source and destination made of their common base, in one tree.

docs/design/staging.md#merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa

from compaction.staging.errors import MergeConflictError, NoChangesError
from compaction.staging.format.columns import EMPTY_COLUMNS, RecordColumns
from compaction.staging.format.ranges import RangeInfo
from compaction.staging.tree.aligning import ABSENT, Aligned, Mask, aligned, chosen, same_identities, together
from compaction.staging.tree.applying import write_records
from compaction.staging.tree.diffing import records_of
from compaction.staging.tree.storage import RangeStorage
from compaction.staging.tree.stretches import overlapping

SHOWN_CONFLICTS: Final = 10
"""So many keys an error names."""

Ranges = tuple[RangeInfo, ...]


class MergeStrategy(StrEnum):
    """Which side wins where both changed a key differently; without one that is an error."""

    NONE = ""
    SOURCE_WINS = "source-wins"
    DEST_WINS = "dest-wins"


@dataclass(frozen=True, slots=True)
class Merged:
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
) -> Merged:
    """Bring what the source changed since the base to the destination.

    NoChangesError when the source is the base; MergeConflictError when both changed a key differently and there is no
    strategy, no tree is written then; and what `storage` raises.
    """
    if source_id == base_id:
        raise NoChangesError("the source has no changes since the base of the merge: nothing was written")
    if base_id == destination_id:
        return Merged(source_id, (), sum(1 for _ in storage.ranges(source_id)))
    if source_id == destination_id:
        return Merged(destination_id, (), sum(1 for _ in storage.ranges(destination_id)))
    tree = write_records(storage, _items(storage, _Trees(base_id, source_id, destination_id), strategy))
    return Merged(storage.write_metarange(tree.every), tree.written, tree.reused)


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
        first, last = min(one.min_key for one in both), max(one.max_key for one in both)
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
    before, ours, theirs = ([one.id for one in ranges] for ranges in (base, source, destination))
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
        self._held = [one for one in self._held if one.max_key >= first]
        while not self._held or self._held[-1].min_key <= last:
            info = next(self._ranges, None)
            if info is None:
                break
            if info.max_key >= first:
                self._held.append(info)
        return tuple(one for one in self._held if one.min_key <= last)
