"""Many schedules on all cores, each by itself; what comes back is small."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.pool import Pool
from pathlib import Path

from simulation.invariants import Invariant
from simulation.mutations import MUTATIONS
from simulation.world import Outcome, Violation, simulate

BATCH = 100
Result = tuple[int, Violation | None]


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of a schedule that ran elsewhere."""

    seed: int
    violation: Violation | None
    digest: str
    struck: int
    commits: int


@contextmanager
def workers() -> Iterator[Pool]:
    """A process per core."""
    sys.path[:] = dict.fromkeys([str(Path(__file__).parents[1]), *sys.path])
    with multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1) as pool:
        yield pool


def run_many(pool: Pool, seeds: Iterable[int], *, mutation: str | None = None, batch: int = BATCH) -> Iterator[Result]:
    """(seed, what it violates) for each seed, in order; none after the batch with the first violation."""
    for summary in summaries(pool, seeds, mutation=mutation, batch=batch):
        yield summary.seed, summary.violation


def summaries(
    pool: Pool, seeds: Iterable[int], *, mutation: str | None = None, batch: int = BATCH
) -> Iterator[Summary]:
    """The same, with more of each schedule."""
    rest = iter(seeds)
    while part := list(islice(rest, batch)):
        found = False
        for result in pool.imap(partial(_one, mutation), part, chunksize=max(1, batch // 20)):
            yield result
            found |= result.violation is not None
        if found:
            return


def _one(mutation: str | None, seed: int) -> Summary:
    with MUTATIONS[mutation].applied() if mutation is not None else nullcontext():
        one = simulate(seed)
    return Summary(seed, one.violation, one.digest, len(one.struck), one.stats["commits"])


# From a schedule that violates something to the few faults that are enough for it (delta debugging).

LIMIT = 300
"""Schedules that shrinking may cost."""


def shrink(outcome: Outcome, *, limit: int = LIMIT) -> Outcome:
    """A schedule of the same seed with as few faults as possible that violates the same invariant."""
    assert outcome.violation is not None, "only what fails can be shrunk"
    wanted = outcome.violation.invariant
    best = [outcome]

    def fails(faults: list[str]) -> bool:
        found = simulate(outcome.seed, allowed=frozenset(faults))
        if found.violation is None or found.violation.invariant is not wanted:
            return False
        best[0] = found
        return True

    ddmin(list(dict.fromkeys(outcome.struck)), fails, limit=limit)
    return best[0]


def ddmin(items: list[str], fails: Callable[[list[str]], bool], *, limit: int) -> list[str]:
    """A small part of `items` for which `fails` still holds; at most `limit` questions are asked."""
    parts, asked = 2, 0
    while items and asked < limit:
        size = max(1, len(items) // parts)
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        for chunk in chunks:
            rest = [item for item in items if item not in chunk]
            asked += 1
            if fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
            if asked >= limit:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(items))
    return items


def told(outcome: Outcome, *, lines: int = 400) -> str:
    """A failing schedule for people: the end of its trace, what was violated, by which faults, and how to replay it."""
    assert outcome.violation is not None, "nothing was violated"
    violation: Invariant = outcome.violation.invariant
    cut = len(outcome.trace) - lines
    return "\n".join(
        [
            *([f"... {cut} lines before ..."] if cut > 0 else []),
            *outcome.trace[-lines:],
            "",
            f"seed {outcome.seed} violates: {violation}",
            f"  {outcome.violation.message}",
            f"  {len(outcome.struck)} faults: {', '.join(outcome.struck) or 'none'}",
            f"  replay and shrink it: make simulate SEED={outcome.seed}",
        ]
    )
