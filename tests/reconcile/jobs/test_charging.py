"""What is charged to a job and what is not: infrastructure that goes away is nobody's failure.

The rules: docs/design/scheduling.md#attempts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compaction.api.enums import AttemptOutcome, JobReason, JobState
from compaction.segments.reasons import SegmentReason
from support.cluster.world import PlainCluster


def assigned_world() -> tuple[PlainCluster, str]:
    world = PlainCluster(limits={"maxAttempts": 3})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    return world, world.only_job()


def worker_of(world: PlainCluster, job: str) -> str:
    return world.leases[job].holder


def process_ends(world: PlainCluster, job: str) -> None:
    """Evicted, preempted, out of memory: its launcher sees it."""
    world.die(worker_of(world, job))


def worker_lease_goes(world: PlainCluster, job: str) -> None:
    """The node is gone with all that knew of the process; the garbage collector took the worker's Lease."""
    worker = world.workers[worker_of(world, job)]
    worker.process, worker.has_lease = "none", False


def job_lease_goes(world: PlainCluster, job: str) -> None:
    del world.leases[job]


def job_lease_changes_hands(world: PlainCluster, job: str) -> None:
    world.leases[job].holder = "somebody-else"


def worker_stops(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.WORKER_STOPPED, charged=False)


def engine_goes(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.ENGINE_LOST, charged=False)


def fenced_off(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.STALE_TOKEN, charged=False)


def store_locked(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=SegmentReason.STORE_LOCKED, charged=False)


def worker_is_silent(world: PlainCluster, job: str) -> None:
    world.wall += 16


def worker_says_failed(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.STORE_UNREADABLE)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (process_ends, JobReason.WORKER_LOST),
        (worker_lease_goes, JobReason.WORKER_LOST),
        (job_lease_goes, JobReason.WORKER_LOST),
        (job_lease_changes_hands, JobReason.REVOKED),
        (worker_stops, JobReason.WORKER_STOPPED),
        (engine_goes, JobReason.ENGINE_LOST),
        (fenced_off, JobReason.STALE_TOKEN),
        (store_locked, SegmentReason.STORE_LOCKED),
    ],
)
def test_infrastructure_is_recorded_and_not_charged(
    loss: Callable[[PlainCluster, str], None], reason: JobReason
) -> None:
    world, job = assigned_world()
    loss(world, job)
    world.reconcile()
    status = world.jobs[job].status
    attempt = status.attempts[0]
    assert (attempt.reason, attempt.charged) == (reason, False)
    assert attempt.outcome not in (AttemptOutcome.RUNNING, AttemptOutcome.SUCCEEDED)
    assert status.failures == 0
    assert status.state in (JobState.ABANDONED, JobState.IN_PROGRESS), "it goes on"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(worker_is_silent, JobReason.LEASE_EXPIRED), (worker_says_failed, JobReason.STORE_UNREADABLE)],
)
def test_a_failure_of_the_attempt_is_charged(failure: Callable[[PlainCluster, str], None], reason: JobReason) -> None:
    world, job = assigned_world()
    failure(world, job)
    world.reconcile()
    attempt = world.jobs[job].status.attempts[0]
    assert (attempt.reason, attempt.charged, world.jobs[job].status.failures) == (reason, True, 1)
