"""Values of fixed width as unsigned 64-bit words: whole numbers, floats, truth, times, decimals.

Equal values are equal words, whatever their width or unit; different ones of a column are different words, but for
decimals of more than 64 bits and times that nanoseconds of 64 bits do not hold, which are sums of several.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
