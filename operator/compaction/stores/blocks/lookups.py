"""Lanes of values that lie in a dictionary: hashed once, then looked up by index.

Both lanes of an entry lie side by side, so that looking up a row costs one access, not two: a quarter of all hashing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.exceptions import UnsupportedColumnError

Words = npt.NDArray[np.uint64]
PAIR: Final = np.dtype([("a", "<u8"), ("b", "<u8")])
"""Two lanes of one value."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """A dictionary and the lanes of its entries; the last of `pairs`, one more than there are entries, is a null's."""

    dictionary: pa.Array[Any]
    pairs: npt.NDArray[Any]

    @classmethod
    def of(cls, dictionary: pa.Array[Any], a: Words, b: Words) -> Lookup:
        """`a`, `b`: the lanes of the entries."""
        pairs = np.zeros(len(dictionary) + 1, PAIR)
        pairs["a"][:-1], pairs["b"][:-1] = a, b
        return cls(dictionary, pairs)

    def knows(self, other: pa.Array[Any]) -> bool:
        """Whether it is the same memory. The one that is kept keeps its memory, so no address means two things."""
        mine = self.dictionary
        if len(mine) != len(other) or mine.offset != other.offset or mine.type != other.type:
            return False
        places = [[(b.address, b.size) if b is not None else None for b in one.buffers()] for one in (mine, other)]
        return places[0] == places[1]

    def places(self, indices: pa.Array[Any], path: str) -> npt.NDArray[Any]:
        """Where the pair of each row is. Raises UnsupportedColumnError for an index outside of the dictionary."""
        width = np.dtype(indices.type.to_pandas_dtype()).itemsize
        buffer = indices.buffers()[1]
        if buffer is None or len(indices) == 0:
            return np.zeros(0, np.uint64)
        # Unsigned: a negative index would count from the end.
        places: npt.NDArray[Any] = np.frombuffer(
            buffer, f"<u{width}", count=len(indices), offset=indices.offset * width
        )
        if indices.null_count:
            null = indices.is_null().to_numpy(zero_copy_only=False)
            places = np.where(null, np.uint64(len(self.dictionary)), places)
            outside = bool((places[~null] >= len(self.dictionary)).any())
        else:
            outside = int(places.max()) >= len(self.dictionary)
        if outside:
            raise UnsupportedColumnError(path, "an index lies outside of its dictionary")
        return places.view(np.int64) if places.itemsize == 8 else places
