"""Sets of log indexes: `LiveSet`, and Ra's `indexes` file that stores one (docs/design/segment-snapshots.md).

A LiveSet is an immutable, sorted list of disjoint inclusive ranges that never touch (1-2 and 3-4 are kept as 1-4), in
u64 arrays: 1 million scattered indexes take 24 MB, one long run takes 24 bytes.

File: `RASI`, u8 version 1, u32 crc32 of the rest, then the external term of an ra_seq: a list from high to low of
integers and {Low, High} tuples, where a tuple stands for 3 or more consecutive indexes. Without the magic the whole
file is the term (legacy form).
"""

from __future__ import annotations

import re
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.segments.errors import CorruptIndexesError, LiveSetSyntaxError, TermFormatError
from compaction.segments.format import etf
from compaction.segments.model import MAX_INDEX, BoolArray, U64Array

# The elements of an ra_seq's list, integers and {Low, High} pairs, taken run by run.
#
# The format: docs/design/segment-snapshots.md#indexes.
#
# 65,000 scattered live indexes are 65,000 elements; one at a time they cost 60 ms, more than copying what they stand
# for. Neighbours nearly always have one shape (same tags, same sizes), so a regular expression finds where the run
# ends, and numpy reads the run. What fits no known shape is decoded by itself, and that is where every error is
# found.

# Element i of a run of integers: (bytes before the value, bytes of the value, byte order); never a negative number.
_Layout = tuple[int, int, str]
_INTEGERS: Final[dict[bytes, tuple[bytes, _Layout]]] = {
    bytes((etf.SMALL_INTEGER,)): (rb"a.", (1, 1, "big")),
    bytes((etf.INTEGER,)): (rb"b[\x00-\x7f].{3}", (1, 4, "big")),
    **{
        bytes((etf.SMALL_BIG, size)): (rb"n%s\x00.{%d}" % (re.escape(bytes((size,))), size), (3, size, "little"))
        for size in range(4, 9)
    },
}
_PAIR: Final = bytes((etf.SMALL_TUPLE, 2))


class _Run:
    """Elements of one shape: where a run of them ends, and what those that were found hold."""

    def __init__(self, element: bytes, layout: _Layout, *, pair: bool) -> None:
        self.pattern = re.compile(rb"(?:%s)++" % (re.escape(_PAIR) + element * 2 if pair else element), re.DOTALL)
        before, width, order = layout
        first = len(_PAIR) + before if pair else before
        second = first + width + before if pair else first
        self.size = second + width
        self.fields = (first, second)
        self.width, self.order = width, order

    def bounds(self, found: bytes) -> tuple[U64Array, U64Array]:
        """The low and high ends of the elements in `found`."""
        rows = np.frombuffer(found, dtype=np.uint8).reshape(-1, self.size)
        low, high = (self._value(rows[:, at : at + self.width]) for at in self.fields)
        return low, high

    def _value(self, digits: npt.NDArray[np.uint8]) -> U64Array:
        value = np.zeros(digits.shape[0], dtype=np.uint64)
        for column in range(self.width) if self.order == "big" else reversed(range(self.width)):
            value = (value << np.uint64(8)) | digits[:, column]
        return value


_RUNS: Final[dict[bytes, _Run]] = {
    **{tag: _Run(*shape, pair=False) for tag, shape in _INTEGERS.items()},
    **{_PAIR + tag: _Run(*shape, pair=True) for tag, shape in _INTEGERS.items()},
}


