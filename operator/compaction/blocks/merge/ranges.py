"""Cuts a merge into parts by ranges of the first key column, so that several tasks can share it.

The cuts come from the statistics of row groups, so nothing is read: each has its rows spread evenly between its bounds,
where these are numbers or times; of texts only the bounds themselves are cuts. Every row is in exactly one part; rows
with a null in the column are in the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from compaction.blocks.merge.footers import Bound, OpenedFooter


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose first key column is at least `first` and below `last`; None is no bound."""

    first: Bound | None = None
    last: Bound | None = None


WHOLE = KeyRange()


class _Group(NamedTuple):
    """A row group: smallest and largest key, rows."""

    least: Bound
    most: Bound
    rows: int


def key_ranges(footers: Sequence[OpenedFooter], column: str, *, parts: int) -> tuple[KeyRange, ...]:
    """At most so many ranges of about equal numbers of rows, ascending, which together hold every row once.

    Fewer when the column has few values, and only one when a row group does not say what is in it.
    """
    groups: list[_Group] = []
    for footer in footers:
        for group in footer.groups:
            bounds = footer.bounds(group, column)
            if bounds is None:
                return (WHOLE,)
            groups.append(_Group(*bounds, footer.metadata.row_group(group).num_rows))
    if not groups:
        return (WHOLE,)
    least, most = min(group.least for group in groups), max(group.most for group in groups)
    cuts = sorted({cut for cut in _cuts(groups, parts) if least < cut <= most})  # type: ignore[operator]
    edges = [None, *cuts, None]
    return tuple(KeyRange(first, last) for first, last in pairwise(edges))


def _cuts(groups: Sequence[_Group], parts: int) -> Iterator[Bound]:
    """Where each part but the first begins. Between two bounds the rows of the row groups around them lie evenly."""
    slopes: dict[Bound, float] = {}
    jumps: dict[Bound, float] = {}
    for least, most, rows in groups:
        if isinstance(least, int) and isinstance(most, int) and least < most:
            slopes[least] = slopes.get(least, 0.0) + rows / (most - least)
            slopes[most] = slopes.get(most, 0.0) - rows / (most - least)
        else:  # half of its rows at either end: exact for many row groups, harmless for few
            for bound in (least, most):
                jumps[bound] = jumps.get(bound, 0.0) + rows / 2
    part = sum(group.rows for group in groups) / parts
    passed = slope = 0.0
    before: Bound | None = None
    wanted = 1
    for bound in sorted({*slopes, *jumps}):
        here = passed + (slope * (bound - before) if isinstance(bound, int) and isinstance(before, int) else 0.0)
        while wanted < parts and slope > 0 and here >= wanted * part:
            assert isinstance(before, int)
            assert isinstance(bound, int)
            yield min(bound, before + math.ceil((wanted * part - passed) / slope))  # rounded, it may be behind it
            wanted += 1
        passed, before = here, bound
        slope += slopes.get(bound, 0.0)
        jump = jumps.get(bound, 0.0)
        while wanted < parts and jump and passed + jump >= wanted * part:
            yield bound
            wanted += 1
        passed += jump
