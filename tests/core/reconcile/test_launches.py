"""Workers that hang while they start, and launches that failed before the spec was corrected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType, JobState, PolicyReason, WaitReason, WorkerEnding, WorkerTrouble
from compaction.api.policy.policy import CompactionPolicySpec
from compaction.core.reconcile.observations import WorkerMemory
from compaction.core.reconcile.policy import reconcile
from compaction.core.reconcile.workers.fleet import PATIENT, settings_of
from support.cluster.manifests import block_policy_object, block_store
from support.cluster.world import PlainCluster


def hanging() -> PlainCluster:
    """The only worker has not announced itself in time."""
    world = PlainCluster(workers={"max": 1})
    world.add_log("/ra/a")
    world.settle()
    assert len(world.workers) == 1
    world.wall += 301
    return world


def test_a_worker_that_hangs_is_stopped_and_counted_once_and_keeps_its_place_until_it_ends() -> None:
    world = hanging()
    first = reconcile(world.snapshot())
    assert len(first.stop_workers) == 1
    assert first.memory.workers.failures == 1
    world.memory = first.memory
    world.wall += 20
    second = reconcile(world.snapshot())
    assert (second.stop_workers, second.memory.workers.failures, second.launches) == ((), 1, ())


def running(world: PlainCluster) -> str:
    (job,) = world.in_state(JobState.IN_PROGRESS)
    return job


def test_workers_with_outdated_settings_are_replaced_under_steady_load() -> None:
    world = PlainCluster(workers={"max": 1, "slots": 1})
    for i in range(4):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.announce()
    world.rest()
    (old,) = world.workers
    first = running(world)
    world.change_spec(workers={"sparkConf": {"spark.driver.memory": "2g"}})
    world.rest()
    assert world.leases[first].holder == old, "what runs goes on"
    world.restart()
    world.finish(first)
    world.rest()
    assert old not in world.workers or world.workers[old].process == "ended"
    assert world.state(first) is JobState.SUCCEEDED
    world.announce()
    world.rest()
    assert world.leases[running(world)].holder != old
    assert len([worker for worker in world.workers.values() if worker.process == "running"]) == 1


def test_another_idle_time_is_no_reason_to_replace_a_worker() -> None:
    world = PlainCluster(workers={"max": 1, "slots": 1})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    (worker,) = world.workers
    world.finish(running(world))
    world.change_spec(workers={"idleSeconds": 5, "max": 3})
    world.rest()
    assert world.workers[worker].process == "running"


def test_a_store_with_other_secrets_wants_other_workers_and_nothing_else_of_it_does() -> None:
    """A worker sees the Secrets that it was started with; limits and times of the store are the coordinator's."""

    def settings(**member: Any) -> str:
        store = {"blockStore": block_store(**member)}
        return settings_of(CompactionPolicySpec.model_validate(block_policy_object(store=store)["spec"]))

    plain = settings()
    assert settings(span="1h", mergeMemory="1Gi") == plain
    assert settings(index={"secretName": "index", "key": "dsn"}) == plain, "a worker reads the key at each job"
    others = [settings(credentialsSecretName="c"), settings(index={"secretName": "i"})]
    assert len({plain, *others}) == 3


def test_a_worker_of_a_deleted_policy_is_stopped_once() -> None:
    world = hanging()
    world.policy, world.jobs = None, {}
    first = reconcile(world.snapshot())
    assert len(first.stop_workers) == 1
    world.memory = first.memory
    second = reconcile(world.snapshot())
    assert not second.acts
    assert second.requeue_after is not None


def test_a_corrected_spec_is_not_held_up_by_the_failures_of_the_old_one() -> None:
    world = PlainCluster()
    world.launch_works = False
    world.add_log("/ra/a")
    world.settle()
    failed = WorkerMemory(generation=1, failures=5, error="bad conf", not_before=world.wall + 300)
    world.memory = replace(world.memory, workers=failed)
    assert reconcile(world.snapshot()).launches == ()
    world.change_spec(workers={"max": 2})
    decision = reconcile(world.snapshot())
    assert len(decision.launches) == 1
    assert (decision.memory.workers.failures, decision.memory.workers.error) == (0, "")


