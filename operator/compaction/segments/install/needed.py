"""Which live entries a receiver still needs, in ascending order, and how they are taken in batches: pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from compaction.segments.snapshot.seq import LiveSet


@dataclass(frozen=True, slots=True)
class NeededEntries:
    """A live set as ranges, from which batches are taken at any place without walking through what is before."""

    lows: tuple[int, ...]
    highs: tuple[int, ...]

    @classmethod
    def of(cls, live: LiveSet) -> NeededEntries:
        lows, highs = live.bounds
        return cls(tuple(lows.tolist()), tuple(highs.tolist()))

    def after(self, index: int | None, count: int) -> tuple[int, ...]:
        """The first `count` indexes above `index` (None: from the first one on); fewer at the end."""
        following = 0 if index is None else index + 1
        position = bisect_left(self.highs, following)
        found: list[int] = []
        while position < len(self.lows) and len(found) < count:
            low = max(self.lows[position], following)
            found += range(low, min(self.highs[position], low + count - len(found) - 1) + 1)
            position += 1
        return tuple(found)
