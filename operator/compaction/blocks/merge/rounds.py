"""The k-way merge in rounds, and the order of rows as one number each."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compaction.blocks.errors import BlockNotSortedError
from compaction.blocks.merge.columns import CODE, Columns, Rows, Words, has_width
from compaction.blocks.merge.footers import Bound
from compaction.blocks.merge.runs import Run, comparable

# The order of rows as one number each: sorting, cutting and comparing then are operations on uint64 arrays.
#
# The order: column by column of the sort key, ascending; strings and binaries by their bytes, -0.0 equal to 0.0, NaN
# after all numbers, null after everything (Arrow's order, and what `sorting_columns` with nulls last means). The
# numbers mean something only within one call of `key_numbers`; equal rows have equal numbers.

_SIGNED: Final = {32: pa.int32(), 64: pa.int64()}
_WORD_BITS: Final = 64
_RUN_ROWS: Final = 256
"""Rows that ascending runs have on average when merging them is worth it."""
_STRETCH_ROWS: Final = 1 << 16


class _Word(NamedTuple):
    """One part of the key, from 0 to less than 2^bits; a key is a list of them, the most significant first.

    The values are in an array of its own, to be changed.
    """

    values: Words
    bits: int


def key_numbers(columns: Columns, key: Sequence[pa.Array]) -> Words:
    """A number for each row, at least one; `key` are the columns of the sort key, in order."""
    if not key:
        raise ValueError("a sort key has at least one column")
    words: list[_Word] = []
    for place, array in zip(columns.keys, key, strict=True):
        words += (word for word in _words(columns, place, array) if word.bits)
    if not words:
        return np.zeros(len(key[0]), np.uint64)
    if sum(word.bits for word in words) > _WORD_BITS:
        return _dense([word.values for word in words])
    numbers = words[0].values
    for word in words[1:]:
        numbers <<= np.uint64(word.bits)
        numbers |= word.values
    return numbers


def _words(columns: Columns, place: int, array: pa.Array) -> list[_Word]:
    kind = array.type
    if pa.types.is_null(kind):
        return []
    if columns.is_coded(place, array):
        ranks = columns.memos[place].ranks()
        if array.null_count == len(array):
            return []
        if not array.null_count:
            return [_from_zero(ranks.take(array.to_numpy()))]
        return _nulls_last(array, ranks.take(array.fill_null(0).to_numpy()))
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        if pa.types.is_temporal(kind):
            array = array.view(_SIGNED[kind.bit_width])
        if not array.null_count:
            return [_from_zero(array.to_numpy())]
        return _nulls_last(array, array.fill_null(0).to_numpy())
    return [_from_zero(pc.rank(array, tiebreaker="dense").to_numpy())]


def _nulls_last(array: pa.Array, values: npt.NDArray[np.generic]) -> list[_Word]:
    """A word that says which are null, and one of the values; what stands at a null counts nothing."""
    null = array.is_null().to_numpy(zero_copy_only=False)
    flag = _Word(null.astype(np.uint64), 1)
    if null.all():
        return []
    return [flag, _from_zero(np.where(null, values[~null][0], values))]


def _from_zero(values: npt.NDArray[np.generic]) -> _Word:
    """The distances from the smallest; they fit 64 bits for any type of integer, by arithmetic modulo 2^64."""
    least, most = int(values.min()), int(values.max())
    wide: npt.NDArray[np.generic] = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64, copy=False)
    words: Words = wide.view(np.uint64)
    return _Word(words - np.uint64(least % (1 << _WORD_BITS)), (most - least).bit_length())


def _dense(words: list[Words]) -> Words:
    """The key's place among the distinct keys: for keys that do not fit one number. Costs a sort."""
    order = np.lexsort(words[::-1])
    new = np.zeros(len(order), bool)
    for word in words:
        in_order = word[order]
        new[1:] |= in_order[1:] != in_order[:-1]
    numbers = np.empty(len(order), np.uint64)
    numbers[order] = np.cumsum(new).astype(np.uint64)
    return numbers


