"""Many schedules on all cores, each by itself; what comes back is small."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.pool import Pool
from pathlib import Path

from simulation.mutations import MUTATIONS
from simulation.world import Violation, simulate

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
