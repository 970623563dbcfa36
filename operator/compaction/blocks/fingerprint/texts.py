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
Places = npt.NDArray[np.int64]

SHORT: Final = 320
_WORD: Final = 8
_FIRST: Final = np.uint64(0x9E3779B185EBCA87)
_BLOCK: Final = 1 << 14
"""Values at a time: their words stay in a core's cache."""
_BITS: Final = np.uint64(64)
_HALF: Final = np.uint64(32)
_FULL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_KEEP: Final = np.array([(1 << (8 * n)) - 1 for n in range(_WORD)] + [int(_FULL)], dtype=np.uint64)
"""Which bits of a word belong to its first 0..8 bytes."""


def text_hashes(array: pa.Array[Any]) -> Words:
    """A word per value, not mixed at its end; anything for nulls. Takes strings, binaries, their large and view forms,
    and fixed size.
    """
    starts, lengths, data = _layout(array)
    words = lengths.view(np.uint64) * _FIRST
    short = lengths <= SHORT
    rows = np.flatnonzero((lengths > 0) & short)
    if len(rows) == len(words) > 0:
        return _short_hashes(words, starts=starts, lengths=lengths, data=data)
    if len(rows):
        words[rows] = _short_hashes(words[rows], starts=starts[rows], lengths=lengths[rows], data=data)
    for row in np.flatnonzero(~short):
        words[row] = xxhash.xxh3_64_intdigest(data[starts[row] : starts[row] + lengths[row]].data)
    return words


def _short_hashes(x: Words, *, starts: Places, lengths: Places, data: npt.NDArray[np.uint8]) -> Words:
    """Take one word after the other of all values that still have one; each has at least one. Changes `x`.

    The longest come first, so those that still have a word are always the first ones.
    """
    counts = (lengths + (_WORD - 1)) >> 3
    most = int(counts.max())
    if most == 1:
        anywhere: Words = np.ndarray(shape=(len(data) - _WORD + 1,), dtype="<u8", buffer=data, strides=(1,))
        _mix_in(x, anywhere[starts] & _KEEP.take(lengths), np.empty_like(x))
        return x
    order = None
    if int(counts.min()) != most:
        order = np.argsort((most - counts).astype(np.uint16), kind="stable")
        x, starts, lengths, counts = x[order], starts[order], lengths[order], counts[order]
    words = data.view(np.uint64)
    for begin in range(0, len(x), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        _take_words(x[block], words, starts=starts[block], lengths=lengths[block], counts=counts[block])
    if order is None:
        return x
    placed = np.empty_like(x)
    placed[order] = x
    return placed


def _take_words(x: Words, words: Words, *, starts: Places, lengths: Places, counts: Places) -> None:
    """A word is made of the two aligned ones that it lies in: to gather unaligned ones costs more than all the rest."""
    having = len(counts) - np.searchsorted(counts[::-1], np.arange(counts[0] + 1), side="right")
    place, shift = starts >> 3, ((starts & 7) << 3).view(np.uint64)
    back, last = _BITS - shift, _KEEP.take(lengths - ((counts - 1) << 3))
    low, high, word = words.take(place), np.empty_like(x), np.empty_like(x)
    many = len(x)
    for turn in range(1, counts[0] + 1):
        words[turn:].take(place, out=high, mode="clip")  # behind the last word nothing is needed
        np.right_shift(low, shift, out=word)
        np.left_shift(high, back, out=low)
        word |= low
        more = int(having[turn])
        if more < many:
            word[more:] &= last[more:many]
        _mix_in(x, word, low)
        low, high = high, low
        if more < many:
            many = more
            x, place, shift, back = x[:many], place[:many], shift[:many], back[:many]
            low, high, word = low[:many], high[:many], word[:many]


def _mix_in(x: Words, word: Words, scratch: Words) -> None:
    """One more word of each value. It is folded before it is multiplied: so no change stays in the highest bits, where
    one of the next word could undo it.
    """
    x ^= word
    np.right_shift(x, _HALF, out=scratch)
    x ^= scratch
    x *= _FIRST


def _layout(array: pa.Array[Any]) -> tuple[Places, Places, npt.NDArray[np.uint8]]:
    """Where each value starts, how long it is, and the bytes: whole words, one of them behind the last value."""
    kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
        kind = array.type
    count = len(array)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        offsets = (np.arange(count + 1, dtype=np.int64) + array.offset) * width
        buffer = array.buffers()[1]
    else:
        large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        width = 8 if large else 4
        found = np.frombuffer(array.buffers()[1], f"<i{width}", count=count + 1, offset=array.offset * width)
        offsets = found.astype(np.int64)
        buffer = array.buffers()[2]
    begin, end = int(offsets[0]) // _WORD * _WORD, int(offsets[-1])
    starts, lengths = offsets[:-1] - begin, np.diff(offsets)
    if buffer is None or end == int(offsets[0]):
        return starts, lengths, np.zeros(_WORD, np.uint8)
    size = (-(-(end - begin) // _WORD) + 1) * _WORD
    if buffer.size >= begin + size:
        return starts, lengths, np.frombuffer(buffer, np.uint8, count=size, offset=begin)
    data = np.zeros(size, np.uint8)
    data[: end - begin] = np.frombuffer(buffer, np.uint8, count=end - begin, offset=begin)
    return starts, lengths, data
