"""The queue at its limit: one below, exactly there, one above."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.core.planning.candidates import Candidate, GroupCandidate, LeftOutReason
from compaction.core.planning.planner import JobInventory, Plan, PlanLimits, Planner, PlanTrigger

LIMIT = 3


def candidate(number: int) -> Candidate:
    return Candidate(
        target=f"/ra/{number}",
        tenant="",
        base_version="7",
        groups=(GroupCandidate(("1.segment", "2.segment"), ("id-1", "id-2"), copy_bytes=100, gain_bytes=50),),
        obsolete=(),
        debt_bytes=50,
        debt_sources=1,
        sensed_at=100.0,
    )


@dataclass(frozen=True)
class Queue:
    """`parked` of the `size` jobs are Faulty and may be evicted."""

    size: int
    parked: int = 0

    def planned(self, candidates: int, *, limit: int = LIMIT) -> Plan:
        planner = Planner("policy", "uid", PlanLimits(max_bytes_per_job=1000, max_jobs_queued=limit), PlanTrigger())
        inventory = JobInventory(evictable=tuple(f"f{i}" for i in range(self.parked)), queue_size=self.size)
        return planner.plan([candidate(number) for number in range(candidates)], {}, inventory, now=10_000.0)


@pytest.mark.parametrize(("size", "jobs"), [(LIMIT - 1, 1), (LIMIT, 0), (LIMIT + 1, 0)])
def test_jobs_that_must_stay_leave_exactly_the_room_that_is_left(size: int, jobs: int) -> None:
    result = Queue(size).planned(2)
    assert (len(result.jobs), result.evict) == (jobs, ())
    assert [(out.reason, out.count) for out in result.left_out] == [(LeftOutReason.QUEUE_FULL, 2 - jobs)]


@pytest.mark.parametrize(("size", "evicted"), [(LIMIT - 1, 0), (LIMIT, 1), (LIMIT + 1, 1)])
def test_a_parked_job_makes_room_from_the_limit_on_and_not_before(size: int, evicted: int) -> None:
    assert len(Queue(size, parked=1).planned(1).evict) == evicted


@given(limit=st.integers(1, 8), size=st.integers(0, 12), parked=st.integers(0, 12), candidates=st.integers(0, 8))
def test_never_above_the_limit_and_never_idle_below_it(limit: int, size: int, parked: int, candidates: int) -> None:
    parked = min(parked, size)
    result = Queue(size, parked).planned(candidates, limit=limit)
    before = size - len(result.evict)
    assert len(result.jobs) <= max(0, limit - before)
    assert len(result.jobs) == min(candidates, max(0, limit - before)), "room is used while there is work"
    assert len(result.jobs) + sum(out.count for out in result.left_out) == candidates, "what got no job has a reason"
