"""An ascending sequence of indexes as ranges: Ra's `ra_seq`, for what is written and not yet in a segment.

Contiguous appends make one range, however many there are; each gap of a sparse write makes one more. Ranges are sorted,
disjoint and never adjacent. `append` and `extend` change a sequence, everything else returns a new one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice

from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.seq import LiveSet


class Seq:
    """Indexes in ascending order; only a larger one than the last can be appended."""

    __slots__ = ("_count", "_highs", "_lows")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: inclusive (low, high) pairs, ascending and disjoint; ValueError for any others."""
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._count = 0
        for low, high in ranges:
            self.extend(low, high)

    @classmethod
    def from_indexes(cls, indexes: Iterable[int]) -> Seq:
        """Of indexes in any order; duplicates count once."""
        result = cls()
        for index in sorted(set(indexes)):
            result.append(index)
        return result

    def append(self, index: int) -> None:
        """ValueError unless `index` is above the last."""
        self.extend(index, index)

    def extend(self, low: int, high: int) -> None:
        """Append low..high, inclusive; ValueError unless all of it is above the last index."""
        highs = self._highs
        last = highs[-1] if highs else -1
        if low > high or low <= last:
            raise ValueError(f"{low}..{high} does not follow {self.last}")
        if highs and last == low - 1:
            highs[-1] = high
        else:
            self._lows.append(low)
            highs.append(high)
        self._count += high - low + 1

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Inclusive (low, high) pairs, ascending."""
        return list(zip(self._lows, self._highs, strict=True))

    @property
    def first(self) -> int | None:
        """The smallest index; None when empty."""
        return self._lows[0] if self._lows else None

    @property
    def last(self) -> int | None:
        """The largest index; None when empty."""
        return self._highs[-1] if self._highs else None

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._lows)

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int):
            return False
        position = bisect_right(self._lows, index) - 1
        return position >= 0 and index <= self._highs[position]

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seq):
            return NotImplemented
        return self._lows == other._lows and self._highs == other._highs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Seq({','.join(str(low) if low == high else f'{low}-{high}' for low, high in self.ranges)})"

    def copy(self) -> Seq:
        return Seq(self.ranges)

    def floor(self, index: int) -> Seq:
        """What is at or above `index`."""
        return self.within(index, MAX_INDEX)

    def limit(self, index: int) -> Seq:
        """What is at or below `index`."""
        return self.within(0, index)

    def within(self, low: int, high: int) -> Seq:
        """What is in low..high, inclusive."""
        begin = bisect_left(self._highs, low)
        end = bisect_right(self._lows, high)
        return Seq((max(a, low), min(b, high)) for a, b in self.ranges[begin:end])

    def overlaps(self, low: int, high: int) -> bool:
        """Whether any index is in low..high, inclusive."""
        position = bisect_left(self._highs, low)
        return low <= high and position < len(self._lows) and self._lows[position] <= high

    def over(self, lower: Seq) -> Seq:
        """This sequence laid over a lower one, which ends where this one begins (`ra_seq:add`)."""
        if self.first is None:
            return lower.copy()
        result = lower.limit(self.first - 1)
        for low, high in self.ranges:
            result.extend(low, high)
        return result

    def without(self, other: Seq) -> Seq:
        """The indexes that are not in `other`."""
        return Seq(self.as_set().without(other.as_set()).ranges)

    def intersection(self, members: LiveSet) -> Seq:
        """The indexes that are members of the set."""
        return Seq(self.as_set().intersection(members).ranges)

    def without_prefix(self, prefix: Seq) -> Seq:
        """What follows `prefix`, whose indexes beyond the first of this sequence must all be its first ones.

        ValueError when the prefix skips an index of this sequence.
        """
        if prefix.last is None:
            return self.copy()
        if self.limit(prefix.last).without(prefix):
            raise ValueError(f"{prefix!r} is not a prefix of {self!r}")
        return self.floor(prefix.last + 1)

    def chunks(self, size: int) -> Iterator[list[int]]:
        """The indexes in lists of `size`, the last one shorter."""
        indexes = iter(self)
        while chunk := list(islice(indexes, size)):
            yield chunk

    def as_set(self) -> LiveSet:
        return LiveSet.from_ranges(self.ranges)
