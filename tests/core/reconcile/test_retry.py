"""Annotations that ask for another try: of a job, of a quarantined segment. Each new value counts once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import JobState
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.observations import frozen
from compaction.segments.kind import SEGMENTS
from support.cluster.world import Crash, PlainCluster

SEGMENT = "0000000000000001.segment"


def assigned_world(groups: int = 1, **spec: Any) -> tuple[PlainCluster, str]:
    world = PlainCluster(limits={"maxAttempts": 2}, **spec)
    world.add_log("/ra/a", groups)
    world.rest()
    world.announce()
    world.rest()
    return world, world.only_job()


def fail_until_parked(world: PlainCluster, job: str) -> None:
    while world.state(job) is not JobState.FAULTY:
        world.wall += 61
        world.renew_all()
        world.rest()
        world.report(job, outcome="Failed")
        world.rest()


def corrupt(world: PlainCluster, job: str) -> None:
    damage = {"source": SEGMENT, "reason": "SourceCorrupt", "message": "bad", "identity": "id"}
    world.report(job, outcome="Failed", reason="SourceCorrupt", skipped=[damage])
    world.rest()


# -- retry ------------------------------------------------------------------------------------------------------------


def test_a_parked_job_gets_its_attempts_anew_once_per_value() -> None:
    world, job = assigned_world()
    fail_until_parked(world, job)
    world.annotate_job(job, retry="monday")
    world.rest()
    status = world.jobs[job].status
    assert status.state is not JobState.FAULTY
    assert (status.failures, status.retried, status.retried_token) == (0, "monday", 2)
    assert get_condition(status.conditions, "Failed") is None
    fail_until_parked(world, job)
    assert world.jobs[job].status.fencing_token == 4, "two attempts, as many as the first time"
    world.pass_time(120)
    assert world.state(job) is JobState.FAULTY, "the value was honoured already"
    world.annotate_job(job, retry="tuesday")
    world.rest()
    assert world.state(job) is not JobState.FAULTY


def test_a_retried_job_that_succeeds_counts_once() -> None:
    world, job = assigned_world()
    fail_until_parked(world, job)
    world.annotate_job(job, retry="x" * 5000)
    world.rest()
    assert world.jobs[job].status.retried.startswith("sha256:")
    world.wall += 61
    world.renew_all()
    world.rest()
    world.finish(job)
    world.rest()
    assert world.state(job) is JobState.SUCCEEDED
    assert (world.status.succeeded, world.status.bytes_reclaimed) == (1, world.committed)


def test_lost_workers_before_the_retry_do_not_count_any_more() -> None:
    world, job = assigned_world()
    for _ in range(11):
        world.renew_all()
        world.report(job, outcome="Failed", reason="WorkerStopped", charged=False)
        world.rest()
    assert world.jobs[job].status.failures == 1, "ten may end uncharged"
    fail_until_parked(world, job)
    world.annotate_job(job, retry="1")
    world.rest()
    world.wall += 61
    world.renew_all()
    world.rest()
    world.report(job, outcome="Failed", reason="WorkerStopped", charged=False)
    world.rest()
    assert world.jobs[job].status.failures == 0


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_retry_is_honoured_once_whenever_the_coordinator_dies(steps: int) -> None:
    world, job = assigned_world()
    fail_until_parked(world, job)
    world.annotate_job(job, retry="1")
    with suppress(Crash):
        world.reconcile(crash_after=steps)
    world.rest()
    assert world.jobs[job].status.retried == "1"
    assert world.jobs[job].status.retried_token == 2


def test_a_retry_while_the_damage_is_set_aside_is_refused_and_leaves_the_record_alone() -> None:
    world, job = assigned_world(groups=2)
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    launched, before = len(world.workers), world.jobs[job].status
    world.events.clear()
    world.annotate_job(job, retry="monday")
    world.rest()
    after = world.jobs[job].status
    assert after == before.model_copy(update={"retried": "monday"})
    assert len(world.workers) == launched
    ((reason, message),) = [event for event in world.events if event[0].startswith("Retry")]
    assert (reason, f"/ra/a/{SEGMENT} is damaged and in quarantine" in message) == ("RetryRefused", True)
    world.events.clear()
    world.pass_time(120)
    assert "RetryRefused" not in dict(world.events), "each value is answered once"


def test_a_retry_of_what_was_planned_again_is_refused() -> None:
    world, job = assigned_world()
    world.report(job, outcome="Skipped", reason="SourcesChanged")
    world.logs["/ra/a"].groups.clear()
    world.rest()
    world.annotate_job(job, retry="monday")
    world.rest()
    assert world.state(job) is JobState.FAULTY
    assert world.jobs[job].status.fencing_token == 1


def test_a_retry_of_sources_that_are_not_offered_any_more_is_refused() -> None:
    world, job = assigned_world()
    fail_until_parked(world, job)
    world.logs["/ra/a"].groups = ["0000000000000099.segment"]
    world.wall += 61
    world.rest()
    before = world.jobs[job].status
    world.annotate_job(job, retry="monday")
    world.rest()
    assert world.jobs[job].status == before.model_copy(update={"retried": "monday"})


def test_a_retry_of_what_the_last_look_could_not_read_is_granted() -> None:
    """It may be mended by now: the next look is not waited for."""
    world, job = assigned_world()
    fail_until_parked(world, job)
    world.problems = (TargetProblem("/ra/a", "PermissionDenied", "permission denied"),)
    world.wall += 61
    world.rest()
    world.annotate_job(job, retry="monday")
    world.rest()
    assert world.state(job) is not JobState.FAULTY


@pytest.mark.parametrize("unknown", ["no scan yet", "a scan that failed", "a scan of another spec", "an older scan"])
def test_a_retry_is_answered_by_a_scan_that_can_tell(unknown: str) -> None:
    """The damage was repaired, other jobs have compacted the sources: an attempt would report damage that is gone."""
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.quarantine_identity["/ra/a", SEGMENT] = "another"
    world.rest()
    world.logs["/ra/a"].groups = ["0000000000000099.segment"]
    world.wall += 61
    world.rest()
    before = world.jobs[job].status
    reading = world.reading
    assert reading is not None
    world.events.clear()
    world.annotate_job(job, retry="monday")
    if unknown == "no scan yet":
        world.restart()
    elif unknown == "a scan that failed":
        world.reading = replace(reading, problem=TargetProblem("/ra", "StoreUnreadable", "no answer"))
    elif unknown == "a scan of another spec":
        world.reading = replace(reading, generation=0)
    else:
        world.memory = replace(world.memory, finished=frozen({"/ra/a": world.wall}))
    world.reconcile()
    assert world.jobs[job].status == before, "not answered yet"
    world.pass_time(120)
    assert world.jobs[job].status == before.model_copy(update={"retried": "monday"})
    assert [reason for reason, _ in world.events if reason.startswith(("Retry", "Reopened"))] == ["RetryRefused"]
    assert world.status.quarantined == ()


# -- the record -------------------------------------------------------------------------------------------------------


def test_a_late_change_of_the_sources_does_not_hide_the_damage() -> None:
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.annotate(release="all")
    world.rest()
    world.report(job, outcome="Skipped", reason="SourcesChanged", message="moved on")
    world.rest()
    status = world.jobs[job].status
    failed = get_condition(status.conditions, "Failed")
    assert failed is not None
    assert (failed.reason, failed.message) == ("SourceCorrupt", "Failed!")
    assert [attempt.reason for attempt in status.attempts] == ["SourceCorrupt", "SourcesChanged"]


@pytest.mark.parametrize("outcome", ["Failed", "Succeeded"])
def test_a_receipt_stays_as_it_was_committed(outcome: str) -> None:
    world, job = assigned_world(groups=2)
    receipt = {**world.receipt(job, 1), "groups": 2, "groupsCommitted": 1, "outputs": ["1.segment"], "worker": "w-1"}
    world.report(job, outcome="Failed", reason="StoreUnreadable", receipt=receipt)
    world.wall += 61
    world.renew_all()
    world.rest()
    first = world.jobs[job].status.receipt
    assert first is not None
    world.report(job, outcome=outcome, receipt={**receipt, "token": 2, "worker": "w-2", "bytesReclaimed": 0})
    world.rest()
    assert world.jobs[job].status.receipt == first


def test_a_receipt_grows_with_another_commit() -> None:
    world, job = assigned_world(groups=2)
    receipt = {**world.receipt(job, 1), "groups": 2, "groupsCommitted": 1, "outputs": ["1.segment"]}
    world.report(job, outcome="Failed", reason="StoreUnreadable", receipt=receipt)
    world.wall += 61
    world.renew_all()
    world.rest()
    more = {**receipt, "token": 2, "groupsCommitted": 2, "outputs": ["1.segment", "2.segment"]}
    world.report(job, outcome="Succeeded", receipt=more)
    world.rest()
    after = world.jobs[job].status.receipt
    assert after is not None
    assert (after.token, after.outputs) == (2, ("1.segment", "2.segment"))


# -- release ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [f"/ra/a/{SEGMENT}", "all", f"/ra/b/x, /ra/a/{SEGMENT}"])
def test_a_released_segment_is_tried_again_and_may_be_set_aside_again(value: str) -> None:
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    assert [item.source for item in world.status.quarantined] == [SEGMENT]
    assert world.state(job) is JobState.FAULTY
    looks = world.readings
    world.annotate(release=value)
    world.rest()
    assert list(world.status.quarantined) == []
    assert world.status.released == value
    assert world.readings > looks
    assert world.state(job) is JobState.IN_PROGRESS
    corrupt(world, job)
    assert [item.source for item in world.status.quarantined] == [SEGMENT]
    world.pass_time(120)
    assert world.state(job) is JobState.FAULTY, "the value was honoured already"
    assert [item.source for item in world.status.quarantined] == [SEGMENT]


def test_damage_found_again_before_the_release_is_recorded_is_set_aside() -> None:
    """The job is assigned with the very decision that reopens it, and fails before the next one."""
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.annotate(release="all")
    world.wall += 1
    world.renew_all()
    world.reconcile()
    assert world.state(job) is JobState.IN_PROGRESS
    assert world.status.released == ""
    world.wall += 1
    corrupt(world, job)
    world.rest()
    assert world.status.released == "all"
    assert world.state(job) is JobState.FAULTY
    assert [item.source for item in world.status.quarantined] == [SEGMENT]


def test_other_segments_stay_where_they_are() -> None:
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.annotate(release="/ra/a/0000000000000009.segment")
    world.rest()
    assert len(world.status.quarantined) == 1
    assert world.state(job) is JobState.FAULTY
    assert world.status.released == "/ra/a/0000000000000009.segment"
    ignored = [message for reason, message in world.events if reason == "ReleaseIgnored"]
    assert len(ignored) == 1, "said once"
    assert "no quarantined source is named '/ra/a/0000000000000009.segment'" in ignored[0]


@pytest.mark.parametrize("value", [f"/ra/a/{SEGMENT}", "all"])
def test_a_release_that_names_what_is_quarantined_is_no_warning(value: str) -> None:
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.annotate(release=value)
    world.rest()
    assert "ReleaseIgnored" not in {reason for reason, _ in world.events}


def test_nonsense_in_a_release_is_said_on_a_policy_without_quarantine_too() -> None:
    world, _ = assigned_world()
    world.annotate(release="nonsense, \x1b[31m")
    world.rest()
    (message,) = [message for reason, message in world.events if reason == "ReleaseIgnored"]
    assert "'nonsense'" in message
    assert "\x1b" not in message


def test_a_released_segment_whose_job_is_forgotten_is_planned_anew() -> None:
    world, job = assigned_world(failedJobsHistoryLimit=0)
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.rest()
    assert world.jobs == {}
    world.wall += 601
    world.renew_all()
    world.rest()
    assert world.jobs == {}, "what is set aside is not planned"
    world.annotate(release="all")
    world.rest()
    assert len(world.jobs) == 1


# -- repair -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_its_name", [True, False])
def test_a_job_whose_source_was_repaired_is_tried_again_where_it_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, keeps_its_name: bool
) -> None:
    """Elsewhere the repaired source gives another name to the job of the next plan."""
    monkeypatch.setattr(type(SEGMENTS), "immutable_sources", keeps_its_name)
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.pass_time(120)
    assert world.state(job) is JobState.FAULTY, "it is damaged still"
    world.quarantine_identity["/ra/a", SEGMENT] = "another"
    world.pass_time(120)
    assert world.status.quarantined == ()
    assert (world.state(job) is not JobState.FAULTY) is keeps_its_name


def test_a_source_that_is_gone_has_not_been_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(SEGMENTS), "immutable_sources", True)
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    world.quarantine_identity["/ra/a", SEGMENT] = ""
    world.pass_time(120)
    assert world.status.quarantined == ()
    assert world.state(job) is JobState.FAULTY
