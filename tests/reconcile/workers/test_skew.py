"""Workers of another version than the operator: a condition and an Event say so, and jobs do not care."""

from __future__ import annotations

from dataclasses import replace

from compaction.api.conditions import get_condition, is_true
from compaction.api.enums import ConditionType, JobState
from compaction.core.reconcile.actions import Decision
from compaction.core.reconcile.observations import PolicySnapshot
from compaction.core.reconcile.policy import reconcile
from compaction.core.reconcile.workers.fleet import skew_announced, skew_of, skewed
from compaction.kube.gather import LONGEST_VERSION, worker_lease
from compaction.leases.record import LeaseObserver
from support.cluster.world import PlainCluster

SKEW = ConditionType.WORKER_VERSION_SKEW


def picture(world: PlainCluster, *, operator: str, worker: str) -> PolicySnapshot:
    seen = world.snapshot()
    return replace(seen, version=operator, workers=tuple(replace(lease, version=worker) for lease in seen.workers))


def running() -> PlainCluster:
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
    world = running()
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
    world = running()
    first = reconcile(picture(world, operator="0.2.0", worker="0.1.0"))
    assert first.policy_status is not None
    before = first.policy_status.status.conditions
    assert list(skew_announced(before, before)) == []
    same = reconcile(picture(world, operator="0.1.0", worker="0.1.0"))
    assert same.policy_status is not None
    assert get_condition(same.policy_status.status.conditions, SKEW) is None
    assert list(skew_announced(before, same.policy_status.status.conditions)) == []


def test_other_versions_than_before_are_told_again() -> None:
    world = running()
    told = []
    for worker in ("0.1.0", "0.1.1"):
        decision = reconcile(picture(world, operator="0.2.0", worker=worker))
        assert decision.policy_status is not None
        told.append(decision.policy_status.status.conditions)
    assert [item.reason for item in skew_announced(*told)] == [SKEW]


def test_silence_about_a_version_is_no_difference() -> None:
    world = running()
    assert skewed(picture(world, operator="0.2.0", worker="")) == ()
    assert skewed(picture(world, operator="", worker="0.1.0")) == ()


def test_a_worker_that_died_is_not_told_of() -> None:
    world = running()
    world.wall += 60
    assert skew_of(picture(world, operator="0.2.0", worker="0.1.0")) == ""


def test_any_number_of_workers_makes_the_same_message() -> None:
    seen = picture(running(), operator="0.2.0", worker="0.1.0")
    (worker,) = seen.workers
    assert skew_of(replace(seen, workers=(worker, worker))) == skew_of(seen)


def test_jobs_of_a_skewed_worker_end_as_ever() -> None:
    world = running()
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
