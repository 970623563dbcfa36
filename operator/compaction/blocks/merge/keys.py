"""The order of rows as one number each: sorting, cutting and comparing then are operations on uint64 arrays.

The order: column by column of the sort key, ascending; strings and binaries by their bytes, -0.0 equal to 0.0, NaN
after all numbers, null after everything (Arrow's order, and what `sorting_columns` with nulls last means). The numbers
mean something only within one call of `key_numbers`; equal rows have equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compaction.blocks.merge.columns import Columns, Words

_SIGNED: Final = {32: pa.int32(), 64: pa.int64()}
_WORD_BITS: Final = 64
_RUN_ROWS: Final = 256
"""Rows that ascending runs have on average when merging them is worth it."""
_STRETCH_ROWS: Final = 1 << 16


class _Word(NamedTuple):
    """One part of the key, from 0 to less than 2^bits; a key is a list of them, the most significant first.

    The values are in an array of its own, to be changed.
    """

    values: Words
    bits: int


def key_numbers(columns: Columns, key: Sequence[pa.Array]) -> Words:
    """A number for each row, at least one; `key` are the columns of the sort key, in order."""
    if not key:
        raise ValueError("a sort key has at least one column")
    words: list[_Word] = []
    for place, array in zip(columns.keys, key, strict=True):
        words += (word for word in _words(columns, place, array) if word.bits)
    if not words:
        return np.zeros(len(key[0]), np.uint64)
    if sum(word.bits for word in words) > _WORD_BITS:
        return _dense([word.values for word in words])
    numbers = words[0].values
    for word in words[1:]:
        numbers <<= np.uint64(word.bits)
        numbers |= word.values
    return numbers


def _words(columns: Columns, place: int, array: pa.Array) -> list[_Word]:
    kind = array.type
    if pa.types.is_null(kind):
        return []
    if columns.is_coded(place, array):
        ranks = columns.memos[place].ranks()
        if array.null_count == len(array):
            return []
        if not array.null_count:
            return [_from_zero(ranks.take(array.to_numpy()))]
        return _nulls_last(array, ranks.take(array.fill_null(0).to_numpy()))
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        if pa.types.is_temporal(kind):
            array = array.view(_SIGNED[kind.bit_width])
        if not array.null_count:
            return [_from_zero(array.to_numpy())]
        return _nulls_last(array, array.fill_null(0).to_numpy())
    return [_from_zero(pc.rank(array, tiebreaker="dense").to_numpy())]


def _nulls_last(array: pa.Array, values: npt.NDArray[np.generic]) -> list[_Word]:
    """A word that says which are null, and one of the values; what stands at a null counts nothing."""
    null = array.is_null().to_numpy(zero_copy_only=False)
    flag = _Word(null.astype(np.uint64), 1)
    if null.all():
        return []
    return [flag, _from_zero(np.where(null, values[~null][0], values))]


def _from_zero(values: npt.NDArray[np.generic]) -> _Word:
    """The distances from the smallest; they fit 64 bits for any type of integer, by arithmetic modulo 2^64."""
    least, most = int(values.min()), int(values.max())
    wide: npt.NDArray[np.generic] = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64, copy=False)
    words: Words = wide.view(np.uint64)
    return _Word(words - np.uint64(least % (1 << _WORD_BITS)), (most - least).bit_length())


def _dense(words: list[Words]) -> Words:
    """The key's place among the distinct keys: for keys that do not fit one number. Costs a sort."""
    order = np.lexsort(words[::-1])
    new = np.zeros(len(order), bool)
    for word in words:
        in_order = word[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    numbers = np.empty(len(order), np.uint64)
    numbers[order] = np.cumsum(new).astype(np.uint64)
    return numbers


def sorting_order(numbers: Words) -> npt.NDArray[np.int64]:
    """The order that sorts the numbers, stable.

    Number and position share a word, which is then sorted by value: several times as fast as an argsort. Where both do
    not fit, the lowest bits of the number are left out and a second, stable pass over what is nearly sorted corrects
    it. What comes as a few ascending runs, as a round does, is merged rather than sorted: a third of the time. All in
    place: these words and the numbers are the largest arrays of a merge that no memory pool counts.
    """
    count = len(numbers)
    if count < 2:
        return np.zeros(count, np.int64)
    descents = np.count_nonzero(numbers[1:] < numbers[:-1])
    least = numbers.min()
    place_bits = (count - 1).bit_length()
    too_many = max(0, int(numbers.max() - least).bit_length() + place_bits - _WORD_BITS)
    packed = numbers - least
    packed >>= np.uint64(too_many)
    packed <<= np.uint64(place_bits)
    for start in range(0, count, _STRETCH_ROWS):
        some = packed[start : start + _STRETCH_ROWS]
        some |= np.arange(start, start + len(some), dtype=np.uint64)
    packed.sort(kind="stable" if descents * _RUN_ROWS < count else None)
    packed &= np.uint64((1 << place_bits) - 1)
    order: npt.NDArray[np.int64] = packed.view(np.int64)
    if too_many:
        rough = numbers[order]
        if np.any(rough[1:] < rough[:-1]):
            order = order[np.argsort(rough, kind="stable")]
    return order
