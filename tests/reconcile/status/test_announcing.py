"""Events of a policy: once when somebody has to act, once for each other cause, and once when it is over."""

from __future__ import annotations

from compaction.api.enums import PolicyReason
from compaction.core.planning.debt import TargetProblem
from compaction.core.reconcile.policy import reconcile
from compaction.segments.reasons import SegmentReason
from support.cluster.world import PlainCluster

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
