"""How much is open at once: runs whose keys do not overlap are read one after the other, however many there are.

A run is open from the round in which its smallest key is next until its last row is emitted (`rounds`): two runs are
open together only if neither ends before the other begins. A run whose bounds are not known is taken to be open all
the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from compaction.blocks.merge.footers import Bound
from compaction.blocks.merge.runs import Run


def most_at_once(runs: Sequence[Run], weight: Callable[[Run], int]) -> int:
    """The largest sum of the weights, none of which is negative, of runs that may be open at the same time."""
    now = sum(weight(run) for run in runs if run.least is None)
    known = [(run.least, number, run) for number, run in enumerate(runs) if run.least is not None]
    ends: list[tuple[Bound, int]] = []
    most = now
    for least, _, run in sorted(known, key=lambda one: one[:2]):
        while ends and ends[0][0] < least:  # type: ignore[operator]  # bounds of one column are of one type
            now -= heapq.heappop(ends)[1]
        one = weight(run)
        if run.most is not None:
            heapq.heappush(ends, (run.most, one))
        now += one
        most = max(most, now)
    return most


def open_at_once(runs: Sequence[Run]) -> int:
    """How many of the runs may be open at the same time."""
    return most_at_once(runs, lambda _: 1)
