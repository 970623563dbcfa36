"""Values as unsigned 64-bit words: numbers, times and decimals, texts and bytes of any length."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

# Values of fixed width as unsigned 64-bit words: whole numbers, floats, truth, times, decimals.
#
# Equal values are equal words, whatever their width or unit; different ones of a column are different words, but for
# decimals of more than 64 bits and times that nanoseconds of 64 bits do not hold, which are sums of several.

Words = npt.NDArray[np.uint64]

MIX: Final = np.uint64(0x9FB21C651E98DF25)
"""Multiplier of the mix (odd; of xxh3's rrmxmx)."""
_HIGH: Final = np.uint64(32)
_LOW: Final = np.uint64(29)
_TOP: Final = np.uint64(1 << 63)
_NAN: Final = np.uint64(0x7FF8000000000000)
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_MILLISECONDS: Final = 86_400_000


def mix(words: Words) -> Words:
    """Each word spread over all 64 bits, in place; different words stay different."""
    return mix_into(words, np.empty_like(words))


def mix_into(words: Words, spare: Words) -> Words:
    """The same; `spare`: as many words, for use here."""
    np.right_shift(words, _HIGH, out=spare)
    words ^= spare
    words *= MIX
    np.right_shift(words, _LOW, out=spare)
    words ^= spare
    return words


def number_words(array: pa.Array[Any], factor: np.uint64) -> Words:
    """Values of one word as that word: numbers, times, truth; times `factor`. A copy."""
    kind = array.type
    if pa.types.is_boolean(kind):
        words = bits_of(array.buffers()[1], array.offset, len(array)).astype(np.uint64)
    elif pa.types.is_floating(kind):
        words = _float_words(array)
    elif pa.types.is_date64(kind):
        words = (_values(array, np.dtype("<i8")) // _DAY_MILLISECONDS).view(np.uint64)
    else:
        words = _whole_words(array)
        scale = _NANOSECONDS.get(getattr(kind, "unit", "ns"), 1)
        if scale > 1:
            return _scaled(words.view(np.int64), scale, factor)
    return words * factor


def _scaled(values: npt.NDArray[np.int64], scale: int, factor: np.uint64) -> Words:
    """Times in nanoseconds, times `factor`. What 64 bits do not hold (9999-12-31 in microseconds) counts as a second
    word, or it were one with the nanoseconds that it becomes by overflow.
    """
    words = values.view(np.uint64) * np.uint64(scale * int(factor) % (1 << 64))
    most = (1 << 63) // scale
    if len(values) and (int(values.max()) >= most or int(values.min()) <= -most):
        half = np.int64(32)
        above = (values >> half) * scale + ((values & np.int64(0xFFFFFFFF)) * scale >> half) >> half
        sign = (values.view(np.uint64) * np.uint64(scale)).view(np.int64) >> np.int64(63)
        beyond = (above ^ sign).view(np.uint64)
        words += mix(beyond) * np.uint64(int(MIX) * int(factor) % (1 << 64))
    return words


def _whole_words(array: pa.Array[Any]) -> Words:
    """Integers, and times in their unit; the memory of the array itself when that says it."""
    width = np.dtype(f"<{'u' if pa.types.is_unsigned_integer(array.type) else 'i'}{array.type.byte_width}")
    values = _values(array, width)
    if width.kind == "i":
        return values.astype(np.int64, copy=False).view(np.uint64)
    words: Words = values.astype(np.uint64, copy=False)
    if width.itemsize == 8 and len(words) and words.max() >= _TOP:
        words = words.copy()  # otherwise 2^64 - 1 were -1
        words[words >= _TOP] *= MIX
    return words


def _float_words(array: pa.Array[Any]) -> Words:
    with np.errstate(invalid="ignore"):
        # A widened NaN may come as another NaN.
        values = _values(array, np.dtype(f"<f{array.type.byte_width}")).astype(np.float64, copy=False)
    words: Words = values.view(np.uint64)
    missing = np.isnan(values)
    if bool(missing.any()):
        words = words.copy()
        words[missing] = _NAN
    return words


def decimal_words(array: pa.Array[Any]) -> Words:
    """Two's complement, lowest word first. A word that only repeats the sign of the one below it counts for nothing."""
    size = array.type.byte_width
    if size < 8:
        return _values(array, np.dtype(f"<i{size}")).astype(np.int64).view(np.uint64)
    table = _values(array, np.dtype(f"({size // 8},)<u8")).reshape(len(array), size // 8)
    total = table[:, 0].copy()
    for position in range(1, size // 8):
        sign = (table[:, position - 1].view(np.int64) >> np.int64(63)).view(np.uint64)
        total += mix(table[:, position] ^ sign) * np.uint64(MIX + np.uint64(2 * position))
    return total


def _values(array: pa.Array[Any], width: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values buffer of a fixed-width array, as it lies in memory: no copy, anything under nulls."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(0, width)
    return np.frombuffer(buffer, width, count=len(array), offset=array.offset * width.itemsize)


def bits_of(buffer: pa.Buffer | None, offset: int, length: int) -> npt.NDArray[np.uint8]:
    """`length` bits from `offset` on, a byte each; zeros where there is no buffer."""
    if buffer is None:
        return np.zeros(length, np.uint8)
    first, skip = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8, count=(skip + length + 7) // 8, offset=first)
    return np.unpackbits(packed, count=skip + length, bitorder="little")[skip:]


# Hashes of texts and bytes of any length, many at once.
#
# Up to `SHORT` bytes: eight bytes at a time for all values together, with numpy. Longer ones one by one with xxh3.
# Which way is taken depends on the value's length only, so equal values are always hashed in the same way.

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
    """Return the start of each value, its length, and the bytes: whole words, one of them behind the last value."""
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
    # Arrow pads its buffers, so the word behind the last value is mostly there, and nothing is copied.
    if buffer.size >= begin + size:
        return starts, lengths, np.frombuffer(buffer, np.uint8, count=size, offset=begin)
    data = np.zeros(size, np.uint8)
    data[: end - begin] = np.frombuffer(buffer, np.uint8, count=end - begin, offset=begin)
    return starts, lengths, data
