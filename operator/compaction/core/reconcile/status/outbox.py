"""Events for the sink: what changed between two statuses of a policy, and which jobs stay until theirs was sent.

Pure comparisons of the status that stands on the API server with the one that is about to replace it. A status is
written against its version, so a change is seen by exactly one write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from compaction.api.conditions import Condition, get_condition, is_true
from compaction.api.enums import ConditionType, PlanApproval, PolicyReason
from compaction.api.events import CloudEventType, EventsStatus, PendingEvent, pending
from compaction.api.policy.policy_status import CompactionPolicyStatus
from compaction.core.reconcile.jobs.steps import JobStep

NO_EVENTS = EventsStatus()


def recorded(
    before: CompactionPolicyStatus,
    after: CompactionPolicyStatus,
    ended: Iterable[JobStep],
    *,
    delivered: int,
    now: datetime,
) -> CompactionPolicyStatus:
    """The status with the events of its changes, and without those that were delivered. `ended`: finished jobs."""
    known = before.events or NO_EVENTS
    new = tuple(_changes(before, after, ended, now))
    events = known.after(new, delivered=delivered)
    return after if events == known else after.model_copy(update={"events": events})


def _changes(
    before: CompactionPolicyStatus, after: CompactionPolicyStatus, ended: Iterable[JobStep], now: datetime
) -> Iterator[PendingEvent]:
    """In the order in which they follow from one another."""
    yield from _ended_jobs(before, after, ended, now)
    known = {(item.target, item.source, item.since) for item in before.quarantined}
    for item in after.quarantined:
        if (item.target, item.source, item.since) not in known:
            place = f"{item.target}/{item.source}"
            yield pending(CloudEventType.QUARANTINED, item.since, place, reason=item.reason, message=item.message)
    # A run goes on when a parked job of it is retried, and ends a second time.
    ends = {(record.plan, record.ended_at) for record in before.history}
    for record in after.history:
        if record.ended_at is not None and (record.plan, record.ended_at) not in ends:
            run = {name: value for name, value in record.to_object().items() if name != "work"}
            yield pending(CloudEventType.RUN_ENDED, record.ended_at, record.plan, run=run)
    plan, old = after.plan, before.plan
    # A scan that finds the same makes the same plan: its hash is what a person approves.
    known_plan = old.hash if old is not None and old.approval is PlanApproval.PENDING else None
    if plan is not None and plan.approval is PlanApproval.PENDING and plan.hash != known_plan:
        yield pending(
            CloudEventType.PLAN_WAITS,
            plan.created_at or now,
            plan.hash,
            jobs=plan.jobs,
            costBytes=plan.cost_bytes,
            gainBytes=plan.gain_bytes,
        )
    yield from standing(before.conditions, after.conditions, now)


def standing(before: Iterable[Condition], after: Iterable[Condition], now: datetime) -> Iterator[PendingEvent]:
    """Events of conditions, of policies and catalogs alike: stalled, or for another reason; held."""
    before, after = tuple(before), tuple(after)
    stalled, old = (get_condition(each, ConditionType.STALLED) for each in (after, before))
    is_new = old is None or not is_true(before, ConditionType.STALLED) or (stalled and old.reason != stalled.reason)
    if stalled is not None and is_true(after, ConditionType.STALLED) and is_new:
        yield pending(CloudEventType.STALLED, now, "", reason=stalled.reason, message=stalled.message)
    ready, was = (get_condition(each, ConditionType.READY) for each in (after, before))
    if ready is not None and ready.reason == PolicyReason.HELD and (was is None or was.reason != PolicyReason.HELD):
        yield pending(CloudEventType.HELD, now, "", reason=ready.reason, message=ready.message)


def _ended_jobs(
    before: CompactionPolicyStatus, after: CompactionPolicyStatus, ended: Iterable[JobStep], now: datetime
) -> Iterator[PendingEvent]:
    """Of the jobs that are in the totals now and were not, or were with another token: each ends once for each."""
    known = {(entry.job, entry.uid, entry.token) for entry in before.counted}
    # The totals are what counts each end exactly once, whatever crashes: events follow them.
    fresh = {entry.job: entry for entry in after.counted if (entry.job, entry.uid, entry.token) not in known}
    for step in sorted(ended, key=lambda step: (step.status.finished_at or now, step.name)):
        if (entry := fresh.get(step.name)) is not None and entry.uid == step.view.identity.uid:
            yield pending(
                CloudEventType.JOB_ENDED,
                step.status.finished_at or now,
                step.name,
                job=step.name,
                uid=entry.uid,
                token=entry.token,
                state=step.state.value,
                bytesReclaimed=entry.bytes,
            )


def awaited(
    status: CompactionPolicyStatus, steps: Iterable[JobStep], *, delivered: int, patience: float, now: datetime
) -> frozenset[str]:
    """Names of finished jobs that stay for their receipt: their event was not sent yet, and they ended less than
    `patience` seconds ago.
    """
    waiting = status.events.waiting if status.events is not None else ()
    uids = {event.data.get("uid") for event in waiting if event.sequence > delivered}
    still = now - timedelta(seconds=patience)
    return frozenset(
        step.name
        for step in steps
        if step.view.identity.uid in uids and (step.status.finished_at is None or step.status.finished_at > still)
    )
