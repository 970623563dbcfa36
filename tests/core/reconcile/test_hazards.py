"""What may happen to workers that run in pods: each thing that a cluster does to them, and what follows for jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compaction.api.conditions import get_condition, is_true
from compaction.api.enums import (
    ConditionType,
    JobReason,
    JobState,
    PolicyReason,
    WaitReason,
    WorkerEnding,
    WorkerState,
    WorkerTrouble,
)
from compaction.api.job.job_status import ReportOutcome
from compaction.core.reconcile.actions import Decision
from compaction.core.reconcile.observations import PolicySnapshot
from compaction.core.reconcile.policy import reconcile
from compaction.core.reconcile.workers.fleet import LAUNCH_TIMEOUT, STUCK_AFTER, skew_announced, skew_of, skewed
from compaction.kube.gather import LONGEST_VERSION, worker_lease
from compaction.leases.record import LeaseObserver
from support.cluster.world import PlainCluster, SimWorker

GIB = 1 << 30


def starting(**workers: Any) -> tuple[PlainCluster, SimWorker]:
    """One worker was launched for one job and has not announced itself."""
    world = PlainCluster(workers={"max": 1, **workers})
    world.add_log("/ra/a")
    world.rest()
    (worker,) = world.workers.values()
    return world, worker


def running(**workers: Any) -> tuple[PlainCluster, str, SimWorker]:
    """One job runs on the only worker."""
    world, worker = starting(**workers)
    world.announce()
    world.rest()
    (job,) = world.in_state(JobState.IN_PROGRESS)
    return world, job, worker


def conditions(world: PlainCluster) -> dict[str, tuple[str, str, str]]:
    return {
        condition.type: (condition.status, condition.reason, condition.message) for condition in world.status.conditions
    }


@pytest.mark.parametrize("trouble", [WorkerTrouble.UNSCHEDULABLE, WorkerTrouble.QUEUED])
def test_a_worker_that_waits_for_room_keeps_its_place(trouble: WorkerTrouble) -> None:
    world, worker = starting()
    worker.trouble, worker.message = trouble, "0/3 nodes are available"
    world.pass_time(10 * LAUNCH_TIMEOUT, step=60)
    assert list(world.workers.values()) == [worker], "another one would only stand further back"
    assert world.status.waiting is not None
    assert world.status.waiting.reason == WaitReason.WORKER_PENDING
    assert "0/3 nodes are available" in world.status.waiting.message
    assert "Stalled" not in conditions(world), "it ends by itself when there is room"
    (row,) = world.status.worker_statuses
    assert (row.state, row.reason, row.message) == (WorkerState.PENDING, trouble, "0/3 nodes are available")
    worker.trouble = None
    world.announce()
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS)
    world.pass_time(20)
    assert [row.state for row in world.status.worker_statuses] == [WorkerState.READY]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (WorkerTrouble.IMAGE_PULL, "manifest unknown"),
        (WorkerTrouble.POD_CONFIG, 'secret "credentials" not found'),
        (WorkerTrouble.OPERATOR_SILENT, "its Spark operator does not run"),
    ],
)
def test_a_worker_that_cannot_start_is_told_while_it_still_tries(trouble: WorkerTrouble, message: str) -> None:
    world, worker = starting()
    worker.trouble, worker.message = trouble, message
    world.pass_time(STUCK_AFTER / 2)
    assert "Stalled" not in conditions(world), "a kubelet tries again, and short troubles pass"
    world.pass_time(STUCK_AFTER)
    status, reason, words = conditions(world)["Stalled"]
    assert (status, reason) == ("True", PolicyReason.LAUNCH_FAILED)
    assert message in words
    worker.trouble = None
    world.announce()
    world.rest()
    world.pass_time(20)
    assert "Stalled" not in conditions(world)


def test_a_worker_that_waited_in_vain_is_replaced_after_a_pause_and_the_condition_stays() -> None:
    world, worker = starting()
    worker.trouble, worker.message = WorkerTrouble.IMAGE_PULL, "manifest unknown"
    world.pass_time(LAUNCH_TIMEOUT + 10)
    assert worker not in world.workers.values()
    assert conditions(world)["Stalled"][1] == PolicyReason.LAUNCH_FAILED
    world.pass_time(60)
    assert len(world.workers) == 1, "another one tries"
    assert conditions(world)["Stalled"][1] == PolicyReason.LAUNCH_FAILED, "no flapping in between"


def test_a_corrected_image_replaces_the_stuck_worker_at_once() -> None:
    world, worker = starting()
    worker.trouble, worker.message = WorkerTrouble.IMAGE_PULL, "manifest unknown"
    world.pass_time(STUCK_AFTER + 30)
    world.change_spec(workers={"max": 1, "image": "registry.example/compaction-worker:2"})
    world.pass_time(10)
    assert worker not in world.workers.values()
    assert len(world.workers) == 1
    assert "Stalled" not in conditions(world)


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (WorkerEnding.DISRUPTED, JobReason.WORKER_DISRUPTED),
        (WorkerEnding.DELETED, JobReason.WORKER_LOST),
        (WorkerEnding.FAILED, JobReason.WORKER_LOST),
        (None, JobReason.WORKER_LOST),
    ],
)
def test_a_worker_that_is_lost_is_not_charged_to_its_job(ending: WorkerEnding | None, reason: JobReason) -> None:
    world, job, worker = running()
    worker.process, worker.ending, worker.message = "ended", ending, "the node was drained"
    world.rest()
    (attempt,) = world.jobs[job].status.attempts
    assert (attempt.reason, attempt.charged) == (reason, False)
    assert "the node was drained" in attempt.message
    assert world.jobs[job].status.failures == 0
    world.announce()
    world.rest()
    assert world.state(job) is JobState.IN_PROGRESS, "the next worker has it"


def test_a_worker_out_of_memory_is_charged_and_the_next_driver_gets_more_within_the_limit() -> None:
    world, job, worker = running(driver={"memory": "2Gi", "maxMemory": "6Gi"})
    assert worker.memory == 2 * GIB
    given = [worker.memory]
    for _ in range(3):
        worker.process, worker.ending = "ended", WorkerEnding.OUT_OF_MEMORY
        world.rest()
        world.pass_time(70)
        if not world.workers:
            break
        world.announce()
        world.rest()
        (worker,) = world.workers.values()
        given.append(worker.memory)
    assert given == [2 * GIB, 4 * GIB, 6 * GIB]
    attempts = world.jobs[job].status.attempts
    assert [(attempt.reason, attempt.charged) for attempt in attempts] == [(JobReason.WORKER_OUT_OF_MEMORY, True)] * 3
    assert world.state(job) is JobState.FAULTY
    assert world.status.driver_memory_bytes == 6 * GIB
    assert [reason for reason, _ in world.events].count("DriverMemoryRaised") == 2


def test_executors_out_of_memory_get_more_within_their_limit_and_the_driver_does_not() -> None:
    """The worker reports the attempt and ends: only another application can have larger executors."""
    world, job, worker = running(executor={"instances": 1, "memory": "1Gi", "maxMemory": "3Gi"})
    given = [(worker.memory, worker.executor_memory)]
    for _ in range(2):
        world.report(job, outcome=ReportOutcome.FAILED, reason=JobReason.WORKER_OUT_OF_MEMORY)
        worker.process, worker.ending = "ended", WorkerEnding.EXECUTORS_OUT_OF_MEMORY
        world.rest()
        world.pass_time(70)
        world.announce()
        world.rest()
        (worker,) = world.workers.values()
        given.append((worker.memory, worker.executor_memory))
    assert given == [(2 * GIB, 1 * GIB), (2 * GIB, 2 * GIB), (2 * GIB, 3 * GIB)]
    assert (world.status.driver_memory_bytes, world.status.executor_memory_bytes) == (None, 3 * GIB)
    assert [reason for reason, _ in world.events].count("ExecutorMemoryRaised") == 2
    assert world.jobs[job].status.failures == 2
    world.restart()
    world.rest()
    assert world.status.executor_memory_bytes == 3 * GIB


def test_one_death_raises_the_memory_once_however_often_it_is_seen() -> None:
    world, _, worker = running(driver={"memory": "2Gi", "maxMemory": "32Gi"})
    worker.process, worker.ending = "ended", WorkerEnding.OUT_OF_MEMORY
    name = next(iter(world.workers))
    world.rest()
    world.workers[name] = worker  # its launcher still shows it, also to the next coordinator
    world.restart()
    world.rest()
    assert world.status.driver_memory_bytes == 4 * GIB


def test_raised_memory_outlives_a_restart_and_ends_with_the_limit() -> None:
    world, _, worker = running(driver={"memory": "2Gi", "maxMemory": "8Gi"})
    worker.process, worker.ending = "ended", WorkerEnding.OUT_OF_MEMORY
    world.rest()
    assert world.status.driver_memory_bytes == 4 * GIB
    world.restart()
    world.rest()
    assert world.status.driver_memory_bytes == 4 * GIB
    world.change_spec(workers={"max": 1, "driver": {"memory": "3Gi", "maxMemory": "3Gi"}})
    world.rest()
    world.pass_time(20)
    assert world.status.driver_memory_bytes is None, "the spec's own is all there is"


@pytest.mark.parametrize("ending", [WorkerEnding.DISRUPTED, WorkerEnding.DELETED])
def test_a_worker_disturbed_while_it_starts_is_no_failed_launch(ending: WorkerEnding) -> None:
    world, worker = starting()
    worker.process, worker.ending = "ended", ending
    world.rest()
    assert world.memory.workers.failures == 0
    assert len(world.workers) == 1, "the next one starts at once"


# Workers of another version than the operator: a condition and an Event say so, and jobs do not care.

SKEW = ConditionType.WORKER_VERSION_SKEW


def picture(world: PlainCluster, *, operator: str, worker: str) -> PolicySnapshot:
    seen = world.snapshot()
    return replace(seen, version=operator, workers=tuple(replace(lease, version=worker) for lease in seen.workers))


def running_worker() -> PlainCluster:
    world = PlainCluster(workers={"max": 1, "slots": 1})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.wall += 1  # so that the status may be written again
    return world


def events(decision: Decision) -> list[str]:
    assert decision.policy_status is not None
    return [event.reason for event in decision.policy_status.events if event.reason == SKEW]


def test_a_worker_of_another_version_is_named_with_what_to_do_and_gets_its_job() -> None:
    world = running_worker()
    decision = reconcile(picture(world, operator="0.2.0", worker="0.1.0"))
    assert decision.policy_status is not None
    status = decision.policy_status.status
    found = get_condition(status.conditions, SKEW)
    assert found is not None
    assert "0.1.0" in found.message
    assert "0.2.0" in found.message
    assert "spec.workers.image" in found.message
    assert events(decision) == [SKEW]
    assert len(decision.assignments) == 1, "the job goes to it all the same"
    assert decision.stop_workers == ()
    assert not is_true(status.conditions, ConditionType.STALLED), "nobody has to act for the jobs' sake"


def test_the_condition_goes_with_the_worker_and_is_told_once() -> None:
    world = running_worker()
    first = reconcile(picture(world, operator="0.2.0", worker="0.1.0"))
    assert first.policy_status is not None
    before = first.policy_status.status.conditions
    assert list(skew_announced(before, before)) == []
    same = reconcile(picture(world, operator="0.1.0", worker="0.1.0"))
    assert same.policy_status is not None
    assert get_condition(same.policy_status.status.conditions, SKEW) is None
    assert list(skew_announced(before, same.policy_status.status.conditions)) == []


def test_other_versions_than_before_are_told_again() -> None:
    world = running_worker()
    told = []
    for worker in ("0.1.0", "0.1.1"):
        decision = reconcile(picture(world, operator="0.2.0", worker=worker))
        assert decision.policy_status is not None
        told.append(decision.policy_status.status.conditions)
    assert [item.reason for item in skew_announced(*told)] == [SKEW]


def test_silence_about_a_version_is_no_difference() -> None:
    world = running_worker()
    assert skewed(picture(world, operator="0.2.0", worker="")) == ()
    assert skewed(picture(world, operator="", worker="0.1.0")) == ()


def test_a_worker_that_died_is_not_told_of() -> None:
    world = running_worker()
    world.wall += 60
    assert skew_of(picture(world, operator="0.2.0", worker="0.1.0")) == ""


def test_any_number_of_workers_makes_the_same_message() -> None:
    seen = picture(running_worker(), operator="0.2.0", worker="0.1.0")
    (worker,) = seen.workers
    assert skew_of(replace(seen, workers=(worker, worker))) == skew_of(seen)


def test_jobs_of_a_skewed_worker_end_as_ever() -> None:
    world = running_worker()
    world.rest()
    (job,) = world.in_state(JobState.IN_PROGRESS)
    world.finish(job)
    decision = reconcile(picture(world, operator="0.2.0", worker="0.1.0"))
    assert [end.status.state for end in decision.end_attempts if end.status is not None] == [JobState.SUCCEEDED]


def test_a_version_in_a_lease_is_text_of_a_bounded_length() -> None:
    """Anybody who may write Leases may write this; it ends in a condition and on terminals."""
    body = {
        "metadata": {
            "name": "w",
            "namespace": "ns",
            "uid": "u",
            "resourceVersion": "1",
            "annotations": {"compaction.dev/version": "\x1b[31m" + "9" * 500},
        },
        "spec": {"holderIdentity": "w"},
    }
    version = worker_lease(body, LeaseObserver(), 0.0).version
    assert version.isprintable()
    assert len(version) <= 4 * LONGEST_VERSION
