"""The simulator finds nothing in the code as it is, and finds every defect that is put in (docs/simulation.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import pytest

from simulation.invariants import Invariant
from simulation.many import Summary, ddmin, shrink, summaries, told, workers
from simulation.mutations import MUTATIONS
from simulation.remembered import KEPT, every_seed, finders, recall
from simulation.world import simulate
from support.timing import SCHEDULES, at_depth, schedules


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with workers() as made:
        yield made


def wanted() -> set[int]:
    return {*range(schedules()), *every_seed(at_depth(short=1, deep=KEPT))}


@pytest.fixture(scope="module")
def ran(pool: Pool) -> dict[int, Summary]:
    """The schedules, by their seeds. Those that find a defect when there is one: a short run has one of each, too."""
    seeds = sorted(wanted())
    return {summary.seed: summary for summary in summaries(pool, seeds)}


def test_nothing_is_violated(ran: dict[int, Summary]) -> None:
    for seed, item in ran.items():
        if item.violation is not None:
            pytest.fail(told(simulate(seed)))
    assert ran.keys() == wanted()


@pytest.mark.parametrize("what", sorted(MUTATIONS))
def test_every_defect_is_found(pool: Pool, what: str) -> None:
    """By the invariant it breaks, at any depth: the search begins where it ended before, and gives up where a deep run
    ends.
    """
    found = next(finders(pool, what, schedules=SCHEDULES, remembered=recall(what)), None)
    assert found is not None, f"none of {SCHEDULES} schedules sees it"


def test_every_invariant_has_a_defect() -> None:
    assert {found for mutation in MUTATIONS.values() for found in mutation.finds} == set(Invariant)


def test_the_same_seed_gives_the_same_trace_in_every_process(ran: dict[int, Summary]) -> None:
    """Whatever the hash seed, the directory, the time of day, and what ran before."""
    seeds = (11, 21, 35)
    here = [simulate(seed).digest for seed in seeds]
    assert [ran[seed].digest for seed in seeds] == here, "in a process of the pool, after others"
    program = f"from simulation.world import simulate\nfor seed in {seeds[::-1]}: print(simulate(seed).digest)"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split()[::-1] == here


def test_schedules_differ_and_do_something(ran: dict[int, Summary]) -> None:
    outcomes = list(ran.values())
    assert len({outcome.digest for outcome in outcomes}) == len(outcomes)
    assert sum(outcome.commits for outcome in outcomes) > len(outcomes)
    assert sum(outcome.struck for outcome in outcomes) > 3 * len(outcomes)


def test_a_failing_schedule_shrinks_to_what_it_needs() -> None:
    """A commit without evidence needs one death in the right place, and shows nothing without it."""
    what = "recovery finishes a commit without evidence"
    with MUTATIONS[what].applied():
        seeds = (*recall(what), *range(SCHEDULES))
        outcome = next(found for seed in seeds if (found := simulate(seed)).violation is not None)
        small = shrink(outcome)
        again = simulate(outcome.seed, allowed=frozenset(small.struck))
    assert small.violation is not None
    assert again.violation == small.violation
    assert len(small.struck) <= max(3, len(outcome.struck) // 2)
    assert f"make simulate SEED={outcome.seed}" in told(small)


@pytest.mark.parametrize("needed", [{"3"}, {"0", "9"}, {"2", "5", "8"}])
def test_ddmin_leaves_what_is_needed(needed: set[str]) -> None:
    items = [str(number) for number in range(10)]
    left = []

    def fails(chosen: list[str]) -> bool:
        left.append(chosen)
        return needed <= set(chosen)

    assert set(ddmin(items, fails, limit=300)) == needed
