"""Sums of debt, speed and arrival; the state machine of a job."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from compaction.api.enums import JobState
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.debt import FinishedWork, LevelDebt, bytes_per_second, eta_seconds, total_debt
from compaction.core.reconcile.jobs.job import TRANSITIONS, JobEvent, next_state
from compaction.errors import IllegalTransitionError

ONE = Candidate(
    target="/ra/a",
    tenant="",
    base_version="1",
    groups=(GroupCandidate(("1",), ("i",), copy_bytes=30, gain_bytes=70),),
    obsolete=(),
    debt_bytes=70,
    debt_sources=1,
    sensed_at=0.0,
    oldest_debt_at=50.0,
)


def test_debt_by_level_with_its_oldest_age() -> None:
    debt = total_debt(
        [ONE, replace(ONE, level=1, debt_bytes=5, oldest_debt_at=20.0), replace(ONE, groups=(), debt_bytes=0)]
    )
    assert debt.levels == (LevelDebt(0, 70, 1), LevelDebt(1, 5, 1))
    assert (debt.bytes, debt.sources, debt.targets, debt.oldest_at, debt.copy_bytes) == (75, 2, 2, 20.0, 60)


def test_no_debt() -> None:
    assert total_debt([]).oldest_at is None


def test_speed_is_of_the_newest_receipts() -> None:
    old = [FinishedWork(1, 100.0, float(i)) for i in range(5)]
    new = [FinishedWork(1000, 1.0, 100.0 + i) for i in range(20)]
    assert bytes_per_second(new + old) == 1000.0


@pytest.mark.parametrize("work", [[], [FinishedWork(10, 0.1, 1.0)], [FinishedWork(0, 10.0, 1.0)]])
def test_no_speed_from_too_little(work: list[FinishedWork]) -> None:
    assert bytes_per_second(work) is None


def test_many_small_jobs_have_a_speed_and_it_includes_what_a_job_costs_at_least() -> None:
    assert bytes_per_second([FinishedWork(10, 0.0, float(i)) for i in range(20)]) == pytest.approx(100.0)


def test_eta() -> None:
    assert eta_seconds(0, None, parallel=2) == 0.0
    assert eta_seconds(100, None, parallel=2) is None
    assert eta_seconds(100, 10.0, parallel=2) == 5.0


def test_every_pair_is_in_the_table_or_refused() -> None:
    for state, event in itertools.product(JobState, JobEvent):
        if (state, event) in TRANSITIONS:
            assert next_state(state, event) is TRANSITIONS[state, event]
        else:
            with pytest.raises(IllegalTransitionError):
                next_state(state, event)


def test_succeeded_is_final_and_every_other_state_can_reach_it() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is JobState.SUCCEEDED]
    reach = {JobState.SUCCEEDED}
    for _ in JobState:
        reach |= {state for (state, _), after in TRANSITIONS.items() if after in reach}
    assert reach == set(JobState)
