"""Events of a policy: once when somebody has to act, once for each other cause, and once when it is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from compaction.api.conditions import get_condition
from compaction.api.enums import JobReason, PolicyReason
from compaction.cli.cluster.status_view import since_text
from compaction.core.explain.why_policy import explain_policy
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.policy import reconcile
from compaction.segments.reasons import SegmentReason
from support.cluster.explained import KStatus, kstatus
from support.cluster.world import A, F, P, PlainCluster, S, U

GONE = TargetProblem("/ra", SegmentReason.ROOT_NOT_FOUND, "/ra does not exist: create it")
DENIED = TargetProblem("/ra", PolicyReason.PERMISSION_DENIED, "/ra: permission denied")


def look_again(world: PlainCluster) -> list[tuple[str, str]]:
    """The Events of another look at the store."""
    world.events.clear()
    world.wall += 61
    world.rest()
    return world.events


def test_a_policy_that_cannot_see_its_store_says_so_once_per_cause_and_when_it_is_over() -> None:
    world = PlainCluster()
    world.problem = GONE
    world.rest()
    assert world.events == [("RootNotFound", GONE.message)]
    assert look_again(world) == []
    world.problem = DENIED
    assert look_again(world) == [("PermissionDenied", DENIED.message)]
    world.problem = None
    ((reason, message),) = look_again(world)
    assert (reason, message[:36]) == ("Recovered", "PermissionDenied is over; NoLogsFoun")
    assert look_again(world) == []


def test_an_edit_while_it_is_stalled_is_no_recovery() -> None:
    world = PlainCluster()
    world.problem = GONE
    world.rest()
    world.events.clear()
    world.change_spec(trigger={"interval": "2m"})
    world.rest()
    assert "Recovered" not in dict(world.events)


def test_another_coordinator_repeats_nothing_and_forgets_nothing() -> None:
    world = PlainCluster()
    world.problem = GONE
    world.rest()
    before = world.status.conditions
    world.restart()
    world.events.clear()
    world.reconcile()
    assert world.status.conditions == before, "what the last one said holds until the first look has ended"
    world.rest()
    assert world.events == []


def test_a_plan_to_approve_is_announced_and_work_is_not() -> None:
    world = PlainCluster(approval="Manual")
    world.add_log("/ra/a")
    world.rest()
    assert [reason for reason, _ in world.events] == ["ApprovalPending"]
    quiet = PlainCluster()
    quiet.add_log("/ra/a")
    quiet.rest()
    assert [reason for reason, _ in quiet.events] == ["Planned"]


def test_an_event_waits_for_the_status_that_says_it() -> None:
    """A write that failed is decided again: its Event must not come twice."""
    world = PlainCluster()
    world.problem = GONE
    world.sense()
    decision = reconcile(world.snapshot())
    assert decision.events == ()
    assert decision.policy_status is not None
    assert [event.reason for event in decision.policy_status.events] == ["RootNotFound"]


# In every phase of their lives generic tools conclude the right thing about our kinds.


def of_policy(world: PlainCluster) -> KStatus:
    assert world.policy is not None
    return kstatus(world.policy.to_object())


def of_job(world: PlainCluster, name: str) -> KStatus:
    return kstatus(world.jobs[name].to_object())


def ready_reason(world: PlainCluster) -> str:
    assert world.policy is not None
    return next(condition.reason for condition in world.policy.status.conditions if condition.type == "Ready")


def test_a_policy_from_its_creation_to_its_deletion() -> None:
    world = PlainCluster()
    assert of_policy(world) is KStatus.IN_PROGRESS, "nobody has looked at it: not done before it has begun"

    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.CURRENT, SegmentReason.NO_LOGS_FOUND)

    world.add_log("/ra/a")
    world.wall += 3600
    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.CURRENT, PolicyReason.COMPACTING)

    world.announce()
    world.rest()
    job = world.only_job()
    assert (world.state(job), of_job(world, job)) == (P, KStatus.IN_PROGRESS)
    assert (of_policy(world), ready_reason(world)) == (KStatus.CURRENT, PolicyReason.COMPACTING)

    world.change_spec(suspend=True)
    world.rest()
    assert world.state(job) is P
    assert (of_policy(world), ready_reason(world)) == (KStatus.IN_PROGRESS, PolicyReason.SUSPENDING)
    world.change_spec(suspend=False)
    world.rest()

    world.finish(job)
    world.rest()
    world.wall += 3600
    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.CURRENT, PolicyReason.SCHEDULED)

    world.change_spec(trigger={"interval": "1h"})
    assert of_policy(world) is KStatus.IN_PROGRESS, "the new spec has not been seen"
    world.rest()
    assert of_policy(world) is KStatus.CURRENT

    world.change_spec(suspend=True)
    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.CURRENT, PolicyReason.SUSPENDED)

    document: dict[str, Any] = world.policy.to_object() if world.policy else {}
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert kstatus(document) is KStatus.TERMINATING


def test_a_policy_that_needs_somebody_has_failed_until_it_is_mended() -> None:
    world = PlainCluster()
    world.problem = TargetProblem("/ra", SegmentReason.ROOT_NOT_FOUND, "/ra does not exist")
    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.FAILED, SegmentReason.ROOT_NOT_FOUND)
    world.problem = None
    world.wall += 3600
    world.rest()
    assert of_policy(world) is KStatus.CURRENT


def test_a_job_that_is_tried_again_is_in_progress_and_one_that_gave_up_has_failed() -> None:
    world = PlainCluster(limits={"maxAttempts": 2})
    world.add_log("/ra/a")
    world.settle()
    job = world.only_job()
    assert (world.state(job), of_job(world, job)) == (U, KStatus.IN_PROGRESS)
    world.announce()
    seen = []
    for _ in range(2):
        world.settle()
        assert (world.state(job), of_job(world, job)) == (P, KStatus.IN_PROGRESS)
        world.report(job, outcome="Failed", reason=JobReason.STORE_UNREADABLE, message="no space left")
        world.settle()
        seen.append((world.state(job), of_job(world, job)))
        world.wall += 61
        world.renew_all()
    assert seen == [(A, KStatus.IN_PROGRESS), (F, KStatus.FAILED)]

    world.change_spec(limits={"maxAttempts": 3})
    world.settle()
    assert of_job(world, job) is KStatus.IN_PROGRESS, "eligible again"
    world.announce()
    world.settle()
    world.finish(job)
    world.settle()
    assert (world.state(job), of_job(world, job)) == (S, KStatus.CURRENT)


def test_what_somebody_has_to_act_on_is_said_while_jobs_run() -> None:
    """Under steady load jobs always run: what waits for somebody must not wait for them."""
    world = PlainCluster()
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    job = world.only_job()
    world.problems = (TargetProblem("/ra/b", "CorruptSegment", "/ra/b/1.segment is damaged"),)
    world.wall += 61
    world.renew_all()
    world.rest()
    assert world.state(job) is P
    assert (of_policy(world), ready_reason(world)) == (KStatus.FAILED, PolicyReason.SOURCES_UNREADABLE)


def test_debt_that_waits_for_its_schedule_is_no_reason_to_act() -> None:
    world = PlainCluster(trigger={"schedule": "0 0 29 2 *"})
    world.rest()
    world.add_log("/ra/a")
    world.wall += 61
    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.CURRENT, PolicyReason.AWAITING_SCHEDULE)


def test_a_plan_that_waits_for_approval_is_not_done_and_has_not_failed() -> None:
    world = PlainCluster(approval="Manual")
    world.add_log("/ra/a")
    world.rest()
    assert (of_policy(world), ready_reason(world)) == (KStatus.IN_PROGRESS, PolicyReason.APPROVAL_PENDING)


def test_a_reason_has_an_age_of_its_own() -> None:
    """Ready stays True through Scheduled, Compacting, Scheduled: its transition is older than its reason."""
    world = PlainCluster()
    world.add_log("/ra/a")
    world.rest()
    compacting = world.status.reason_since
    assert compacting is not None
    world.announce()
    world.pass_time(30)
    ready = get_condition(world.status.conditions, "Ready")
    assert ready is not None
    assert (ready.reason, world.status.reason_since) == ("Compacting", compacting)
    world.finish(world.only_job())
    world.pass_time(30)
    ready = get_condition(world.status.conditions, "Ready")
    assert ready is not None
    assert (ready.reason, ready.last_transition_time) == ("Scheduled", compacting)
    assert world.status.reason_since is not None
    assert 20 <= (world.status.reason_since - compacting).total_seconds() <= 45
    assert world.policy is not None
    now = world.status.reason_since + timedelta(seconds=16)
    assert any(said.startswith("Scheduled, for 16s") for said in explain_policy(world.policy, [], None, now).state)
    assert since_text(world.status, now) == " for 16s"
