"""Records as two columns of bytes, and the operations on whole columns that the codec consists of.

Python never touches a record: Arrow copies (its `take` and `join` are a memcpy for each value), numpy counts. Offsets
and lengths are int64 and count bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    return RecordColumns(pa.concat_arrays([one.keys for one in batches]), pa.concat_arrays([b.values for b in batches]))


def offsets_of(array: Any) -> I64:
    """Where each value of a large_binary array begins in `data_of(array)`, and the end of the last: one more entry."""
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
