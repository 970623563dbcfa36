"""Batches of several streams, brought together by their keys, and the fingerprint of their records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from compaction.staging.errors import RangeRecordError
from compaction.staging.format.columns import (
    EMPTY_COLUMNS,
    I64,
    RecordColumns,
    concatenated,
    content_of,
    lengths_of,
    rows_where,
)
from compaction.staging.format.identity import identities_of

# A fingerprint of records, to prove what was written (docs/design/staging.md#applying-changes).

_SEED: Final = b"records"


class ContentFingerprint:
    """XXH3 (128 bits) of keys, values and their lengths, in order; how they are cut into batches makes no difference.

    Each of the four columns is hashed by itself, as it lies in memory.
    """

    def __init__(self) -> None:
        self.records = 0
        self._columns = tuple(xxhash.xxh3_128() for _ in range(4))

    def add(self, records: RecordColumns) -> None:
        """The next records."""
        self.records += len(records)
        for column, array in zip((0, 2), (records.keys, records.values), strict=True):
            self._columns[column].update(lengths_of(array).astype("<i8").tobytes())
            self._columns[column + 1].update(content_of(array))

    def text(self) -> str:
        """The number of records and the hash: `<records>:<hex>`."""
        digests = b"".join(column.digest() for column in self._columns)
        return f"{self.records}:{xxhash.xxh3_128_hexdigest(_SEED + digests)}"


def fingerprint(batches: Iterable[RecordColumns]) -> str:
    """The fingerprint of these records."""
    content = ContentFingerprint()
    for batch in batches:
        content.add(batch)
    return content.text()


# Batches in order from several streams, brought together by their keys; by the column.
#
# Streams advance together: in each step one of them gives all of its batch, the others what does not lie behind it.
# So memory is one batch of each, and a key is in one step only.

Mask = npt.NDArray[np.bool_]
ABSENT: Final = -1


class Keyed(Protocol):
    """Rows in strictly ascending order of their keys."""

    @property
    def keys(self) -> Any: ...

    def __len__(self) -> int: ...

    def slice(self, begin: int, end: int) -> Self: ...


K = TypeVar("K", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Aligned:
    """The different keys of several arrays, in order: `rows[n]` says for each where array n has it, or `ABSENT`."""

    rows: tuple[I64, ...]

    def has(self, side: int) -> Mask:
        """Return the mask of the keys that array `side` has."""
        found: Mask = self.rows[side] != ABSENT
        return found


def aligned(*arrays: Any) -> Aligned:
    """Align arrays of keys, each strictly ascending."""
    sizes = [len(array) for array in arrays]
    ends = np.cumsum(sizes)
    filled = [side for side, size in enumerate(sizes) if size]
    if len(filled) < 2:
        nothing = np.full(sum(sizes), ABSENT, dtype=np.int64)
        return Aligned(tuple(np.arange(size) if size else nothing for size in sizes))
    every = pa.concat_arrays(arrays)
    # Stable, and quick because there are only as many runs as arrays.
    order = pc.sort_indices(every).to_numpy().astype(np.int64)
    ordered = every.take(pa.array(order))
    first = np.ones(order.size, dtype=np.bool_)
    first[1:] = ~_flags(pc.equal(ordered.slice(0, order.size - 1), ordered.slice(1)))
    numbers = np.cumsum(first) - 1
    rows = []
    for size, end in zip(sizes, ends.tolist(), strict=True):
        mine = (order >= end - size) & (order < end)
        row = np.full(int(numbers[-1]) + 1, ABSENT, dtype=np.int64)
        row[numbers[mine]] = order[mine] - (end - size)
        rows.append(row)
    return Aligned(tuple(rows))


def same_identities(columns: RecordColumns, one_rows: I64, other: RecordColumns, other_rows: I64) -> Mask:
    """Return whether the values in these rows, pair by pair, have the same identity; false where one of them is
    `ABSENT`.
    """
    same = np.zeros(one_rows.size, dtype=np.bool_)
    both = np.flatnonzero((one_rows != ABSENT) & (other_rows != ABSENT))
    if not both.size:
        return same
    left, right = taken(columns, one_rows[both]), taken(other, other_rows[both])
    alike = _flags(pc.equal(left.values, right.values))
    if not alike.all():
        left, right = rows_where(left, ~alike), rows_where(right, ~alike)
        alike[~alike] = _flags(pc.equal(identities_of(left), identities_of(right)))
    same[both] = alike
    return same


def taken(records: RecordColumns, rows: I64) -> RecordColumns:
    """These rows, copied."""
    if rows.size == len(records) and (rows.size == 0 or (rows[0] == 0 and (np.diff(rows) == 1).all())):
        return records
    places = pa.array(rows)
    return RecordColumns(records.keys.take(places), records.values.take(places))


def chosen(sides: Sequence[RecordColumns], rows: Sequence[I64]) -> RecordColumns:
    """For each key the record of the one side whose row is not `ABSENT`; no record where all are."""
    places = np.full(rows[0].size, ABSENT, dtype=np.int64)
    begin = 0
    for side, row in zip(sides, rows, strict=True):
        places = np.where(row != ABSENT, row + begin, places)
        begin += len(side)
    return taken(concatenated([side for side in sides if len(side)]), places[places != ABSENT])


def together(nothing: K, *streams: Iterable[K]) -> Iterator[tuple[K, ...]]:
    """Yield the rows of several streams, piece by piece: the rows of each up to a key; `nothing` for none.

    A key that several streams have is in the same piece of all. Rows of each stream are in order; no piece is empty.
    """
    sources = [(batch for batch in stream if len(batch)) for stream in streams]
    heads: list[K | None] = [next(source, None) for source in sources]
    while True:
        held = [head for head in heads if head is not None]
        if not held:
            return
        bound = min(head.keys[-1].as_py() for head in held)
        piece = []
        for side, head in enumerate(heads):
            end = first_after(head.keys, bound) if head is not None else 0
            piece.append(head.slice(0, end) if head is not None and end else nothing)
            if head is not None and end == len(head):
                # The next batch is read when this piece was used up: one less is in memory meanwhile.
                heads[side] = None
            elif head is not None:
                heads[side] = head.slice(end, len(head))
        yield tuple(piece)
        for side, head in enumerate(heads):
            heads[side] = next(sources[side], None) if head is None else head


def first_after(keys: Any, key: bytes) -> int:
    """The number of the first key, of keys in order, that is greater than `key`."""
    low, high = 0, len(keys)
    if high and keys[high - 1].as_py() <= key:
        return high
    while low < high:
        middle = (low + high) // 2
        if keys[middle].as_py() <= key:
            low = middle + 1
        else:
            high = middle
    return low


class Upcoming:
    """Changes in order, taken up to one key after the other."""

    def __init__(self, batches: Iterable[RecordColumns]) -> None:
        self._batches = iter(batches)
        self._held = EMPTY_COLUMNS
        self._last: bytes | None = None

    def first(self) -> bytes | None:
        """The next key; None at the end. RangeRecordError when keys do not ascend."""
        while not len(self._held):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._held = self._checked(batch)
        key: bytes = self._held.keys[0].as_py()
        return key

    def until(self, key: bytes | None) -> Iterator[RecordColumns]:
        """The changes up to and with this key (None: all), which are then behind. Use up the iterator."""
        while self.first() is not None:
            end = len(self._held) if key is None else first_after(self._held.keys, key)
            if not end:
                return
            batch, self._held = self._held.slice(0, end), self._held.slice(end, len(self._held))
            yield batch

    def _checked(self, batch: RecordColumns) -> RecordColumns:
        count = len(batch)
        if not count:
            return batch
        ascends = _flags(pc.less(batch.keys.slice(0, count - 1), batch.keys.slice(1)))
        if not ascends.all():
            raise _unordered(batch.keys[int(np.argmin(ascends)) + 1].as_py())
        if self._last is not None and batch.keys[0].as_py() <= self._last:
            raise _unordered(batch.keys[0].as_py())
        self._last = batch.keys[-1].as_py()
        return batch


def _unordered(key: bytes) -> RangeRecordError:
    return RangeRecordError(key, "its key is not greater than the one before it")


def _flags(array: Any) -> Mask:
    flags: Mask = array.to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags
