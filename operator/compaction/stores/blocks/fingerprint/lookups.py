"""Lanes of values that lie in a dictionary: hashed once, then looked up by index.

Both lanes of an entry lie side by side, so that the lookup of a row costs one access, not two: a quarter of all
hashing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.exceptions import UnsupportedColumnError

Words = npt.NDArray[np.uint64]
PAIR: Final = np.dtype([("a", "<u8"), ("b", "<u8")])
"""Two lanes of one value."""
_COMBINED: Final = 4096
"""Entries of a table for two columns or more, at most: 64 KiB, which stay in a core's cache."""
Places = npt.NDArray[Any]
Pairs = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A dictionary and the lanes of its entries; the last of `pairs`, one more than there are entries, is a null's."""

    dictionary: pa.Array[Any]
    pairs: Pairs

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

    def places(self, indices: pa.Array[Any], path: str) -> Places:
        """Where the pair of each row is. Raises UnsupportedColumnError for an index outside of the dictionary."""
        width = np.dtype(indices.type.to_pandas_dtype()).itemsize
        buffer = indices.buffers()[1]
        if buffer is None or len(indices) == 0:
            return np.zeros(0, np.uint64)
        # Unsigned: a negative index would count from the end.
        places: Places = np.frombuffer(buffer, f"<u{width}", count=len(indices), offset=indices.offset * width)
        if indices.null_count:
            null = indices.is_null().to_numpy(zero_copy_only=False)
            places = np.where(null, np.uint64(len(self.dictionary)), places)
            outside = bool((places[~null] >= len(self.dictionary)).any())
        else:
            outside = int(places.max()) >= len(self.dictionary)
        if outside:
            raise UnsupportedColumnError(path, "an index lies outside of its dictionary")
        return places.view(np.int64) if places.itemsize == 8 else places


class Combiner:
    """Several columns with few values each are looked up as one: a place in the table of all pairs of their values.

    Keeps the tables as long as the columns' own stay the same.
    """

    def __init__(self) -> None:
        self._known: list[tuple[tuple[Pairs, ...], Pairs]] = []

    def of(self, looked: Sequence[tuple[Pairs, Places]]) -> list[tuple[Pairs, Places]]:
        """Fewer tables and places whose pairs add up to the same sums."""
        groups: list[list[tuple[Pairs, Places]]] = []
        size = _COMBINED + 1
        for one in sorted(looked, key=lambda one: len(one[0])):
            if size * len(one[0]) > _COMBINED:
                groups.append([])
                size = 1
            groups[-1].append(one)
            size *= len(one[0])
        tables = [(tuple(pairs for pairs, _ in group), self._table([pairs for pairs, _ in group])) for group in groups]
        self._known = tables
        return [(table, _places(group)) for (_, table), group in zip(tables, groups, strict=True)]

    def _table(self, parts: Sequence[Pairs]) -> Pairs:
        if len(parts) == 1:
            return parts[0]
        for known, table in self._known:
            if len(known) == len(parts) and all(one is other for one, other in zip(known, parts, strict=True)):
                return table
        lanes = parts[0].view(np.uint64).reshape(-1, 1, 2)
        for part in parts[1:]:
            lanes = (lanes + part.view(np.uint64).reshape(1, -1, 2)).reshape(-1, 1, 2)
        return lanes.reshape(-1).view(PAIR)


def _places(group: Sequence[tuple[Pairs, Places]]) -> Places:
    """The places in the table of a group; a single one's own, as they are."""
    places = group[0][1]
    if len(group) > 1:
        places = places.astype(np.uint32)
        for pairs, more in group[1:]:
            places *= np.uint32(len(pairs))
            places += more.astype(np.uint32, copy=False)
    return places
