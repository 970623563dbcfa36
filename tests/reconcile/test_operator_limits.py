"""Limits of the operator, as one policy meets them: launches, workers given back, bytes per second, and the words."""

from __future__ import annotations

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import JobState, WorkerTrouble
from compaction.core.planning.scheduler import Grant
from compaction.core.reconcile.observations import Allowance, OperatorLimits
from compaction.core.reconcile.policy import reconcile
from support.cluster.world import PlainCluster

LIMITS = OperatorLimits(max_workers=4, bytes_per_second=1000)


def allowed(workers: Grant | None = None, rate: Grant | None = None) -> Allowance:
    return Allowance(LIMITS, workers, rate)


def world_with(logs: int, allowance: Allowance, *, workers: int = 3, slots: int = 1, **limits: int) -> PlainCluster:
    world = PlainCluster(workers={"max": workers, "slots": slots}, limits={"maxConcurrentJobs": 8, **limits})
    world.allowance = allowance
    for i in range(logs):
        world.add_log(f"/ra/{i}")
    settle(world)
    return world


def settle(world: PlainCluster) -> None:
    world.rest()
    world.announce()
    world.rest()


def reasons(world: PlainCluster) -> dict[str, int]:
    return {row.reason: row.count for row in world.status.waits}


def test_no_more_workers_are_started_than_the_policy_may_hold() -> None:
    world = world_with(5, allowed(Grant(2, 2, 2)))
    assert len(world.workers) == 2
    assert reasons(world) == {"OperatorWorkerLimit": 3}
    [row] = world.status.waits
    assert row.message == "all policies have 4 workers together (--max-workers), 2 of them are this policy's"


def test_before_its_turn_a_policy_starts_none_and_says_so_with_an_age() -> None:
    world = world_with(2, allowed(Grant(0, 0, 0), Grant(0, 0, 0)))
    assert world.workers == {}
    world.pass_time(30)
    waiting = world.status.waiting
    assert waiting is not None
    assert waiting.reason == "OperatorWorkerLimit"
    assert "turn" in waiting.message
    assert (timestamp_from_epoch(world.wall) - waiting.since).total_seconds() >= 30


def test_its_own_limit_still_holds() -> None:
    world = world_with(5, allowed(Grant(4, 4, 4)), workers=1)
    assert len(world.workers) == 1
    assert reasons(world) == {"NoFreeSlot": 4}


def test_workers_are_given_back_as_their_jobs_end() -> None:
    world = world_with(6, allowed(Grant(3, 3, 3)))
    assert len(world.in_state(JobState.IN_PROGRESS)) == 3
    world.allowance = allowed(Grant(1, 1, 1))
    world.rest()
    assert len(world.workers) == 3  # nothing is interrupted
    for _ in range(2):
        for job in world.in_state(JobState.IN_PROGRESS)[:2]:
            world.finish(job)
        settle(world)
    assert len([worker for worker in world.workers.values() if worker.process == "running"]) == 1
    assert len(world.in_state(JobState.IN_PROGRESS)) == 1


def test_an_idle_worker_is_given_back_at_once() -> None:
    world = world_with(1, allowed(Grant(1, 1, 1)))
    world.finish(world.only_job())
    world.rest()
    assert len(world.workers) == 1
    world.allowance = allowed(Grant(0, 0, 0))
    world.rest()
    assert world.workers == {}


def wish_of(world: PlainCluster) -> tuple[int, int, int | None, int]:
    demand = reconcile(world.snapshot()).demand
    return demand.workers, demand.holds, demand.bytes_per_second, demand.granted


def test_a_policy_wishes_what_it_could_use_alone() -> None:
    world = world_with(5, allowed(Grant(1, 1, 1), Grant(500, 500, 500)), slots=2)
    assert wish_of(world) == (3, 1, None, 500)  # 2 jobs run with 250 each, 3 wait
    world.change_spec(suspend=True)
    world.rest()
    assert wish_of(world) == (1, 1, 500, 500)
    for job in world.in_state(JobState.IN_PROGRESS):
        world.finish(job)
    world.rest()
    assert wish_of(world) == (0, 1, 0, 0)


def test_a_policy_that_is_gone_wishes_nothing_and_still_holds_its_workers() -> None:
    world = world_with(1, allowed(Grant(1, 1, 1)))
    world.policy = None
    assert wish_of(world) == (0, 1, 0, 0)


def test_jobs_have_the_policy_s_share_of_the_operator_s_bytes() -> None:
    world = world_with(4, allowed(None, Grant(600, 600, 600)), slots=4, workers=1)
    assert [lease.bytes_per_second for lease in world.leases.values()] == [150] * 4
    assert world.status.granted_bytes_per_second == 600


def test_a_share_that_others_still_have_is_waited_for() -> None:
    world = world_with(2, allowed(None, Grant(600, 200, 200)), slots=4, workers=1)
    assert world.leases == {}
    assert reasons(world) == {"OperatorRateLimit": 2}
    world.allowance = allowed(None, Grant(600, 300, 300))
    settle(world)
    assert [lease.bytes_per_second for lease in world.leases.values()] == [300]


def test_the_smaller_of_both_limits_counts_and_is_named() -> None:
    world = world_with(2, allowed(None, Grant(600, 600, 600)), slots=4, workers=1, bytesPerSecond=400)
    assert [lease.bytes_per_second for lease in world.leases.values()] == [200, 200]
    world.add_log("/ra/new")
    world.pass_time(75)
    assert reasons(world) == {"RateLimited": 1}


def test_a_worker_that_waits_for_room_is_given_back_first() -> None:
    """Or a policy whose pods find no room would keep what others could use."""
    world = world_with(1, allowed(Grant(2, 2, 2)))
    world.add_log("/ra/more")
    world.pass_time(75)
    world.rest()
    (pending,) = (name for name, worker in world.workers.items() if not worker.has_lease)
    world.workers[pending].trouble = WorkerTrouble.UNSCHEDULABLE
    world.allowance = allowed(Grant(1, 1, 1))
    world.rest()
    assert pending not in world.workers
    assert len(world.in_state(JobState.IN_PROGRESS)) == 1