def take_indexes(cursor: etf.Cursor, count: int) -> tuple[U64Array, U64Array]:
    """The low and high ends of the next `count` elements, in any order. TermFormatError at one that is no index.

    Memory: below 8 times the bytes taken.
    """
    found: dict[_Run, list[bytes]] = {}
    alone = array("Q"), array("Q")
    # Elements of one encoding in a row are taken in one step, all others one by one.
    while count:
        run = _run_at(cursor)
        match = run.pattern.match(cursor.data, cursor.position) if run is not None else None
        if run is None or match is None:
            low, high = _take_one(cursor)
            alone[0].append(low)
            alone[1].append(high)
            count -= 1
            continue
        taken = min(count, (match.end() - cursor.position) // run.size)
        found.setdefault(run, []).append(cursor.take(taken * run.size))
        count -= taken
    parts = [(np.frombuffer(alone[0], dtype=np.uint64), np.frombuffer(alone[1], dtype=np.uint64))] if alone[0] else []
    # Popped, so that the bytes of a run are freed when its bounds are there: the bound on memory.
    while found:
        run, pieces = found.popitem()
        parts.append(run.bounds(b"".join(pieces)))
    if not parts:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    lows, highs = (np.concatenate(side) for side in zip(*parts, strict=True))
    wrong = np.flatnonzero(lows > highs)
    if wrong.size:
        raise TermFormatError(f"the range {lows[wrong[0]]}-{highs[wrong[0]]} is not within 0..{MAX_INDEX}")
    return lows, highs


def _run_at(cursor: etf.Cursor) -> _Run | None:
    head = cursor.data[cursor.position : cursor.position + 4]
    begin = len(_PAIR) if head[:2] == _PAIR else 0
    size = 2 if head[begin : begin + 1] == bytes((etf.SMALL_BIG,)) else 1
    return _RUNS.get(head[: begin + size])


def _take_one(cursor: etf.Cursor) -> tuple[int, int]:
    tag = cursor.byte()
    if tag != etf.SMALL_TUPLE:
        value = cursor.integer(tag)
        low, high = value, value
    else:
        if cursor.byte() != 2:
            raise TermFormatError(f"a range is a pair, the tuple at byte {cursor.position - 2} is not")
        low = cursor.integer(cursor.byte())
        high = cursor.integer(cursor.byte())
    if not 0 <= low <= high <= MAX_INDEX:
        raise TermFormatError(f"the range {low}-{high} before byte {cursor.position} is not within 0..{MAX_INDEX}")
    return low, high


MAGIC: Final = b"RASI"
VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sBI")
# A set may hold any index but not absurdly many, so that len() and every count work on whatever a file claims.
MAX_MEMBERS: Final = 2**63 - 1
_RANGE: Final = re.compile(r"\s*([0-9]{1,20})\s*(?:-\s*([0-9]{1,20})\s*)?", re.ASCII)


class LiveSet:
    """An immutable set of indexes (u64), at most 2**63 - 1 of them."""

    __slots__ = ("_before", "_ends", "_starts")

    def __init__(self, starts: U64Array, ends: U64Array) -> None:
        """Ranges `starts[i]..ends[i]`, inclusive, in any order, possibly overlapping. ValueError when out of bounds."""
        self._starts, self._ends = _normalise(starts, ends)
        if int((self._ends - self._starts).sum()) + self._starts.size > MAX_MEMBERS:
            raise ValueError(f"the ranges hold more than {MAX_MEMBERS} indexes")
        # Number of members before each range, and in all (one element more than there are ranges).
        self._before = np.zeros(self._starts.size + 1, dtype=np.uint64)
        np.cumsum(self._ends - self._starts + np.uint64(1), out=self._before[1:])
        for part in (self._starts, self._ends, self._before):
            part.setflags(write=False)

    @classmethod
    def empty(cls) -> LiveSet:
        return cls(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64))

    @classmethod
    def from_indexes(cls, indexes: Iterable[int] | U64Array) -> LiveSet:
        """Members in any order; duplicates count once."""
        values = indexes if isinstance(indexes, np.ndarray) else _u64(indexes)
        return cls(values, values)

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int]]) -> LiveSet:
        """Inclusive (low, high) pairs in any order; they may overlap."""
        pairs = list(ranges)
        return cls(_u64(low for low, _ in pairs), _u64(high for _, high in pairs))

    @classmethod
    def parse(cls, text: str) -> LiveSet:
        """`1-5,9,20-30`; the empty text is the empty set. LiveSetSyntaxError names the bad part."""
        if not text.strip():
            return cls.empty()
        pairs = []
        for part in text.split(","):
            match = _RANGE.fullmatch(part)
            if not match:
                raise LiveSetSyntaxError(f"{part.strip()[:40]!r} is neither an index nor a range: write 1-5,9,20-30")
            low, high = int(match[1]), int(match[2] or match[1])
            if low > high or high > MAX_INDEX:
                raise LiveSetSyntaxError(
                    f"{part.strip()[:40]!r} is not a range of indexes 0..{MAX_INDEX}, low end first"
                )
            pairs.append((low, high))
        try:
            return cls.from_ranges(pairs)
        except ValueError as error:
            raise LiveSetSyntaxError(str(error)) from error

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Inclusive (low, high) pairs, ascending; adjacent ones are merged."""
        return tuple(zip(self._starts.tolist(), self._ends.tolist(), strict=True))

    @property
    def bounds(self) -> tuple[U64Array, U64Array]:
        """(first, last) of each range, ascending: read-only arrays of equal length."""
        return self._starts, self._ends

    @property
    def smallest(self) -> int:
        """ValueError when empty."""
        if not self:
            raise ValueError("an empty live set has no smallest index")
        return int(self._starts[0])

    @property
    def largest(self) -> int:
        """ValueError when empty."""
        if not self:
            raise ValueError("an empty live set has no largest index")
        return int(self._ends[-1])

    def __len__(self) -> int:
        return int(self._before[-1])

    def __bool__(self) -> bool:
        return self._starts.size > 0

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self.count_in(index, index) == 1

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveSet):
            return NotImplemented
        return np.array_equal(self._starts, other._starts) and np.array_equal(self._ends, other._ends)

    def __hash__(self) -> int:
        return hash((self._starts.tobytes(), self._ends.tobytes()))

    def __str__(self) -> str:
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in self.ranges)

    def __repr__(self) -> str:
        return f"LiveSet({len(self)} indexes in {self._starts.size} ranges)"

    def __reduce__(self) -> tuple[type[LiveSet], tuple[U64Array, U64Array]]:
        return LiveSet, (self._starts, self._ends)

    def mask(self, indexes: U64Array) -> BoolArray:
        """Return which of the given indexes are members; same shape, any order."""
        if not self:
            return np.zeros(indexes.shape, dtype=np.bool_)
        position = np.searchsorted(self._starts, indexes, side="right") - 1
        return (position >= 0) & (indexes <= self._ends[np.maximum(position, 0)])

    def clip(self, low: int, high: int) -> LiveSet:
        """The members in low..high, inclusive."""
        low, high = max(low, 0), min(high, MAX_INDEX)
        if low > high:
            return LiveSet.empty()
        begin = int(np.searchsorted(self._ends, np.uint64(low), side="left"))
        end = int(np.searchsorted(self._starts, np.uint64(high), side="right"))
        starts = np.maximum(self._starts[begin:end], np.uint64(low))
        return LiveSet(starts, np.minimum(self._ends[begin:end], np.uint64(high)))

    def without(self, other: LiveSet) -> LiveSet:
        """The members that are not in `other`; O(ranges of both)."""
        if not self or not other:
            return self
        # Between two neighbouring bounds either all or none belong to a set. Nothing follows the largest index of all.
        ends = np.concatenate((self._ends, other._ends))
        behind = ends[ends < np.uint64(MAX_INDEX)] + np.uint64(1)
        firsts = np.unique(np.concatenate((self._starts, other._starts, behind)))
        lasts = np.append(firsts[1:] - np.uint64(1), np.uint64(MAX_INDEX))
        kept = self.mask(firsts) & ~other.mask(firsts)
        return LiveSet(firsts[kept], lasts[kept])

    def intersection(self, other: LiveSet) -> LiveSet:
        """The members that are in `other` as well; O(ranges of both)."""
        return self.without(self.without(other))

    def count_in(self, low: int, high: int) -> int:
        """Number of members in low..high, inclusive; O(log ranges)."""
        low, high = max(low, 0), min(high, MAX_INDEX)
        return self._count_below(high + 1) - self._count_below(low) if low <= high else 0

    def _count_below(self, bound: int) -> int:
        """Number of members < bound, for bound 0..2**64."""
        if bound == 0:
            return 0
        position = int(np.searchsorted(self._starts, np.uint64(bound - 1), side="right"))
        if position == 0:
            return 0
        last = position - 1
        inside = min(int(self._ends[last]) + 1, bound) - int(self._starts[last])
        return int(self._before[last]) + inside


def _u64(values: Iterable[int]) -> U64Array:
    try:
        return np.fromiter(values, dtype=np.uint64)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"an index is not in 0..{MAX_INDEX}") from error


def _normalise(starts: npt.ArrayLike, ends: npt.ArrayLike) -> tuple[U64Array, U64Array]:
    """Sorted, merged copies of inclusive ranges."""
    low, high = np.array(starts, dtype=np.uint64), np.array(ends, dtype=np.uint64)
    if low.size == 0:
        return low, high
    if (low > high).any():
        raise ValueError(f"a range is not within 0..{MAX_INDEX}, low end first")
    if (low[1:] < low[:-1]).any():
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
    reach = np.maximum.accumulate(high)
    # A range opens a new one only when it begins past the neighbour of all that came before.
    opens = np.ones(low.size, dtype=np.bool_)
    opens[1:] = (low[1:] > reach[:-1]) & (low[1:] - reach[:-1] > np.uint64(1))
    closes = np.append(np.flatnonzero(opens)[1:] - 1, low.size - 1)
    return low[opens], reach[closes]


def encode_sequence(live: LiveSet) -> bytes:
    """The external term of the ra_seq: high to low, tuples only for 3 or more consecutive indexes."""
    items: list[etf.Term] = []
    for low, high in reversed(live.ranges):
        if high - low >= 2:
            items.append((low, high))
        else:
            items.extend(range(high, low - 1, -1))
    return etf.encode(items)


def decode_sequence(data: bytes) -> LiveSet:
    """The set that an ra_seq's external term holds. TermFormatError when it is anything else.

    Not `etf.decode`: only integers and pairs are accepted (`take_indexes`), so hostile bytes cannot make it build other
    objects.
    """
    cursor = etf.Cursor(data)
    cursor.version()
    tag = cursor.byte()
    lows = highs = np.zeros(0, dtype=np.uint64)
    if tag == etf.STRING:
        lows = highs = np.frombuffer(cursor.take(cursor.u16()), dtype=np.uint8).astype(np.uint64)
    elif tag == etf.LIST:
        lows, highs = take_indexes(cursor, cursor.count(cursor.u32()))
        if cursor.byte() != etf.NIL:
            raise TermFormatError("the list of indexes has an improper tail")
    elif tag != etf.NIL:
        raise TermFormatError(f"a list of indexes is expected, not a term with tag {tag}")
    if cursor.remaining:
        raise TermFormatError(f"{cursor.remaining} bytes follow the list of indexes")
    try:
        return LiveSet(lows, highs)
    except ValueError as error:
        raise TermFormatError(str(error)) from error


def encode_indexes(live: LiveSet) -> bytes:
    """The whole `indexes` file, in the current form."""
    body = encode_sequence(live)
    return _HEADER.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode_indexes(data: bytes, *, file: str = "indexes") -> LiveSet:
    """The set in an `indexes` file, current or legacy form. CorruptIndexesError names `file`."""
    body = data
    if data[:4] == MAGIC:
        if len(data) < _HEADER.size:
            raise CorruptIndexesError(file, f"the header is cut off after {len(data)} of {_HEADER.size} bytes")
        _, version, crc = _HEADER.unpack_from(data)
        if version != VERSION:
            raise CorruptIndexesError(file, f"version {version} is not supported ({VERSION} is)")
        body = data[_HEADER.size :]
        if zlib.crc32(body) != crc:
            raise CorruptIndexesError(file, f"checksum {zlib.crc32(body):08x} of the content, {crc:08x} in the header")
    try:
        return decode_sequence(body)
    except TermFormatError as error:
        raise CorruptIndexesError(file, str(error)) from error