def sorting_order(numbers: Words) -> npt.NDArray[np.int64]:
    """The order that sorts the numbers, stable.

    Number and position share a word, which is then sorted by value: several times as fast as an argsort. Where both do
    not fit, the lowest bits of the number are left out and a second, stable pass over what is nearly sorted corrects
    it. What comes as a few ascending runs, as a round does, is merged rather than sorted: a third of the time. All in
    place: these words and the numbers are the largest arrays of a merge that no memory pool counts.
    """
    count = len(numbers)
    if count < 2:
        return np.zeros(count, np.int64)
    descents = np.count_nonzero(numbers[1:] < numbers[:-1])
    least = numbers.min()
    place_bits = (count - 1).bit_length()
    too_many = max(0, int(numbers.max() - least).bit_length() + place_bits - _WORD_BITS)
    packed = numbers - least
    packed >>= np.uint64(too_many)
    packed <<= np.uint64(place_bits)
    for start in range(0, count, _STRETCH_ROWS):
        some = packed[start : start + _STRETCH_ROWS]
        some |= np.arange(start, start + len(some), dtype=np.uint64)
    packed.sort(kind="stable" if descents * _RUN_ROWS < count else None)
    packed &= np.uint64((1 << place_bits) - 1)
    order: npt.NDArray[np.int64] = packed.view(np.int64)
    if too_many:
        rough = numbers[order]
        if np.any(rough[1:] < rough[:-1]):
            order = order[np.argsort(rough, kind="stable")]
    return order


# The k-way merge: rounds, each of which emits what is certainly next and refills what has become short.
#
# A round reads the next rows of each run, its *window*, and ranks their keys together. The *cut* is the smallest
# (last key of the window, number of the run) of the runs that have more behind it: no row from there on can be before
# it. Everything up to the cut is emitted, in the order of (key, run, row): stable, also across rounds.
#
# A window is as large as what its run gives of a round, and some more. With windows of one size, a run that holds a
# third of the rows would end each round after three of them, and what a round costs for each run would be spent on
# few rows.
#
# Memory: the windows and what is read at a time (a batch, or a row group) per open run, and the rows of one round. A
# run whose smallest key is known is opened only when everything before that was emitted, so runs that do not overlap
# are read one after the other, and are not sorted at all.

