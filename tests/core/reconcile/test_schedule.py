"""Schedules and windows: plans at their times only, jobs started inside a window only, and every wait says so."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.api.conditions import get_condition
from compaction.api.enums import JobState
from compaction.core.reconcile.planning import replan
from compaction.core.reconcile.policy import reconcile
from core.reconcile.test_charging import run as run_jobs
from support.cluster.world import PlainCluster

HOUR = 3600.0
NIGHTLY = {"schedule": "0 2 * * *"}
"""The world begins on 2027-01-15 at 08:00 UTC."""


def world_with(**trigger: object) -> PlainCluster:
    world = PlainCluster(trigger={"interval": "10m", **trigger})
    world.add_log("/ra/a")
    world.rest()
    return world


def until(world: PlainCluster, clock: str) -> None:
    """Jump to that time of the world's first day (or, with a `+`, of the next one), and let things settle."""
    day = 86400 * int(world.wall // 86400) if not clock.startswith("+") else 86400 * (1 + int(world.wall // 86400))
    hours, minutes = clock.lstrip("+").split(":")
    world.wall = day + int(hours) * HOUR + int(minutes) * 60
    world.renew_all()
    world.rest()


def ready(world: PlainCluster) -> tuple[str, str]:
    condition = get_condition(world.status.conditions, "Ready")
    assert condition is not None
    return condition.status.value, condition.reason


def times(world: PlainCluster) -> tuple[str, str]:
    last, following = world.status.last_schedule_time, world.status.next_schedule_time
    assert last is not None
    assert following is not None
    return format_timestamp(last), format_timestamp(following)


# -- schedule ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_at_the_time_of_the_schedule_and_not_before() -> None:
    world = world_with(**NIGHTLY)
    assert world.jobs == {}
    assert times(world) == ("2027-01-15T08:00:00Z", "2027-01-16T02:00:00Z")
    assert world.status.waiting is not None
    assert world.status.waiting.reason == "AwaitingSchedule"
    assert world.status.waiting.message.endswith("; next plan 2027-01-16T02:00:00Z")
    assert re.match(r"[1-9][0-9.]*[KM]?i? in [1-9] logs?;", world.status.waiting.message), "what is due, and where"
    assert ready(world) == ("True", "AwaitingSchedule")
    until(world, "23:59")
    assert world.jobs == {}
    assert world.status.waiting.since == timestamp_from_epoch(1_800_000_000), "the wait has its whole age"
    until(world, "+02:00")
    assert len(world.jobs) == 1
    assert times(world) == ("2027-01-16T02:00:00Z", "2027-01-17T02:00:00Z")


def test_the_plan_rests_on_a_look_made_at_its_time() -> None:
    world = world_with(**NIGHTLY)
    until(world, "+01:59")
    world.add_log("/ra/b")
    looks = world.readings
    world.wall += 60
    world.rest()
    assert world.readings == looks + 1, "the interval was not over, the schedule asked for the look"
    assert {job.spec.sources.segment_log.path for job in world.jobs.values() if job.spec.sources.segment_log} == {
        "/ra/a",
        "/ra/b",
    }


def test_what_comes_up_between_two_times_waits_for_the_next() -> None:
    world = world_with(**NIGHTLY)
    until(world, "+02:00")
    world.add_log("/ra/b")
    until(world, "12:00")
    assert len(world.jobs) == 1
    until(world, "+02:00")
    assert len(world.jobs) == 2


@pytest.mark.parametrize("days", [1, 3])
def test_times_that_passed_while_nobody_led_are_made_up_for_once(days: int) -> None:
    world = world_with(**NIGHTLY)
    world.restart()
    world.wall += days * 86400
    world.rest()
    assert len(world.jobs) == 1
    assert times(world)[0] == f"2027-01-{15 + days}T02:00:00Z"
    world.add_log("/ra/b")
    until(world, "20:00")
    assert len(world.jobs) == 1, "once"


def test_a_restart_right_after_a_plan_makes_no_other_one() -> None:
    world = world_with(**NIGHTLY)
    until(world, "+02:00")
    world.restart()
    world.add_log("/ra/b")
    world.rest()
    assert len(world.jobs) == 1


def test_a_policy_made_while_nobody_led_is_made_up_for() -> None:
    world = PlainCluster(trigger=NIGHTLY)
    world.add_log("/ra/a")
    world.wall += 86400
    world.rest()
    assert len(world.jobs) == 1


def test_a_schedule_that_is_added_counts_from_then_on() -> None:
    world = PlainCluster(trigger={"interval": "10m"})
    world.rest()
    world.wall += 86400
    world.add_log("/ra/a")
    world.change_spec(trigger=NIGHTLY)
    world.rest()
    assert world.jobs == {}
    world.change_spec(trigger={"schedule": None})
    world.rest()
    assert len(world.jobs) == 1
    assert (world.status.last_schedule_time, world.status.next_schedule_time) == (None, None)


def test_a_suspended_policy_makes_up_for_its_time_when_it_goes_on() -> None:
    world = world_with(**NIGHTLY)
    world.change_spec(suspend=True)
    until(world, "+09:00")
    assert world.jobs == {}
    world.change_spec(suspend=False)
    world.rest()
    assert len(world.jobs) == 1


def test_a_clock_that_was_ahead_stops_nothing_for_long() -> None:
    world = world_with(**NIGHTLY)
    world.wall += 400 * 86400
    world.rest()
    world.wall -= 400 * 86400
    world.restart()
    world.jobs.clear()
    world.rest()
    until(world, "+02:00")
    assert len(world.jobs) == 1


def test_the_siblings_of_a_damaged_source_do_not_wait_for_the_next_time() -> None:
    world = PlainCluster(trigger={"interval": "10m", **NIGHTLY})
    log = world.add_log("/ra/a", 3)
    world.rest()
    until(world, "+02:00")
    world.announce()
    world.rest()
    (job,) = world.in_state(JobState.IN_PROGRESS)
    bad = log.groups[1]
    skipped = [{"source": bad, "index": 7, "offset": 99, "reason": "SourceCorrupt", "message": "bad CRC"}]
    world.quarantine_identity["/ra/a", bad] = "damaged"
    world.report(job, outcome="Failed", reason="SourceCorrupt", skipped=skipped)
    world.pass_time(60)
    (sibling,) = world.in_state(JobState.IN_PROGRESS)
    sources = world.jobs[sibling].spec.sources.segment_log
    assert sources is not None
    assert [group.segments for group in sources.groups] == [(log.groups[0],), (log.groups[2],)]
    world.add_log("/ra/b")
    world.finish(sibling)
    until(world, "12:00")
    assert len(world.jobs) == 2, "what came up meanwhile waits for its time"
    assert log.groups == [bad]


def test_the_halves_of_a_failing_job_do_not_wait_for_the_next_time() -> None:
    world = PlainCluster(trigger={"interval": "10m", **NIGHTLY}, limits={"maxAttempts": 1})
    log = world.add_log("/ra/a", 4)
    world.rest()
    until(world, "+02:00")
    culprit = log.groups[2]
    failed = run_jobs(world, {culprit}, rounds=12)
    assert log.groups == [culprit]
    assert [len(names) for names in failed] == [4, 2, 1]
    assert times(world)[0] == "2027-01-16T02:00:00Z"
    waiting = [row.reason for row in world.status.waits]
    assert "AwaitingSchedule" not in waiting, "the only work of the log is parked: no plan would take it up"


# -- windows ----------------------------------------------------------------------------------------------------------

AT_NIGHT = {"windows": [{"schedule": "0 22 * * *", "duration": "4h"}]}


def test_jobs_are_started_inside_a_window_only() -> None:
    world = world_with(**AT_NIGHT)
    name = world.only_job()
    assert world.workers == {}, "no worker is started for jobs that may not run"
    waiting = world.status.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.since) == ("OutsideWindow", timestamp_from_epoch(1_800_000_000))
    assert "the next one opens at 2027-01-15T22:00:00Z" in waiting.message
    assert world.status.next_window_time == timestamp_from_epoch(1_800_000_000 + 14 * 3600)
    assert ready(world) == ("True", "OutsideWindow")
    until(world, "22:00")
    assert ready(world) == ("True", "Compacting")
    assert world.status.next_window_time is None
    world.announce()
    world.rest()
    assert world.state(name) is JobState.IN_PROGRESS


