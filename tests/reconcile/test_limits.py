"""Limits met exactly: the last attempt, the last place in the queue, the renewal in the instant of expiry."""

from __future__ import annotations

import pytest

from compaction.api.enums import JobState
from support.cluster.world import PlainCluster

LEASE = 15.0


def started(**limits: int) -> PlainCluster:
    """One log, one job, one worker, and the job running."""
    world = PlainCluster(limits=limits)
    world.add_log("/ra/a")
    world.settle()
    world.announce()
    world.settle()
    assert world.state(world.only_job()) is JobState.IN_PROGRESS
    return world


def pass_time(world: PlainCluster, seconds: float) -> None:
    """Time passes, and workers renew their own Leases; those of jobs stay silent."""
    world.wall += seconds
    for worker in world.workers.values():
        worker.changed_at = world.wall


def expire(world: PlainCluster) -> None:
    pass_time(world, LEASE + 1)
    world.settle()


def fail(world: PlainCluster) -> None:
    world.report(world.only_job(), outcome="Failed")
    pass_time(world, 1)
    world.settle()


@pytest.mark.parametrize("attempts", [1, 2, 3, 20])
@pytest.mark.parametrize("end", [expire, fail], ids=["expired", "failed"])
def test_exactly_as_many_attempts_as_the_limit_says(attempts: int, end: object) -> None:
    assert callable(end)
    world = started(maxAttempts=attempts)
    job = world.only_job()
    for number in range(1, attempts + 1):
        assert world.state(job) is JobState.IN_PROGRESS, f"attempt {number} of {attempts} was not made"
        assert world.jobs[job].status.fencing_token == number
        end(world)
        if world.state(job) is JobState.ABANDONED:  # a failure waits before the next attempt, never for longer
            pass_time(world, 61)
            world.settle()
    status = world.jobs[job].status
    assert (status.state, status.failures) == (JobState.FAULTY, attempts)
    pass_time(world, 3600)
    world.settle()
    assert world.jobs[job].status.fencing_token == attempts, "nobody tries it again"


def test_the_queue_takes_exactly_as_many_jobs_as_the_limit_says() -> None:
    world = PlainCluster(limits={"maxJobsQueued": 2})
    for name in "abc":
        world.add_log(f"/ra/{name}")
    world.settle()
    assert len(world.jobs) == 2
    world.announce()
    world.settle()
    for job in list(world.jobs):
        world.finish(job)
    for _ in range(3):
        pass_time(world, 61)
        world.settle()
    logs = {job.spec.sources.segment_log.path for job in world.jobs.values() if job.spec.sources.segment_log}
    assert logs == {"/ra/a", "/ra/b", "/ra/c"}, "what found no place is planned when there is one"


@pytest.mark.parametrize(("renewed", "token"), [(True, 1), (False, 2)])
def test_a_renewal_seen_in_the_instant_of_expiry_counts(renewed: bool, token: int) -> None:
    world = started()
    job = world.only_job()
    pass_time(world, LEASE)
    if renewed:
        world.renew(job)
    world.settle()
    assert world.jobs[job].status.fencing_token == token
    assert world.commit(job, 1) is renewed, "the store and the coordinator agree whose job it is"
