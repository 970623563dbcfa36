"""Times of a policy: its schedule and windows, and the plan and the scan that are due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, TypeGuard
from zoneinfo import ZoneInfo

from cronsim import CronSim

from compaction.api.enums import Approval, PlanApproval
from compaction.api.names import ANNOTATION_APPROVE, ANNOTATION_RELEASE
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.requests import unhandled
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile.observations import Memory, Moment

# Times at which plans are made and jobs may be started: cron times and windows. Pure: the wall clock is passed in.
#
# All times are epoch seconds; cron times are whole minutes. What happens when clocks change is cronsim's rule, which
# is Debian cron's: a fixed time in a gap comes right after it, one that occurs twice comes once, and an expression
# whose minute or hour begins with `*` follows elapsed time.
#
# Invariants (tests/core/planning/test_schedule.py): `next_time` is later than its argument, so no loop over times
# sticks; a window is open at a moment exactly when one of its times lies within its duration before it.

_MINUTE = 60
_OPENINGS_TRIED = 1000
HORIZON_SECONDS = 366 * 86_400.0
"""With windows, an end further away than a year is not computed: those that open every few years would be looked for
decade after decade, in the middle of a decision.
"""


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window: cron expression of its openings, and for how many seconds it stays open."""

    schedule: str
    duration: float


@dataclass(frozen=True, slots=True)
class WindowState:
    """The state of the windows: whether jobs may be started, and when that changes (epoch seconds; None: never).

    `closes_at` is when the windows open now close; another may have opened by then. `opens_at` is None while open.
    """

    is_open: bool
    opens_at: float | None = None
    closes_at: float | None = None


NO_WINDOWS: Final = WindowState(is_open=True)


def next_time(expression: str, zone: str, after: float) -> float | None:
    """The first time of a cron expression later than `after`; None when there is none within 50 years."""
    return _next(expression, zone, int(after // _MINUTE))


@lru_cache(maxsize=1024)
def _next(expression: str, zone: str, minute: int) -> float | None:
    after = minute * _MINUTE
    tz = UTC if zone in ("Etc/UTC", "UTC") else ZoneInfo(zone)
    for moment in CronSim(expression, datetime.fromtimestamp(after, tz=tz)):
        # In the second pass of an hour that occurs twice cronsim answers with the first one, which is over.
        if (found := moment.timestamp()) > after:
            return found
    return None


def times(expression: str, zone: str, *, after: float, until: float) -> Iterator[float]:
    """The times of a cron expression in (after, until], in order."""
    found = next_time(expression, zone, after)
    while found is not None and found <= until:
        yield found
        found = next_time(expression, zone, found)


def latest_time(expression: str, zone: str, *, after: float, until: float) -> float | None:
    """The newest time in (after, until], or None. Looks back in growing steps: times long past cost nothing."""
    back = float(_MINUTE)
    while True:
        start = max(after, until - back)
        newest: float | None = None
        for found in times(expression, zone, after=start, until=until):
            newest = found
        if newest is not None or start <= after:
            return newest
        back *= 2


def window_state(windows: Sequence[OpenWindow], zone: str, *, now: float) -> WindowState:
    """Return the state of the windows now: open while any of them is; without windows always."""
    if not windows:
        return NO_WINDOWS
    closes = [at for window in windows if (at := _closes_at(window, zone, now)) is not None]
    if closes:
        return WindowState(is_open=True, closes_at=max(closes))
    opens = [at for window in windows if (at := next_time(window.schedule, zone, now)) is not None]
    return WindowState(is_open=False, opens_at=min(opens, default=None))


def _closes_at(window: OpenWindow, zone: str, now: float) -> float | None:
    """Return the end of the window if it is open now; None when it is closed. At its very end it is closed."""
    opened = latest_time(window.schedule, zone, after=now - window.duration, until=now)
    return opened + window.duration if opened is not None else None


def finished_by(windows: Sequence[OpenWindow], zone: str, *, now: float, work: float) -> float | None:
    """Return the time at which `work` seconds of work are done that goes on only while a window is open; None when it
    cannot be computed, or, with windows, only of a time after HORIZON_SECONDS.

    Work that has begun when a window closes is counted as done in the next one, which errs on the late side.
    """
    moment = now
    for _ in range(_OPENINGS_TRIED):
        if windows and moment + work > now + HORIZON_SECONDS:
            return None
        state = window_state(windows, zone, now=moment)
        if not state.is_open:
            if state.opens_at is None:
                return None
            moment = state.opens_at
            continue
        if state.closes_at is None or moment + work <= state.closes_at:
            return moment + work
        work -= state.closes_at - moment
        moment = state.closes_at
    return None


# The state of a policy by the clock: the time of its schedule for which a plan is due, whether a window is open, and
# when the store has to be scanned out of turn.
#
# A schedule is measured from an anchor, `status.lastScheduleTime`: the newest time planned for. Of the times after it
# only the newest counts, so what passed while the operator was away is made up for once (as batch/v1 CronJob does).

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
    """Return the schedule and the windows of the policy as the clock has them now."""
    trigger = policy.spec.trigger
    windows = tuple(OpenWindow(window.schedule, float(window.duration)) for window in trigger.windows)
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


def noted(
    policy: CompactionPolicy, memory: Memory, clock: Timing, now: Moment, *, requested: Iterable[str] = ()
) -> Memory:
    """The memory with the schedule's anchor, and with a scan of the store requested when something new depends on one:
    a time of the schedule, an approval, a release, or one of the scans that users have `requested`.
    """
    wanted = set(requested)
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


def is_of_now(reading: ScanResult | None, policy: CompactionPolicy, memory: Memory) -> TypeGuard[ScanResult]:
    """True for a scan with the spec as it is that began after the last thing that asked for one: only from such a scan
    a plan is made, and only such a scan answers. It may have ended with a problem.
    """
    if reading is None or reading.generation != policy.metadata.generation:
        return False
    # One that ran already when something new came may have read the store before that.
    return reading.started >= memory.store.look_wanted


def release_look(value: str) -> str:
    """Return the name in the memory of the scan that a value of annotation compaction.dev/release asks for."""
    return f"release {value}"


def pending_release(policy: CompactionPolicy) -> str:
    """The value of the annotation compaction.dev/release; "" once it was acted upon."""
    return unhandled(policy.metadata.annotations, ANNOTATION_RELEASE, policy.status.released)


def approved_hash(policy: CompactionPolicy) -> str:
    """The approved hash; "" with approval: Auto, or without an approval."""
    if policy.spec.approval is not Approval.MANUAL:
        return ""
    return policy.metadata.annotations.get(ANNOTATION_APPROVE, "").strip()
