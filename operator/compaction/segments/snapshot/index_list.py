"""The elements of an ra_seq's list, integers and {Low, High} pairs, taken run by run.

The format: docs/design/segment-snapshots.md#indexes.

65,000 scattered live indexes are 65,000 elements; one at a time they cost 60 ms, more than copying what they stand for.
Neighbours nearly always have one shape (same tags, same sizes), so a regular expression finds where the run ends, and
numpy reads the run. What fits no known shape is decoded by itself, and that is where every error is found.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.segments.errors import TermFormatError
from compaction.segments.format import etf
from compaction.segments.model import MAX_INDEX, U64Array

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
