"""Records as two columns of bytes, and the variable-length integers and staged changes in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Records as two columns of bytes, and the operations on whole columns that the codec consists of.
#
# Python never touches a record: Arrow copies (its `take` and `join` are a memcpy for each value), numpy counts.
# Offsets and lengths are int64 and count bytes.

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

BINARY: Final[Any] = pa.large_binary()
_NOTHING: Final[Any] = pa.scalar(b"", BINARY)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """A batch of records: `keys` and `values` are Arrow arrays of type large_binary, equally long, without nulls.

    The keys of what a reader returns and of what a writer takes are strictly ascending by their bytes.
    """

    keys: Any
    values: Any

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, without offsets."""
        return total_bytes(self.keys) + total_bytes(self.values)

    @classmethod
    def of(cls, records: Iterable[tuple[bytes, bytes]]) -> RecordColumns:
        """From pairs of key and value: for tests and small tables."""
        pairs = list(records)
        return cls(pa.array([key for key, _ in pairs], BINARY), pa.array([value for _, value in pairs], BINARY))

    def pairs(self) -> list[tuple[bytes, bytes]]:
        """As pairs of key and value: for tests and small tables."""
        return list(zip(self.keys.to_pylist(), self.values.to_pylist(), strict=True))

    def slice(self, begin: int, end: int) -> RecordColumns:
        """Records `begin` to `end`, without a copy."""
        return RecordColumns(self.keys.slice(begin, end - begin), self.values.slice(begin, end - begin))

    def pieces(self, nbytes: int) -> Iterator[RecordColumns]:
        """The same records in order, in batches of at most so many bytes (one record where it alone is larger)."""
        sizes = offsets_of(self.keys)[1:] - offsets_of(self.keys)[0] + offsets_of(self.values)[1:]
        begin, base = 0, int(offsets_of(self.values)[0])
        while begin < len(self):
            end = max(begin + 1, int(np.searchsorted(sizes, base + nbytes, side="right")))
            yield self.slice(begin, end)
            base = int(sizes[end - 1])
            begin = end


EMPTY_COLUMNS: Final = RecordColumns(pa.array([], BINARY), pa.array([], BINARY))


def concatenated(batches: list[RecordColumns]) -> RecordColumns:
    """One batch of all records, in order; the only one is returned as it is."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return EMPTY_COLUMNS
    return RecordColumns(
        pa.concat_arrays([batch.keys for batch in batches]), pa.concat_arrays([b.values for b in batches])
    )


def offsets_of(array: Any) -> I64:
    """Return the offset of each value of a large_binary array in `data_of(array)`, and the end of the last: one more
    entry.
    """
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=np.int64)
    return np.frombuffer(buffer, dtype=np.int64, count=len(array) + 1, offset=8 * array.offset)


def data_of(array: Any) -> U8:
    """The bytes that `offsets_of(array)` counts in; more than the array's own when it is a slice."""
    buffer = array.buffers()[2]
    return np.zeros(0, dtype=np.uint8) if buffer is None else np.frombuffer(buffer, dtype=np.uint8)


def content_of(array: Any) -> memoryview:
    """All values, one after the other, without a copy."""
    offsets = offsets_of(array)
    return data_of(array).data[int(offsets[0]) : int(offsets[-1])]


def total_bytes(array: Any) -> int:
    """Bytes of all values."""
    offsets = offsets_of(array)
    return int(offsets[-1] - offsets[0])


def lengths_of(array: Any) -> I64:
    """The length of each value."""
    offsets = offsets_of(array)
    lengths: I64 = offsets[1:] - offsets[:-1]
    return lengths


def binary_array(offsets: I64, data: Any) -> Any:
    """A large_binary array over `data` (bytes, or a numpy array of them), without a copy."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return pa.LargeBinaryArray.from_buffers(BINARY, offsets.size - 1, [None, pa.py_buffer(offsets), buffer])


def pieces_of(data: Any, begins: I64, ends: I64) -> Any:
    """The values data[begin:end], copied into an array of their own.

    The pieces are in order and do not overlap: begins[i] <= ends[i] <= begins[i + 1].
    """
    count = begins.size
    if not count:
        return EMPTY_COLUMNS.keys
    bounds = np.empty(2 * count, dtype=np.int64)
    bounds[::2] = begins
    bounds[1::2] = ends
    return binary_array(bounds, data).take(pa.array(np.arange(0, 2 * count, 2)))


def joined(*parts: Any) -> Any:
    """Value by value, the parts one after the other; a part is an array or one value for all (bytes)."""
    given = (pa.scalar(part, BINARY) if isinstance(part, bytes) else part for part in parts)
    return pc.binary_join_element_wise(*given, _NOTHING)


# Variable-length integers: seven bits in a byte, the lowest first, the eighth set where another byte follows.
#
# One at a time for the small parts of a file, by the column for records (docs/design/staging.md#blocks).

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
    """Return the number of bytes that each value takes, for numbers below 2^35."""
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


# Staged changes by the column: records whose value is empty are tombstones.
#
# A value of a range is never empty (it begins with the length of an identity), so `RecordColumns` hold both: keys in
# strictly ascending order, and for each the framed value (docs/design/staging.md#values) or b"" for a deletion.

TOMBSTONE: Final = b""
"""The value of a change that deletes its key."""


def tombstones(changes: RecordColumns) -> npt.NDArray[np.bool_]:
    """Return the mask of the changes that delete their key."""
    found: npt.NDArray[np.bool_] = lengths_of(changes.values) == 0
    return found


def rows_where(records: RecordColumns, chosen: npt.NDArray[np.bool_]) -> RecordColumns:
    """The records for which `chosen` is true."""
    if chosen.all():
        return records
    rows = pa.array(np.flatnonzero(chosen))
    return RecordColumns(records.keys.take(rows), records.values.take(rows))