def test_a_running_job_finishes_after_its_window_and_the_next_one_waits() -> None:
    world = PlainCluster(trigger=AT_NIGHT, limits={"maxConcurrentJobs": 1})
    world.add_log("/ra/a")
    world.add_log("/ra/b")
    world.rest()
    until(world, "22:00")
    world.announce()
    world.rest()
    (running,) = world.in_state(JobState.IN_PROGRESS)
    until(world, "+02:00")
    assert world.in_state(JobState.IN_PROGRESS) == [running]
    world.finish(running)
    world.rest()
    assert world.state(running) is JobState.SUCCEEDED
    assert world.in_state(JobState.IN_PROGRESS) == []
    assert world.status.waits[0].reason == "OutsideWindow"
    assert world.status.waits[0].count == 1


def test_the_decision_is_made_again_when_a_window_opens_and_closes() -> None:
    world = world_with(**AT_NIGHT, interval="24h")
    world.wall = 86400 * (world.wall // 86400) + 22 * HOUR - 100
    after = world.rest().requeue_after
    assert after is not None
    assert 98 <= after <= 100
    until(world, "22:00")
    world.wall += 4 * HOUR - 50
    world.renew_all()
    after = world.rest().requeue_after
    assert after is not None
    assert after <= 50


def test_the_end_is_only_told_with_the_windows_in_mind() -> None:
    world = PlainCluster(trigger=AT_NIGHT, limits={"maxConcurrentJobs": 1}, workers={"slots": 1})
    for log in "abc":
        world.add_log(f"/ra/{log}")
    world.rest()
    assert world.status.eta_seconds is None, "nothing runs"
    until(world, "22:00")
    world.announce()
    world.rest()
    world.wall += 3 * HOUR + 1800  # one job takes so long that only one more fits
    world.finish(world.in_state(JobState.IN_PROGRESS)[0])
    world.pass_time(30)
    assert world.in_state(JobState.IN_PROGRESS) != []
    assert world.status.eta_seconds is not None
    assert world.status.eta_seconds > 20 * HOUR, "it goes on in the next night"


# A large plan is created in pieces, so that the first jobs run while the last ones are created.


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> PlainCluster:
    """Ten logs with a job each, of which three are created at once; nobody works."""
    monkeypatch.setattr(replan, "CREATED_AT_ONCE", 3)
    world = PlainCluster()
    for number in range(10):
        world.add_log(f"/ra/{number}")
    return world


def look(world: PlainCluster) -> PlainCluster:
    world.reconcile()
    world.sense()
    return world


def test_every_planned_job_is_created_once_in_plan_order(world: PlainCluster) -> None:
    look(world)
    pieces = [[job.name for job in world.reconcile().create_jobs] for _ in range(6)]
    assert [len(piece) for piece in pieces] == [3, 3, 3, 1, 0, 0]
    assert len(world.jobs) == 10
    labels = {job.metadata.labels.get("compaction.dev/plan") for job in world.jobs.values()}
    assert len(labels) <= 1, "all are of one plan"


def test_status_tells_of_all_jobs_and_of_one_plan_from_the_beginning(world: PlainCluster) -> None:
    look(world)
    seen = []
    for _ in range(4):
        world.wall += 1
        world.reconcile()
        world.wall += 1
        world.reconcile()
        plan = world.status.plan
        assert plan is not None
        seen.append((world.status.queued, plan.jobs, plan.hash))
    assert [queued for queued, _, _ in seen] == [10, 10, 10, 10]
    assert all(before == after for before, after in pairwise(seen))


def test_jobs_of_an_outdated_plan_are_not_created_any_more(world: PlainCluster) -> None:
    look(world)
    assert len(world.reconcile().create_jobs) == 3
    world.change_spec(suspend=True)
    assert world.reconcile().create_jobs == ()
    look(world)
    assert world.reconcile().create_jobs == ()
    assert len(world.jobs) == 3


def test_a_new_look_plans_what_was_not_created_yet(world: PlainCluster) -> None:
    look(world)
    assert len(world.reconcile().create_jobs) == 3
    world.sense()
    names = {job.name for _ in range(4) for job in world.reconcile().create_jobs}
    assert len(names) == 7
    assert len(world.jobs) == 10


def test_a_restart_in_the_middle_creates_the_rest(world: PlainCluster) -> None:
    look(world)
    world.reconcile()
    world.restart()
    look(world)
    for _ in range(4):
        world.reconcile()
    assert len(world.jobs) == 10
    assert reconcile(world.snapshot()).create_jobs == ()
