"""Annotations that ask for another try: of a job, of a quarantined segment. Each new value counts once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import JobState
from support.world import Crash, World

SEGMENT = "0000000000000001.segment"


def assigned_world(groups: int = 1, **spec: Any) -> tuple[World, str]:
    world = World(limits={"maxAttempts": 2}, **spec)
    world.add_log("/ra/a", groups)
    world.rest()
    world.announce()
    world.rest()
    return world, world.only_job()


def fail_until_parked(world: World, job: str) -> None:
    while world.state(job) is not JobState.FAULTY:
        world.wall += 61
        world.renew_all()
        world.rest()
        world.report(job, outcome="Failed")
        world.rest()


def corrupt(world: World, job: str) -> None:
    damage = {"segment": SEGMENT, "reason": "SourceCorrupt", "message": "bad", "identity": "id"}
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


# -- release ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [f"/ra/a/{SEGMENT}", "all", f"/ra/b/x, /ra/a/{SEGMENT}"])
def test_a_released_segment_is_tried_again_and_may_be_set_aside_again(value: str) -> None:
    world, job = assigned_world()
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    corrupt(world, job)
    assert [one.segment for one in world.status.quarantined] == [SEGMENT]
    assert world.state(job) is JobState.FAULTY
    looks = world.readings
    world.annotate(release=value)
    world.rest()
    assert world.status.quarantined == ()
    assert world.status.released == value
    assert world.readings > looks
    assert world.state(job) is JobState.IN_PROGRESS
    corrupt(world, job)
    assert [one.segment for one in world.status.quarantined] == [SEGMENT]
    world.pass_time(120)
    assert world.state(job) is JobState.FAULTY, "the value was honoured already"
    assert [one.segment for one in world.status.quarantined] == [SEGMENT]


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
    assert [one.segment for one in world.status.quarantined] == [SEGMENT]


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
