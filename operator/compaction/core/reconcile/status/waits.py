"""What is waited for, by reason: how many jobs, since when, in words. Every wait has a reason and an age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from compaction.api.enums import WaitReason
from compaction.api.policy.plan_status import MAX_WAITS, PlanStatus, WaitCount
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import format_bytes, format_work, plural
from compaction.api.text.safe import cut, printable
from compaction.api.text.times import format_timestamp, timestamp_from_epoch
from compaction.core.planning.candidates import Candidate
from compaction.core.planning.planner import PlannedJob
from compaction.core.reconcile.memory import Memory, frozen
from compaction.core.reconcile.observations import Moment
from compaction.core.reconcile.planning.approval import is_pending
from compaction.core.reconcile.timing import Timing, approved_hash
from compaction.registry import kind_of


@dataclass(frozen=True, slots=True)
class Wait:
    """So many jobs (or plans) wait for one reason; `example` names a job."""

    count: int
    message: str
    example: str = ""


Waits = Mapping[str, Wait]
NO_WAITS: Waits = MappingProxyType({})
MAX_TOLD: Final = 64
"""Characters of an annotation's value in a message."""


def of_new_jobs(created: Sequence[PlannedJob]) -> Waits:
    """Jobs that are created with this decision or the next ones: the status counts them already."""
    if not created:
        return NO_WAITS
    message = f"{plural(len(created), 'job')} planned just now: assignment follows"
    return {WaitReason.JUST_PLANNED: Wait(len(created), message, created[0].name)}


def for_window(clock: Timing) -> str:
    """Says when jobs may be started again."""
    opens = clock.window.opens_at
    if opens is None:
        return "none of spec.trigger.windows ever opens again"
    return f"jobs are started only in spec.trigger.windows; the next one opens at {when(opens)}"


def when(moment: float) -> str:
    """A time for people: RFC 3339 in UTC."""
    return format_timestamp(timestamp_from_epoch(moment))


def of_plans(
    policy: CompactionPolicy, plan: PlanStatus | None, clock: Timing, *, unplanned: Sequence[Candidate]
) -> Waits:
    """What the next plan waits for: approval, or its time. `unplanned`: what is due."""
    if plan is not None and is_pending(plan):
        # One whose jobs were created was honoured: its annotation stays, and says nothing about this plan.
        void = approved_hash(policy) if approved_hash(policy) != policy.status.approved else ""
        named = printable(cut(void, MAX_TOLD))
        other = f"; {named}, which is approved, is not the plan any more" if void and void != plan.hash else ""
        work = format_work(plan.cost_bytes, plan.gain_bytes)
        what = f"plan {plan.hash} ({plural(plan.jobs, 'job')}: {work})"
        message = f"{what} waits for the annotation compaction.dev/approve={plan.hash}{other}"
        return {WaitReason.APPROVAL_PENDING: Wait(1, message)}
    if unplanned and clock.anchor is not None and clock.due is None:
        after = f"next plan {when(clock.upcoming)}" if clock.upcoming is not None else "no plan follows"
        nouns, debt = kind_of(policy.spec.store).nouns, format_bytes(sum(one.debt_bytes for one in unplanned))
        message = f"{debt} in {plural(len(unplanned), nouns.target, nouns.targets)}; {after}"
        return {WaitReason.AWAITING_SCHEDULE: Wait(1, message)}
    return NO_WAITS


def aged(
    of_jobs: Waits, of_plan: Waits, policy: CompactionPolicy, memory: Memory, now: Moment
) -> tuple[tuple[WaitCount, ...], Memory]:
    """The waits with their ages, those of most jobs first, the plan's last; and the memory of them. After a restart the
    status knows the ages.
    """
    waits = {**of_jobs, **of_plan}
    known: Mapping[str, datetime] = {one.reason: one.since for one in policy.status.waits}
    if memory.reasons is not None:
        known = memory.reasons
    since = {str(reason): known.get(reason, now.time) for reason in waits}
    plan = memory.planning.plan or policy.status.plan
    if WaitReason.APPROVAL_PENDING in waits and plan is not None and plan.waiting_since is not None:
        since[WaitReason.APPROVAL_PENDING.value] = plan.waiting_since
    rows = [
        WaitCount(reason=reason, count=one.count, since=since[reason], message=one.message, example=one.example)
        for reason, one in sorted(waits.items(), key=lambda item: (item[0] in of_plan, -item[1].count, item[0]))
    ]
    return tuple(rows[:MAX_WAITS]), replace(memory, reasons=frozen(since))