_SLOWNESS: Final = 4
"""A window follows what its run gave in so many rounds, about."""
_LEAST_SHARE: Final = 1 / 4096
"""Of a round, that each run is taken to give: what gives nothing now may give much soon."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """Rows in order, at least one. `new`: whether the key of each differs from that of the row before it, across
    rounds too.
    """

    rows: Rows
    new: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Open:
    """A run that is being read: the rows that were read and not yet emitted. `start`: of them in the first part; the
    rows before it are gone. `whole`: a part is a row group. `share`: of a round, that the run has given of late;
    `window`: how many rows are read ahead for the next.
    """

    number: int
    run: Run
    source: Iterator[Rows]
    whole: bool
    share: float
    window: int = 1
    parts: list[Rows] = field(default_factory=list)
    start: int = 0
    count: int = 0
    done: bool = False

    def refill(self, most_bytes: int) -> None:
        """Read until the window or so many bytes are buffered."""
        if self.done or self.count >= self.window:
            return
        self._let_go()
        size = sum(part.nbytes for part in self.parts)
        if self.start:
            size -= self.parts[0].nbytes * self.start // self.parts[0].count
        while not self.done and self.count < self.window and size < most_bytes:
            part = next(self.source, None)
            if part is None:
                self.done = True
            else:
                self.parts.append(part)
                self.count += part.count
                size += part.nbytes

    def _let_go(self) -> None:
        """Copy what is left of a part, unless it is most of the part: a slice keeps all of the part in memory."""
        if not self.start:
            return
        first = self.parts[0]
        left = first.count - self.start
        if self.whole or 2 * left < first.count:
            self.parts[0] = first.slice(self.start, left).copy()
            self.start = 0

    def ahead(self, place: int, rows: int) -> list[pa.Array]:
        """A column of the first rows, at most so many."""
        found = []
        start, left = self.start, min(rows, self.count)
        for part in self.parts:
            if not left:
                break
            taken = min(part.count - start, left)
            found.append(part.columns[place].slice(start, taken))
            start, left = 0, left - taken
        return found

    def at(self, place: int, row: int) -> pa.Array:
        """One value of a column."""
        row += self.start
        for part in self.parts:
            if row < part.count:
                return part.columns[place].slice(row, 1)
            row -= part.count
        raise IndexError(row)

    def bytes_ahead(self, places: Sequence[int], rows: int) -> int:
        """Bytes of some columns of the first rows, codes left out."""
        plain = [place for place in places if any(part.columns[place].type.id != CODE.id for part in self.parts)]
        return sum(part.nbytes for place in plain for part in self.ahead(place, rows))

    def gave(self, share: float) -> None:
        """So much of a round came out of the run."""
        self.share = max(_LEAST_SHARE, self.share + (share - self.share) / _SLOWNESS)

    def drop(self, count: int) -> list[Rows]:
        """Take the first `count` rows out of the buffer."""
        taken = []
        self.count -= count
        while count:
            first, start = self.parts[0], self.start
            here = min(first.count - start, count)
            taken.append(first if here == first.count else first.slice(start, here))
            count -= here
            self.start += here
            if self.start == first.count:
                del self.parts[0]
                self.start = 0
        return taken


class MergeRounds:
    """One merge of some runs. `batch`: how many rows of a run are read at a time, where `whole` does not say that it is
    a row group. `ahead`: how many rows all windows have together, and `ahead_bytes`: what they take at most, about.
    `round_rows`: how many rows a round may emit, and `round_bytes`: of values without a fixed width; where a few are
    very large, it is as few rows as that takes, one at least.
    """

    def __init__(
        self,
        columns: Columns,
        runs: Sequence[Run],
        *,
        batch: int,
        ahead: int,
        ahead_bytes: int,
        round_bytes: int,
        round_rows: int,
        whole: bool = False,
    ) -> None:
        self._columns = columns
        self._batch = batch
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._round_bytes = round_bytes
        self._round_rows = round_rows
        self._of_any_width = [place for place, item in enumerate(columns.schema) if not has_width(item.type)]
        self._whole = whole
        self._waiting = sorted(
            ((run.least, number, run) for number, run in enumerate(runs)),
            key=lambda item: (item[0] is not None, item[0] if item[0] is not None else 0),
        )
        self._open: list[_Open] = []
        self._floor: Rows | None = None
        while self._waiting and self._waiting[0][0] is None:
            self._open_next()

    def __iter__(self) -> Iterator[Emitted]:
        while True:
            self._fill()
            if not self._open:
                if not self._waiting:
                    return
                self._open_next()
                continue
            windows = [item.window for item in self._open]
            numbers, floor = self._numbers(windows)
            cut = self._cut(numbers)
            counts = _counts(numbers, cut)
            last = _largest(numbers) if cut is None else cut
            # A run that is not open yet may have rows before the last one of this round: those wait until it is open.
            if self._waiting and self._next_begins_by(self._first_key(self._open[last], len(numbers[last]) - 1)):
                counts = self._before_next(counts)
                if not any(counts):
                    self._open_next()
                    continue
            while sum(counts) > 1 and self._are_too_many(counts):
                # Windows of one row cannot be halved: then the round emits the least row alone, however large it is.
                single = max(windows) == 1
                windows = [-(-window // 2) for window in windows]
                numbers, floor = self._numbers(windows)
                fewer = _only_first(numbers) if single else _counts(numbers, self._cut(numbers))
                counts = [min(both) for both in zip(counts, fewer, strict=True)]
            emitted = sum(counts)
            for item, count in zip(self._open, counts, strict=True):
                item.gave(count / emitted)
            yield self._emit(numbers, floor, counts)

    def _fill(self) -> None:
        together = sum(item.share for item in self._open)
        for item in self._open:
            mean = self._ahead * item.share / together
            item.window = 1 + int(mean + 2 * math.sqrt(mean))  # so few windows end before what their runs would give
        rows = sum(item.window for item in self._open)
        for item in self._open:
            item.refill(max(1, self._ahead_bytes * item.window // rows))
        self._open = [item for item in self._open if item.count]

    def _open_next(self) -> None:
        _, number, run = self._waiting.pop(0)
        share = sum(item.share for item in self._open) / len(self._open) if self._open else 1.0
        self._open.append(_Open(number, run, run.batches(self._batch, whole=self._whole), self._whole, share))
        self._open.sort(key=lambda item: item.number)

    def _are_too_many(self, counts: Sequence[int]) -> bool:
        """Return whether so many rows of each run are more than a round may emit."""
        if sum(counts) > self._round_rows:
            return True
        if sum(part.nbytes for item in self._open for part in item.parts) <= self._round_bytes:
            return False  # as it nearly always is: no part is cut to be counted
        pairs = zip(self._open, counts, strict=True)
        return sum(item.bytes_ahead(self._of_any_width, count) for item, count in pairs if count) > self._round_bytes

    def _numbers(self, windows: Sequence[int]) -> tuple[list[Words], int | None]:
        """The number of the key of each row in the windows, by run, and of the row that was emitted last. Checks the
        order.
        """
        key = []
        for place in self._columns.keys:
            parts = [] if self._floor is None else [self._floor.columns[place]]
            for item, window in zip(self._open, windows, strict=True):
                parts += item.ahead(place, window)
            key.append(self._columns.joined(place, parts))
        numbers = key_numbers(self._columns, key)
        least = numbers[0] if self._floor is not None else None
        found, start = [], 0 if self._floor is None else 1
        for item, window in zip(self._open, windows, strict=True):
            mine = numbers[start : start + min(item.count, window)]
            start += len(mine)
            if (least is not None and mine[0] < least) or np.any(mine[1:] < mine[:-1]):
                raise BlockNotSortedError(item.run.name)
            found.append(mine)
        return found, None if least is None else int(least)

    def _cut(self, numbers: Sequence[Words]) -> int | None:
        """Return the place of the open run that bounds the round; None when no run has rows behind its window."""
        last = [
            (mine[-1], place)
            for place, (item, mine) in enumerate(zip(self._open, numbers, strict=True))
            if not item.done or item.count > len(mine)
        ]
        return min(last)[1] if last else None

    def _next_begins_by(self, bound: Bound | None) -> bool:
        """Return whether the first run that waits may begin at or before this bound; None is behind everything."""
        least = self._waiting[0][0]
        return least is None or bound is None or least <= bound  # type: ignore[operator]

    def _before_next(self, counts: Sequence[int]) -> list[int]:
        """Return the number of first rows of each run that are certainly before the run that waits to be opened."""

        def before(item: _Open, count: int) -> int:
            return bisect_left(range(count), True, key=lambda row: self._next_begins_by(self._first_key(item, row)))

        return [before(item, count) for item, count in zip(self._open, counts, strict=True)]

    def _first_key(self, item: _Open, row: int) -> Bound | None:
        """The first key column's value in a row, as bounds are given; None of a null."""
        place = self._columns.keys[0]
        value = self._columns.plain(place, item.at(place, row))
        found: Bound | None = comparable(value)[0].as_py()
        return found

    def _emit(self, numbers: Sequence[Words], floor: int | None, counts: Sequence[int]) -> Emitted:
        parts = [part for item, count in zip(self._open, counts, strict=True) if count for part in item.drop(count)]
        keys = [mine[:count] for mine, count in zip(numbers, counts, strict=True) if count]
        found = np.concatenate(keys)
        if len(keys) > 1 and np.any(found[1:] < found[:-1]):
            order = sorting_order(found)
            rows, found = self._in_order(parts, order), found.take(order)
        else:
            rows = self._columns.join(parts)
        new = np.empty(len(found), np.bool_)
        new[0] = floor is None or int(found[0]) != floor
        np.not_equal(found[1:], found[:-1], out=new[1:])
        self._floor = copy_of_last(rows)
        return Emitted(rows, new)

    def _in_order(self, parts: Sequence[Rows], order: npt.NDArray[np.int64]) -> Rows:
        """One column at a time, so that only one is there twice."""
        places = pa.array(order)
        columns = []
        for place in range(len(self._columns.schema)):
            joined = self._columns.joined(place, [part.columns[place] for part in parts])
            columns.append(pc.take(joined, places, boundscheck=False))
        return Rows(tuple(columns), len(order))


def _largest(numbers: Sequence[Words]) -> int:
    """Return the place of the open run that has the largest row."""
    return max((mine[-1], place) for place, mine in enumerate(numbers))[1]


def _counts(numbers: Sequence[Words], cut: int | None) -> list[int]:
    """Return the number of rows of each run that are before the cut."""
    if cut is None:
        return [len(mine) for mine in numbers]
    last = numbers[cut][-1]
    return [
        int(np.searchsorted(mine, last, side="right" if place <= cut else "left")) for place, mine in enumerate(numbers)
    ]


def _only_first(numbers: Sequence[Words]) -> list[int]:
    """One row: the least."""
    least = min((mine[0], place) for place, mine in enumerate(numbers))[1]
    return [int(place == least) for place in range(len(numbers))]


def copy_of_last(rows: Rows) -> Rows:
    """The last row, free of the memory of the others."""
    return rows.slice(rows.count - 1, 1).copy()
