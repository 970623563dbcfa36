"""Hashes of values that lie in a dictionary: computed once, then looked up by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.blocks.errors import UnsupportedColumnError

Words = npt.NDArray[np.uint64]
_COMBINED: Final = 8192
"""Entries of a table for two columns or more, at most: 64 KiB, which stay in a core's cache."""
OUTSIDE: Final = "an index lies outside of its dictionary"
Places = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A dictionary and its entries' hashes; the last of `hashes`, one more than there are entries, is a null's."""

    dictionary: pa.Array[Any]
    hashes: Words

    @classmethod
    def of(cls, dictionary: pa.Array[Any], hashes: Words) -> Lookup:
        """`hashes`: of the entries."""
        return cls(dictionary, np.append(hashes, np.uint64(0)))

    def knows(self, other: pa.Array[Any]) -> bool:
        """Whether it is the same memory. The one that is kept keeps its memory, so no address means two things."""
        mine = self.dictionary
        if len(mine) != len(other) or mine.offset != other.offset or mine.type != other.type:
            return False
        places = [[(b.address, b.size) if b is not None else None for b in one.buffers()] for one in (mine, other)]
        return places[0] == places[1]

    def places(self, indices: pa.Array[Any], path: str) -> Places:
        """Where the hash of each row is. Raises UnsupportedColumnError for an index outside of the dictionary."""
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
            raise UnsupportedColumnError(path, OUTSIDE)
        return places.view(np.int64) if places.itemsize == 8 else places


class Combiner:
    """Several columns with few values each are looked up as one: a place in the table of the sums of their hashes.

    Keeps the tables as long as the columns' own stay the same.
    """

    def __init__(self) -> None:
        self._known: list[tuple[tuple[Words, ...], Words]] = []

    def of(self, looked: Sequence[tuple[Words, Places]]) -> list[tuple[Words, Places]]:
        """Fewer tables and places whose hashes add up to the same sums."""
        groups: list[list[tuple[Words, Places]]] = []
        size = _COMBINED + 1
        for one in sorted(looked, key=lambda one: len(one[0])):
            if size * len(one[0]) > _COMBINED:
                groups.append([])
                size = 1
            groups[-1].append(one)
            size *= len(one[0])
        tables = [
            (tuple(hashes for hashes, _ in group), self._table([hashes for hashes, _ in group])) for group in groups
        ]
        self._known = tables
        return [(table, _places(group)) for (_, table), group in zip(tables, groups, strict=True)]

    def _table(self, parts: Sequence[Words]) -> Words:
        if len(parts) == 1:
            return parts[0]
        for known, table in self._known:
            if len(known) == len(parts) and all(one is other for one, other in zip(known, parts, strict=True)):
                return table
        sums = parts[0]
        for part in parts[1:]:
            sums = np.add.outer(sums, part).reshape(-1)
        return sums


def _places(group: Sequence[tuple[Words, Places]]) -> Places:
    """The places in the table of a group; a single one's own, as they are."""
    places = group[0][1]
    if len(group) > 1:
        places = places.astype(np.uint32)
        for hashes, more in group[1:]:
            places *= np.uint32(len(hashes))
            places += more.astype(np.uint32, copy=False)
    return places