def busy(**workers: Any) -> tuple[PlainCluster, str]:
    """Four logs, one worker that has announced itself and runs a job."""
    world = PlainCluster(workers={"slots": 1, **workers})
    for i in range(4):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.announce()
    world.rest()
    return world, next(name for name, worker in sorted(world.workers.items()) if worker.has_lease)


@pytest.mark.parametrize("how", [{"leaving": True}, {"trouble": WorkerTrouble.QUEUED}])
def test_a_worker_that_is_being_ended_is_given_nothing_more(how: dict[str, Any]) -> None:
    """Its pod is being deleted, or a queue takes it back: it may still renew its Lease for half a minute."""
    world, worker = busy(max=1)
    for key, value in how.items():
        setattr(world.workers[worker], key, value)
    world.finish(running(world))
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS) == []
    assert world.workers[worker].has_lease, "it ends by itself"


def test_a_worker_that_a_queue_has_taken_back_holds_its_place() -> None:
    world, worker = busy(max=1)
    before = set(world.workers)
    suspended = world.workers[worker]
    suspended.has_lease, suspended.trouble = False, WorkerTrouble.QUEUED
    suspended.message = "its SparkApplication is SUSPENDED"
    world.rest()
    world.wall += 3600
    suspended.waited = world.wall - suspended.started
    world.rest()
    assert set(world.workers) == before, "workers.max is 1"
    assert world.policy is not None
    (wait,) = [row for row in world.policy.status.waits if row.reason == WaitReason.WORKER_PENDING]
    assert worker in wait.message
    assert suspended.message in wait.message
    suspended.trouble = None
    world.rest()
    assert set(world.workers) == before, "resumed, it starts again: its launch is timed from then on"
    world.announce()
    world.rest()
    assert world.leases[running(world)].holder == worker


def test_a_suspended_worker_is_named_beside_others_that_work() -> None:
    world, worker = busy(max=2)
    world.announce()
    world.rest()
    first = world.workers[worker]
    first.has_lease, first.trouble, first.message = False, WorkerTrouble.QUEUED, "its SparkApplication is SUSPENDED"
    world.rest()
    assert len(world.workers) == 2
    assert world.policy is not None
    (wait,) = [row for row in world.policy.status.waits if row.reason == WaitReason.WORKER_PENDING]
    assert wait.message.startswith("1 of 2 workers run; ")
    assert f"{worker} counts as one, and waits (Queued): {first.message}" in wait.message


def test_executors_that_wait_for_room_beside_others_hold_nothing_up() -> None:
    world, worker = busy(max=1)
    world.workers[worker].trouble = WorkerTrouble.UNSCHEDULABLE
    world.finish(running(world))
    world.rest()
    assert world.leases[running(world)].holder == worker


@pytest.mark.parametrize("trouble", sorted(PATIENT))
def test_a_launch_is_timed_from_when_nothing_held_it_back(trouble: WorkerTrouble) -> None:
    """A worker that waited an hour for a node has all its time to start then."""
    world = PlainCluster(workers={"max": 1})
    world.add_log("/ra/a")
    world.settle()
    (worker,) = world.workers.values()
    worker.trouble = trouble
    world.wall += 3600
    assert reconcile(world.snapshot()).stop_workers == ()
    worker.trouble, worker.waited = None, 3600.0
    world.wall += 299
    assert reconcile(world.snapshot()).stop_workers == ()
    world.wall += 2
    decision = reconcile(world.snapshot())
    assert len(decision.stop_workers) == 1
    assert decision.memory.workers.failures == 1


def test_failed_submissions_are_spaced_out_and_told_after_the_third() -> None:
    world = PlainCluster(workers={"max": 1})
    world.add_log("/ra/a")
    message = 'serviceaccount "compaction-worker" not found'
    pauses = []
    for _ in range(3):
        world.settle()
        (name,) = world.workers
        worker = world.workers[name]
        worker.process, worker.ending, worker.message = "ended", WorkerEnding.FAILED, message
        decision = world.reconcile()
        pauses.append(decision.memory.workers.not_before - world.wall)
        assert reconcile(world.snapshot()).launches == ()
        world.wall += pauses[-1] + 1
    assert pauses == [5, 10, 20]
    world.launch_works = False
    world.rest()
    assert world.policy is not None
    stalled = get_condition(world.policy.status.conditions, ConditionType.STALLED)
    assert stalled is not None
    assert stalled.reason == PolicyReason.LAUNCH_FAILED
    assert message in stalled.message
