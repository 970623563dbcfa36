"""For each defect, schedules that found it when they were last looked for: a later search begins with them.

Any change of the code may make other schedules of the same seeds, so a remembered seed promises nothing: when none of
them finds its defect, the search goes through all schedules as if nothing had been remembered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

from simulation.many import run_many
from simulation.mutations import MUTATIONS

FILE = Path(__file__).with_name("remembered.json")
KEPT = 3
BATCH = 20


def finders(pool: Pool, what: str, *, schedules: int, remembered: tuple[int, ...] = ()) -> Iterator[int]:
    """Seeds below `schedules` whose schedule sees the defect by an invariant that it breaks: the remembered first."""
    known = [seed for seed in remembered if seed < schedules]
    others = [seed for seed in range(schedules) if seed not in known]
    # One after the other those of which each is expected to be the last.
    for seeds, batch in ((known, 1), (others, BATCH)):
        rest = iter(seeds)
        while results := list(run_many(pool, rest, mutation=what, batch=batch)):
            for seed, violation in results:
                if violation is not None and violation.invariant in MUTATIONS[what].finds:
                    yield seed


def recall(what: str) -> tuple[int, ...]:
    """The remembered seeds of a defect; none for a new one."""
    return tuple(json.loads(FILE.read_text()).get(what, ()))


def every_seed(most: int) -> set[int]:
    """The remembered seeds of all defects, at most so many of each."""
    return {seed for what in MUTATIONS for seed in recall(what)[:most]}


def remember(pool: Pool, *, schedules: int) -> Iterator[tuple[str, list[int]]]:
    """Search for every defect anew, and write down the first `KEPT` seeds that find it."""
    found: dict[str, list[int]] = {}
    for what in sorted(MUTATIONS):
        seeds = finders(pool, what, schedules=schedules)
        found[what] = [seed for _, seed in zip(range(KEPT), seeds, strict=False)]
        yield what, found[what]
    FILE.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
