"""limits.bytesPerSecond: each job gets a share, together they never have more, and who waits says why."""

from __future__ import annotations

from compaction.api.enums import JobState
from compaction.api.text.printing import format_bytes
from support.cluster.world import PlainCluster

LIMIT = 1000


def world_with(logs: int, *, limit: int | None = LIMIT, concurrent: int = 4, slots: int = 4) -> PlainCluster:
    limits: dict[str, object] = {"maxConcurrentJobs": concurrent}
    if limit is not None:
        limits["bytesPerSecond"] = limit
    world = PlainCluster(limits=limits, workers={"slots": slots, "max": 1})
    for i in range(logs):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.announce()
    world.rest()
    return world


def granted(world: PlainCluster) -> dict[str, int | None]:
    return {name: lease.bytes_per_second for name, lease in world.leases.items()}


def test_the_jobs_that_could_run_share_the_limit() -> None:
    world = world_with(6)
    assert sorted(granted(world).values(), key=str) == [250] * 4
    for name in granted(world):
        assert world.jobs[name].status.attempts[-1].bytes_per_second == 250
    assert world.status.granted_bytes_per_second == LIMIT
    assert [(row.reason, row.count) for row in world.status.waits] == [("ConcurrencyLimit", 2)]


def test_slots_count_where_they_are_fewer_than_the_limit_of_jobs() -> None:
    assert sorted(granted(world_with(6, slots=2)).values(), key=str) == [500, 500]


def test_a_job_alone_gets_everything_and_the_next_one_waits_with_a_reason() -> None:
    world = world_with(1)
    (first,) = granted(world)
    assert granted(world) == {first: LIMIT}
    world.add_log("/ra/new")
    world.pass_time(75)
    assert granted(world) == {first: LIMIT}
    waiting = world.status.waiting
    assert waiting is not None
    assert waiting.reason == "RateLimited"
    assert "spec.limits.bytesPerSecond" in waiting.message
    world.finish(first)
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS) != []
    assert sum(given or 0 for given in granted(world).values()) <= LIMIT


def test_what_is_said_to_be_granted_includes_the_jobs_that_were_just_started() -> None:
    world = PlainCluster(limits={"maxConcurrentJobs": 4, "bytesPerSecond": LIMIT}, workers={"slots": 1, "max": 1})
    for i in range(3):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.wall += 20  # no write of the status is put off
    world.announce()
    world.reconcile()
    assert len(world.in_state(JobState.IN_PROGRESS)) == 1
    assert world.status.granted_bytes_per_second == LIMIT, "written with the assignment"
    (waiting,) = world.status.waits
    given = format_bytes(LIMIT)
    assert (waiting.reason, waiting.count) == ("RateLimited", 2)
    assert f"the running jobs have {given} of the {given} bytes per second" in waiting.message


def test_a_suspended_policy_says_what_its_running_jobs_still_have() -> None:
    world = world_with(6)
    world.change_spec(suspend=True)
    world.rest()
    assert len(world.in_state(JobState.IN_PROGRESS)) == 4
    assert world.status.granted_bytes_per_second == LIMIT
    for name in list(granted(world)):
        world.finish(name)
    world.rest()
    assert world.status.granted_bytes_per_second == 0


def test_without_a_limit_nobody_is_given_a_share() -> None:
    world = world_with(2, limit=None)
    assert set(granted(world).values()) == {None}
    assert world.status.granted_bytes_per_second is None


def test_a_limit_that_is_lowered_lets_the_running_finish_first() -> None:
    world = world_with(3)
    world.add_log("/ra/new")
    world.change_spec(limits={"bytesPerSecond": 100})
    world.pass_time(75)
    assert len(world.in_state(JobState.IN_PROGRESS)) == 3
    assert [row.reason for row in world.status.waits] == ["RateLimited"]
    for name in world.in_state(JobState.IN_PROGRESS):
        world.finish(name)
    world.rest()
    assert list(granted(world).values()) == [100]


def test_no_worker_is_started_for_jobs_that_no_bytes_are_left_for() -> None:
    world = PlainCluster(limits={"bytesPerSecond": LIMIT}, workers={"slots": 1, "max": 4})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    world.add_log("/ra/b")
    world.pass_time(75)
    assert len(world.workers) == 1
    assert world.status.waits[0].reason == "RateLimited"


def test_the_share_survives_a_coordinator_that_dies_between_lease_and_status() -> None:
    world = world_with(2)
    before = granted(world)
    for name in before:
        world.put_status(name, state=JobState.UNASSIGNED, fencing_token=0, attempts=())
    world.restart()
    world.rest()
    assert granted(world) == before
    assert {world.jobs[name].status.attempts[-1].bytes_per_second for name in before} == {500}


def test_the_end_that_is_told_is_no_earlier_than_the_limit_allows() -> None:
    world = world_with(6, limit=10, concurrent=1)
    (first,) = world.in_state(JobState.IN_PROGRESS)
    world.pass_time(1)
    world.finish(first)
    world.pass_time(15)
    assert world.status.eta_seconds is not None
    assert world.status.eta_seconds >= 5 * 50 * 3 / 10
