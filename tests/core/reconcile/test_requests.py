"""Requests of a user: run now, scan, and the operator's hold. Each value counts once, and each has an answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import JobState, PlanApproval
from compaction.api.names import LABEL_PLAN
from compaction.api.requests import RequestOutcome, RequestStatus, RunNowStatus
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.actions import RunStoreTask
from compaction.core.reconcile.observations import Hold
from support.cluster.world import Crash, PlainCluster, cluster_with

HOUR = 3600.0
NIGHTLY = {"interval": "10m", "schedule": "0 2 * * *"}
AT_NIGHT = {"interval": "10m", "windows": [{"schedule": "0 22 * * *", "duration": "4h"}]}
"""The world begins on 2027-01-15 at 08:00 UTC."""


def ask(world: PlainCluster, value: str = "first", **more: str) -> RunNowStatus:
    world.annotate(run_now=value, **more)
    world.rest()
    return answer(world, value)


def answer(world: PlainCluster, value: str) -> RunNowStatus:
    assert world.status.last_handled_run_now == value
    assert world.status.run_now is not None
    return world.status.run_now


def told(world: PlainCluster) -> list[tuple[str, str]]:
    return [(reason, message) for reason, message in world.events if reason.startswith(("RunNow", "Scan"))]


def reason(world: PlainCluster) -> str:
    condition = get_condition(world.status.conditions, "Ready")
    assert condition is not None
    return condition.reason


# -- run now ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_made_now_whatever_the_schedule_says() -> None:
    world = cluster_with(1, trigger=NIGHTLY)
    assert world.jobs == {}
    looks, last = world.readings, world.status.last_schedule_time
    found = ask(world)
    assert world.readings == looks + 1, "the plan rests on a scan that began after the request"
    assert len(world.jobs) == 1
    assert (found.outcome, found.reason) == (RequestOutcome.ACCEPTED, "Planned")
    assert found.plan == world.jobs[world.only_job()].metadata.labels[LABEL_PLAN]
    assert found.plans == (), "windows count, where the request says nothing of them"
    assert world.status.last_schedule_time == last, "its times are not moved"
    assert told(world) == [("RunNow", f"Planned: {found.message}")]


def test_a_value_counts_once_and_another_one_again() -> None:
    world = cluster_with(1, trigger=NIGHTLY)
    ask(world)
    world.work_off()
    world.add_log("/ra/later")
    world.pass_time(HOUR)
    assert len(world.jobs) == 1, "the same value does nothing more"
    world.restart()
    world.pass_time(HOUR)
    assert len(world.jobs) == 1, "neither after a restart"
    assert ask(world, "second").reason == "Planned"
    assert len(world.jobs) == 2
    assert len(told(world)) == 2


def test_the_cooldown_does_not_hold_it_back() -> None:
    world = cluster_with(1, trigger={"interval": "10m", "cooldown": "5h"})
    world.work_off()
    world.logs["/ra/0"].groups.append("0000000000000009.segment")
    world.pass_time(HOUR)
    assert len(world.jobs) == 1
    assert ask(world).reason == "Planned"
    assert len(world.jobs) == 2


def test_nothing_due_is_said_with_the_reasons() -> None:
    world = cluster_with(0, trigger=NIGHTLY)
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.REFUSED, "NothingDue")
    assert told(world) == [("RunNowRefused", f"NothingDue: {found.message}")]


def test_what_runs_already_is_not_planned_twice() -> None:
    world = cluster_with(2)
    world.announce()
    world.rest()
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.ACCEPTED, "JobsUnfinished")
    assert len(world.jobs) == 2


def test_a_suspended_policy_refuses_at_once_and_does_not_catch_up() -> None:
    world = cluster_with(1, suspend=True)
    looks = world.readings
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.REFUSED, "Suspended")
    assert "resume" in found.message
    assert world.readings == looks
    world.change_spec(suspend=False, trigger=NIGHTLY)
    world.rest()
    assert world.jobs == {}, "the refused request is over"


def test_a_store_of_an_older_policy_refuses_both() -> None:
    world = cluster_with(1, trigger=NIGHTLY)
    world.held_by = "the older policy ns/first compacts it"
    world.annotate(scan="look")
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.REFUSED, "StoreOverlaps")
    assert world.status.scan is not None
    assert (world.status.scan.outcome, world.status.scan.reason) == (RequestOutcome.REFUSED, "StoreOverlaps")


def test_a_failed_scan_is_the_answer() -> None:
    world = cluster_with(1, trigger=NIGHTLY)
    world.problem = TargetProblem("/ra", "PermissionDenied", "/ra cannot be read")
    found = ask(world)
    assert (found.outcome, found.reason, found.message) == (
        RequestOutcome.REFUSED,
        "PermissionDenied",
        "/ra cannot be read",
    )


# -- windows ----------------------------------------------------------------------------------------------------------


def test_outside_of_a_window_it_is_refused_with_the_next_one() -> None:
    world = cluster_with(1, trigger=AT_NIGHT)
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.REFUSED, "OutsideWindow")
    assert "2027-01-15T22:00:00Z" in found.message
    assert world.workers == {}


def test_outside_of_a_window_jobs_start_when_the_request_says_so() -> None:
    world = cluster_with(2, trigger=AT_NIGHT)
    assert len(world.jobs) == 2
    ask(world, outside_window="first")
    assert reason(world) == "Compacting"
    world.announce()
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS)
    world.add_log("/ra/later")
    world.pass_time(1200)
    later = [name for name, job in world.jobs.items() if job.spec.target == "/ra/later"]
    world.work_off()
    assert [world.state(name) for name in later] == [JobState.UNASSIGNED], "planned after the request: it waits"
    assert sum(world.state(name) is JobState.SUCCEEDED for name in world.jobs) == 2
    assert answer(world, "first").plans == ()
    assert (world.status.waits[0].reason, world.status.waits[0].count) == ("OutsideWindow", 1)
    assert reason(world) == "OutsideWindow"


def test_the_annotation_of_another_request_opens_no_window() -> None:
    world = cluster_with(1, trigger=AT_NIGHT)
    world.annotate(outside_window="yesterday")
    assert ask(world, "today").reason == "OutsideWindow"


def test_a_restart_keeps_jobs_out_of_the_windows() -> None:
    world = cluster_with(1, trigger=AT_NIGHT)
    ask(world, outside_window="first")
    world.restart()
    world.rest()
    world.announce()
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS) == [world.only_job()]


# -- approval ---------------------------------------------------------------------------------------------------------


def test_approval_stands_and_the_plan_outlives_scans_without_it() -> None:
    world = cluster_with(1, approval="Manual", trigger={**NIGHTLY, "cooldown": "5h"})
    assert world.status.plan is None or world.status.plan.approval is None
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.ACCEPTED, "ApprovalPending")
    assert world.jobs == {}
    world.pass_time(1300)
    plan = world.status.plan
    assert plan is not None
    assert (plan.hash, plan.approval) == (found.plan, PlanApproval.PENDING)
    world.annotate(approve=plan.hash)
    world.rest()
    assert len(world.jobs) == 1
    world.work_off()
    world.logs["/ra/0"].groups.append("0000000000000009.segment")
    assert ask(world, "second").reason == "ApprovalPending", "in the cooldown, which the request passes over"
    world.restart()
    world.pass_time(1300)
    pending = world.status.plan
    assert pending is not None
    assert (pending.jobs, pending.approval) == (1, PlanApproval.PENDING), "no scan takes the job out again"
    world.annotate(approve=pending.hash)
    world.rest()
    assert len(world.jobs) == 2


def test_once_its_plan_is_approved_schedule_and_cooldown_count_again() -> None:
    world = cluster_with(1, approval="Manual", trigger={**NIGHTLY, "cooldown": "5h"})
    world.annotate(approve=ask(world).plan)
    world.rest()
    world.work_off()
    world.logs["/ra/0"].groups.append("0000000000000009.segment")
    world.add_log("/ra/later")
    world.pass_time(1300)
    assert world.status.plan is not None
    assert (world.status.plan.approval, len(world.jobs)) == (PlanApproval.APPROVED, 1), "nothing new is planned"


# -- scan -------------------------------------------------------------------------------------------------------------


def scan_of(world: PlainCluster) -> RequestStatus:
    assert world.status.scan is not None
    return world.status.scan


def test_a_scan_brings_figures_and_no_plan() -> None:
    world = cluster_with(0, trigger={"interval": "20m"})
    world.add_log("/ra/new")
    looks = world.readings
    world.annotate(scan="first")
    world.rest()
    assert world.readings == looks + 1
    assert world.status.last_handled_scan == "first"
    assert (scan_of(world).outcome, scan_of(world).reason) == (RequestOutcome.ACCEPTED, "Scanned")
    assert world.status.debt is not None
    assert world.status.debt.bytes == 100
    assert world.jobs == {}
    world.pass_time(1300)
    assert len(world.jobs) == 1, "the next scan leads to a plan, as always"


def test_a_scan_and_a_run_are_one_scan() -> None:
    world = cluster_with(1, trigger=NIGHTLY)
    looks = world.readings
    world.annotate(scan="s", run_now="r")
    world.rest()
    assert world.readings == looks + 1
    assert (world.status.last_handled_scan, world.status.last_handled_run_now) == ("s", "r")
    assert len(world.jobs) == 1


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manual", [False, True])
def test_a_request_survives_a_crash_at_every_step(manual: bool) -> None:
    """The answer is written once all is decided: whatever was done before, the next coordinator finds it."""
    steps = 0
    for step in range(1, 40):
        world = cluster_with(3, trigger=NIGHTLY, approval="Manual" if manual else "Auto")
        world.annotate(run_now="first")
        crashed = False
        for _ in range(6):
            with suppress(Crash):
                world.reconcile(crash_after=None if crashed else step)
                continue
            crashed = True
        world.rest()
        found = answer(world, "first")
        assert found.outcome is RequestOutcome.ACCEPTED
        if manual:
            assert (found.reason, world.jobs) == ("ApprovalPending", {})
        else:
            assert len(world.jobs) == 3
        if not crashed:
            break
        steps += 1
    assert 1 <= steps < 39, "every step, and none is left"


# -- hold -------------------------------------------------------------------------------------------------------------

HOLD = Hold("the bucket moves", by="ada", since=datetime(2027, 1, 15, 8, 0, tzinfo=UTC))


def test_on_hold_nothing_is_planned_or_started_and_everything_says_why() -> None:
    world = PlainCluster()
    world.hold = HOLD
    world.add_log("/ra/0")
    world.rest()
    world.pass_time(HOUR)
    assert world.jobs == {}
    assert world.workers == {}
    condition = get_condition(world.status.conditions, "Ready")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "Held")
    assert "since 2027-01-15T08:00:00Z by ada: the bucket moves" in condition.message
    waiting = world.status.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.since, waiting.message) == ("Held", HOLD.since, HOLD.said)
    found = ask(world)
    assert (found.outcome, found.reason) == (RequestOutcome.REFUSED, "Held")
    world.hold = None
    world.rest()
    assert len(world.jobs) == 1


def test_a_policy_that_needs_a_person_says_so_on_hold_as_well() -> None:
    world = cluster_with(1, limits={"maxAttempts": 1})
    world.announce()
    world.rest()
    (running,) = world.in_state(JobState.IN_PROGRESS)
    world.report(running, outcome="Failed", reason="StoreUnreadable")
    world.rest()
    world.hold = HOLD
    world.rest()
    condition = get_condition(world.status.conditions, "Ready")
    assert condition is not None
    assert condition.status == "False", "a hold must not hide it"
    assert world.status.waiting is not None
    assert (world.status.waiting.reason, world.status.waiting.message) == ("Held", HOLD.said)
    world.hold = None
    world.rest()
    assert world.status.waiting is None or world.status.waiting.reason != "Held"


def test_what_runs_ends_by_itself_and_what_waits_says_so() -> None:
    world = cluster_with(3, limits={"maxConcurrentJobs": 1})
    world.announce()
    world.rest()
    (running,) = world.in_state(JobState.IN_PROGRESS)
    world.hold = HOLD
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS) == [running]
    assert (world.status.waits[0].reason, world.status.waits[0].count) == ("Held", 2)
    world.finish(running)
    world.pass_time(60)
    assert world.in_state(JobState.IN_PROGRESS) == []
    assert world.state(running) is JobState.SUCCEEDED
    world.restart()
    world.pass_time(HOUR)
    assert len(world.in_state(JobState.UNASSIGNED)) == 2, "neither by another coordinator"


def test_a_drain_stops_workers_with_their_jobs_which_go_on_later_uncharged() -> None:
    world = cluster_with(1)
    world.announce()
    world.rest()
    (running,) = world.in_state(JobState.IN_PROGRESS)
    world.hold = Hold("the bucket moves", drain=True)
    world.pass_time(120)
    assert world.in_state(JobState.IN_PROGRESS) == []
    assert world.jobs[running].status.failures == 0
    assert not any(worker.has_lease for worker in world.workers.values())
    world.hold = None
    world.rest()
    world.announce()
    world.pass_time(60)
    assert world.in_state(JobState.IN_PROGRESS) == [running]


def test_nothing_is_deleted_on_hold() -> None:
    world = cluster_with(0)
    swept = []
    run = world._run_store_task

    def noted(task: RunStoreTask) -> None:
        swept.append(task.task.value)
        run(task)

    world._run_store_task = noted  # type: ignore[method-assign]
    world.hold = HOLD
    world.memory = replace(world.memory, store=replace(world.memory.store, sweep_due=world.wall))
    world.pass_time(HOUR)
    assert "sweep" not in swept
    world.hold = None
    world.rest()
    assert "sweep" in swept
