"""Variable-length integers: seven bits in a byte, the lowest first, the eighth set where another byte follows.

One at a time for the small parts of a file, by the column for records (docs/design/staging.md#blocks).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from compaction.staging.format.columns import I64, U8, binary_array

LONGEST32: Final = 5
"""Bytes of a number of 32 bits, the most that a block's lengths have."""


def encode_varint(value: int) -> bytes:
    """`value` (0 or more) in as few bytes as it takes."""
    return _SHORT[value] if value < len(_SHORT) else _encoded(value)


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT: Final = tuple(map(_encoded, range(1 << 14)))
"""Those of one and two bytes, of which an index is full."""


def decode_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends. IndexError when `data` ends before; ValueError above 64 bits."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    if value >> 64:
        raise ValueError("a number of more than 64 bits")
    return value, at


def varint_lengths(values: I64) -> I64:
    """How many bytes each takes, for numbers below 2^35."""
    lengths = np.ones(values.size, dtype=np.int64)
    top = int(values.max(initial=0))
    for bits in (7, 14, 21, 28):
        if not top >> bits:
            break
        lengths += values >= 1 << bits
    return lengths


def encode_varints(*columns: I64) -> Any:
    """Of each row the numbers of all columns, one after the other, as a large_binary array. Numbers below 2^35."""
    rows = columns[0].size
    widths = [max(1, -(-int(column.max(initial=0)).bit_length() // 7)) for column in columns]
    matrix = np.zeros((rows, sum(widths)), dtype=np.uint8)
    used = np.zeros(matrix.shape, dtype=np.bool_)
    lengths = np.zeros(rows + 1, dtype=np.int64)
    at = 0
    for column, width in zip(columns, widths, strict=True):
        for byte in range(width):
            high = column >> (7 * byte)
            follows = high > 127
            matrix[:, at] = (high & 127) | (follows.astype(np.int64) << 7)
            present = high > 0 if byte else np.ones(rows, dtype=np.bool_)
            used[:, at] = present
            lengths[1:] += present
            at += 1
    return binary_array(np.cumsum(lengths), matrix.reshape(-1) if used.all() else matrix[used])


def decode_varints(data: U8, at: I64) -> tuple[I64, I64]:
    """The numbers that begin at the places `at` of `data`, and where each ends.

    `data` has `LONGEST32` bytes behind the last place. A number that does not end within so many bytes is -1.
    """
    first = data[at]
    values = first.astype(np.int64)
    ends = at + 1
    more = np.flatnonzero(first > 127)
    if not more.size:
        return values, ends
    values[more] &= 127
    for byte in range(1, LONGEST32):
        then = data[at[more] + byte]
        values[more] |= (then & 127).astype(np.int64) << (7 * byte)
        ends[more] += 1
        more = more[then > 127]
        if not more.size:
            return values, ends
    values[more] = -1
    return values, ends
