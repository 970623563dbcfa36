"""Cuts a merge into parts by ranges of the first key column, so that several tasks can share it.

The cuts come from the statistics of row groups, so nothing is read: bounds of row groups, weighted with their rows.
Every row is in exactly one part; rows with a null in the column are in the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from compaction.stores.blocks.merge.footers import Bound, Footer


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Rows whose first key column is at least `first` and below `last`; None is no bound."""

    first: Bound | None = None
    last: Bound | None = None


WHOLE = KeyRange()


def key_ranges(footers: Sequence[Footer], column: str, *, parts: int) -> tuple[KeyRange, ...]:
    """At most so many ranges of about equal numbers of rows, ascending, which together hold every row once.

    Fewer when the column has few values, and only one when a row group does not say what is in it.
    """
    weights: dict[Bound, int] = {}
    for footer in footers:
        for group in footer.groups:
            bounds = footer.bounds(group, column)
            if bounds is None:
                return (WHOLE,)
            rows = footer.metadata.row_group(group).num_rows
            for bound in bounds:  # half of its rows at either end: exact for many row groups, harmless for few
                weights[bound] = weights.get(bound, 0) + rows
    cuts: list[Bound] = []
    total, passed = sum(weights.values()), 0
    ordered = sorted(weights)
    for before, bound in pairwise(ordered):
        passed += weights[before]
        if len(cuts) < parts - 1 and passed * parts >= total * (len(cuts) + 1):
            cuts.append(bound)
    edges = [None, *cuts, None]
    return tuple(KeyRange(first, last) for first, last in pairwise(edges))
