"""Hashes of texts and bytes of any length, many at once.

Up to `SHORT` bytes: eight bytes at a time for all values together, with numpy. Longer ones one by one with xxh3. Which
way is taken depends on the value's length only, so equal values are always hashed in the same way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Words = npt.NDArray[np.uint64]

SHORT: Final = 320
_WORD: Final = 8
_FIRST: Final = np.uint64(0x9E3779B185EBCA87)
_SECOND: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT_FIRST: Final = np.uint64(32)
_SHIFT_SECOND: Final = np.uint64(29)
_FULL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_KEEP: Final = np.array([(1 << (8 * n)) - 1 for n in range(_WORD)] + [int(_FULL)], dtype=np.uint64)
"""Which bits of a word belong to its first 0..8 bytes."""


def text_lanes(array: pa.Array[Any]) -> tuple[Words, Words]:
    """Two words per value; anything for nulls. Takes strings, binaries, their large and view forms, and fixed size."""
    starts, lengths, data = _layout(array)
    a = lengths.view(np.uint64) * _FIRST
    b = lengths.view(np.uint64) * _SECOND
    short = lengths <= SHORT
    rows = np.flatnonzero((lengths > 0) & short)
    _hash_short(a, b, rows=rows, starts=starts, lengths=lengths, data=data)
    for row in np.flatnonzero(~short):
        digest = xxhash.xxh3_128_intdigest(data[starts[row] : starts[row] + lengths[row]].data)
        a[row] = digest >> 64
        b[row] = digest & int(_FULL)
    return a, b


def _hash_short(
    a: Words,
    b: Words,
    *,
    rows: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
) -> None:
    """Take one word after the other of all rows that still have one."""
    if len(rows) == 0:
        return
    # Every place of the data as the beginning of a word: the last ones need bytes behind the end.
    words: Words = np.ndarray(shape=(len(data) - _WORD + 1,), dtype="<u8", buffer=data, strides=(1,))
    place, left = starts[rows], lengths[rows]
    x, y = a[rows], b[rows]
    whole = len(rows) == len(a)
    while True:
        word = words[place]
        word &= _KEEP.take(left, mode="clip")
        x ^= word
        x *= _FIRST
        x ^= x >> _SHIFT_FIRST
        y += word
        y *= _SECOND
        y ^= y >> _SHIFT_SECOND
        more = left > _WORD
        if bool(more.all()):
            place = place + _WORD
            left = left - _WORD
            continue
        done = ~more
        if whole and not more.any():
            a[:], b[:] = x, y
            return
        a[rows[done]], b[rows[done]] = x[done], y[done]
        rows, place, left, x, y = rows[more], place[more] + _WORD, left[more] - _WORD, x[more], y[more]
        whole = False
        if len(rows) == 0:
            return


def _layout(
    array: pa.Array[Any],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Where each value starts, how long it is, and the bytes, with at least one word behind the last value."""
    kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
        kind = array.type
    count = len(array)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        starts = np.arange(count, dtype=np.int64) * width
        lengths = np.full(count, width, dtype=np.int64)
        begin, end, buffer = array.offset * width, (array.offset + count) * width, array.buffers()[1]
    else:
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        width = 8 if large else 4
        offsets = np.frombuffer(array.buffers()[1], f"<i{width}", count=count + 1, offset=array.offset * width).astype(
            np.int64
        )
        begin, end, buffer = int(offsets[0]), int(offsets[-1]), array.buffers()[2]
        starts = offsets[:-1] - begin
        lengths = np.diff(offsets)
    if buffer is None or end == begin:
        return starts, lengths, np.zeros(_WORD, np.uint8)
    if buffer.size >= end + _WORD:
        return starts, lengths, np.frombuffer(buffer, np.uint8, count=end - begin + _WORD, offset=begin)
    data = np.zeros(end - begin + _WORD, np.uint8)
    data[: end - begin] = np.frombuffer(buffer, np.uint8, count=end - begin, offset=begin)
    return starts, lengths, data
