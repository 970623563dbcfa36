"""What the clock says to a policy: for which time of its schedule a plan is due, whether a window is open, and when the
store has to be scanned out of turn.

A schedule is measured from an anchor, `status.lastScheduleTime`: the newest time planned for. Of the times after it
only the newest counts, so what passed while the operator was away is made up for once (as batch/v1 CronJob does).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import Approval, PlanApproval
from compaction.api.names import ANNOTATION_APPROVE, ANNOTATION_RELEASE
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.safe import mark_of
from compaction.core.planning.schedule import OpenWindow, WindowState, latest_time, next_time, window_state
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.observations import Moment

_UNSEEN: Final = -1


@dataclass(frozen=True, slots=True)
class Timing:
    """The clock's part in a decision. All times are epoch seconds.

    `due` is the time of the schedule that a plan has to be made for now; `anchor` the one planned for last; `upcoming`
    the next one. Without a schedule all three are None.
    """

    window: WindowState
    windows: tuple[OpenWindow, ...] = ()
    due: float | None = None
    anchor: float | None = None
    upcoming: float | None = None

    def next_change(self, now: float) -> float | None:
        """Seconds until something here changes by itself."""
        moments = (self.window.opens_at, self.window.closes_at, self.upcoming)
        return min((max(0.0, at - now) for at in moments if at is not None), default=None)


def timing(policy: CompactionPolicy, memory: Memory, now: Moment) -> Timing:
    """What the clock says now."""
    trigger = policy.spec.trigger
    windows = tuple(OpenWindow(one.schedule, float(one.duration)) for one in trigger.windows)
    window = window_state(windows, trigger.time_zone, now=now.wall)
    if trigger.schedule is None:
        return Timing(window, windows)
    anchor = min(_anchor(policy, memory, now), now.wall)  # one in the future was written by a clock that was ahead
    due = latest_time(trigger.schedule, trigger.time_zone, after=anchor, until=now.wall)
    upcoming = next_time(trigger.schedule, trigger.time_zone, now.wall)
    return Timing(window, windows, None if policy.spec.suspend else due, anchor, upcoming)


def _anchor(policy: CompactionPolicy, memory: Memory, now: Moment) -> float:
    status, created = policy.status, policy.metadata.creation_timestamp
    if memory.planning.scheduled_for is not None:
        return memory.planning.scheduled_for
    if status.last_schedule_time is not None:
        return status.last_schedule_time.timestamp()
    if status.observed_generation == _UNSEEN and created is not None:
        return created.timestamp()
    return now.wall  # the schedule was added to a policy that planned without one


def noted(policy: CompactionPolicy, memory: Memory, clock: Timing, now: Moment) -> Memory:
    """The memory with the schedule's anchor, and with a scan of the store requested when something new depends on one:
    a time of the schedule, an approval, a release.
    """
    wanted = set()
    if clock.due is not None:
        wanted.add(f"schedule {clock.due}")
    approved = approved_hash(policy)
    plan = memory.planning.plan or policy.status.plan
    if approved and plan is not None and plan.approval is PlanApproval.PENDING and plan.hash == approved:
        wanted.add(f"approve {approved}")
    if release := pending_release(policy):
        wanted.add(release_look(release))
    store = replace(memory.store, looks=frozenset(wanted))
    if wanted - memory.store.looks:
        store = replace(store, look_wanted=now.monotonic)
    return replace(memory, store=store, planning=replace(memory.planning, scheduled_for=clock.anchor))


def release_look(value: str) -> str:
    """What the memory calls the scan that a value of annotation compaction.dev/release asks for."""
    return f"release {value}"


def pending_release(policy: CompactionPolicy) -> str:
    """The value of the annotation compaction.dev/release; "" once it was acted upon."""
    value = policy.metadata.annotations.get(ANNOTATION_RELEASE, "")
    return value if mark_of(value) != policy.status.released else ""


def approved_hash(policy: CompactionPolicy) -> str:
    """The approved hash; "" with approval: Auto, or without an approval."""
    if policy.spec.approval is not Approval.MANUAL:
        return ""
    return policy.metadata.annotations.get(ANNOTATION_APPROVE, "").strip()
