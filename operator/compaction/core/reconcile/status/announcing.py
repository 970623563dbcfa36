"""Events of a reconcile, and what is waited for, by reason and since when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.api.conditions import Conditions, get_condition, is_true
from compaction.api.enums import ConditionStatus, ConditionType, JobState, WaitReason
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus
from compaction.api.policy.policy_status import MAX_WAITS, PlanStatus, WaitCount
from compaction.api.requests import RequestAnswers, RequestOutcome
from compaction.api.text.printing import MESSAGE_LIMIT, cut, format_bytes, format_work, plural, printable
from compaction.core.planning.candidates import Candidate
from compaction.core.planning.planner import Plan, PlannedJob
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Memory, Moment, frozen
from compaction.core.reconcile.planning.approval import Release, is_pending
from compaction.core.reconcile.timing import Timing, approved_hash
from compaction.core.reconcile.workers import fleet
from compaction.registry import kind_named, kind_of, kind_of_job

# Waits, by reason: how many jobs, since when, in words. Every wait has a reason and an age.


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


def waits_of_new_jobs(created: Sequence[PlannedJob]) -> Waits:
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


def waits_of_plans(
    policy: CompactionPolicy, plan: PlanStatus | None, clock: Timing, *, unplanned: Sequence[Candidate]
) -> Waits:
    """Return what the next plan waits for: approval, or its time. `unplanned`: what is due."""
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
        nouns, debt = kind_of(policy.spec.store).nouns, format_bytes(sum(item.debt_bytes for item in unplanned))
        message = f"{debt} in {plural(len(unplanned), nouns.target, nouns.targets)}; {after}"
        return {WaitReason.AWAITING_SCHEDULE: Wait(1, message)}
    return NO_WAITS


def aged_waits(
    of_jobs: Waits, of_plan: Waits, policy: CompactionPolicy, memory: Memory, now: Moment
) -> tuple[tuple[WaitCount, ...], Memory]:
    """The waits with their ages, those of most jobs first, the plan's last; and the memory of them. After a restart the
    status knows the ages.
    """
    waits = {**of_jobs, **of_plan}
    known: Mapping[str, datetime] = {wait.reason: wait.since for wait in policy.status.waits}
    if memory.reasons is not None:
        known = memory.reasons
    since = {str(reason): known.get(reason, now.time) for reason in waits}
    plan = memory.planning.plan or policy.status.plan
    if WaitReason.APPROVAL_PENDING in waits and plan is not None and plan.waiting_since is not None:
        since[WaitReason.APPROVAL_PENDING.value] = plan.waiting_since
    rows = [
        WaitCount(reason=reason, count=each.count, since=since[reason], message=each.message, example=each.example)
        for reason, each in sorted(waits.items(), key=lambda item: (item[0] in of_plan, -item[1].count, item[0]))
    ]
    return tuple(rows[:MAX_WAITS]), replace(memory, reasons=frozen(since))


# The Events of a reconcile: what happened to the jobs, what was planned, what was quarantined, when a user has to
# act.

RECOVERED: Final = "Recovered"
"""A policy goes on after a user had to act."""
RUN_NOW_EVENT: Final = "RunNow"
SCAN_EVENT: Final = "Scan"
PREVIEW_EVENT: Final = "Preview"
"""An answer to a request of a user, with `Refused` behind it when that can do nothing."""


def of_plan(planned: Plan | None) -> list[Announce]:
    """The Event of a plan whose jobs are created."""
    if planned is None or not planned.jobs:
        return []
    work = format_work(planned.cost_bytes, planned.gain_bytes)
    return [Announce("Planned", f"{plural(len(planned.jobs), 'job')} planned ({planned.hash}): {work}")]


def of_policy(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[Announce]:
    """Events on the policy, of what its status says for the first time: a user has to act, or no longer; sources
    were quarantined; a measure has raised its alarm; workers are of another version.
    """
    events = of_standing(before.conditions, after.conditions)
    known = {(entry.target, entry.source) for entry in before.quarantined}
    for entry in after.quarantined:
        if (entry.target, entry.source) not in known:
            where = f"{entry.target}/{entry.source}"
            events.append(Announce("Quarantined", f"{where} is quarantined: {entry.message}", warning=True))
    events += _of_measures(before, after)
    events += fleet.skew_announced(before.conditions, after.conditions)
    return events


def of_release(release: Release, policy: CompactionPolicyStatus, steps: Iterable[JobStep]) -> list[Announce]:
    """The Event for a new value of annotation compaction.dev/release that names what is not quarantined."""
    sources = {(item.target, item.source) for item in policy.quarantined}
    sources |= {(step.target, skipped.source) for step in steps for skipped in step.status.skipped}
    strangers = release.unmatched(sources)
    if not strangers:
        return []
    named = printable(cut(", ".join(repr(stranger) for stranger in strangers), MESSAGE_LIMIT))
    how = "TARGET/SOURCE, a source alone, or all" if release.alone else "TARGET/SOURCE, or all"
    message = f"no quarantined source is named {named}: see status.quarantined; write {how}"
    return [Announce("ReleaseIgnored", message, warning=True)]


def of_requests(before: RequestAnswers, after: RequestAnswers) -> list[Announce]:
    """One Event for each answer that a status has for the first time."""
    run = (RUN_NOW_EVENT, before.last_handled_run_now, after.last_handled_run_now, after.run_now)
    scan = (SCAN_EVENT, before.last_handled_scan, after.last_handled_scan, after.scan)
    preview = (PREVIEW_EVENT, before.last_handled_preview, after.last_handled_preview, after.preview)
    events = []
    for event, old, new, answer in (run, scan, preview):
        if answer is None or old == new:
            continue
        refusal = answer.outcome is RequestOutcome.REFUSED
        message = f"{answer.reason}: {answer.message}"
        events.append(Announce(f"{event}{'Refused' if refusal else ''}", message, warning=refusal))
    return events


def of_standing(before: Conditions, after: Conditions) -> list[Announce]:
    """One Event when a user has to act, when it is for another cause, and when it is over."""
    old, new = get_condition(before, ConditionType.READY), get_condition(after, ConditionType.READY)
    if new is None:
        return []
    asked = old is not None and old.status is ConditionStatus.FALSE
    if new.status is ConditionStatus.FALSE:
        if asked and old is not None and old.reason == new.reason:
            return []
        return [Announce(new.reason, new.message, warning=is_true(after, ConditionType.STALLED))]
    if asked and old is not None and new.status is ConditionStatus.TRUE:
        return [Announce(RECOVERED, f"{old.reason} is over; {new.reason}: {new.message}")]
    return []


def _of_measures(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[Announce]:
    """One Event when a measure with an alarm is no longer 0; that it grows or shrinks is none."""
    if after.debt is None or after.store is None:
        return []
    events = []
    for measure in kind_named(after.store).measures:
        count = int(after.debt.measure(measure.name))
        was = before.debt.measure(measure.name) if before.debt is not None else 0
        if measure.alarm is not None and count and not was:
            found = plural(count, measure.alarm.noun, measure.alarm.nouns)
            events.append(Announce(measure.alarm.reason, f"{found} {measure.alarm.message}", warning=True))
    return events


def of_jobs(steps: Iterable[JobStep]) -> list[Announce]:
    """Events of the steps, each on its job. One for a job that goes well: docs/design/invariants.md, 6."""
    events = [event for step in steps for event in step.events]
    events += [_succeeded(step) for step in steps if step.finished_now and step.state is JobState.SUCCEEDED]
    return events


def _succeeded(step: JobStep) -> Announce:
    receipt = step.status.receipt
    what = "nothing was left to do"
    if receipt is not None:
        freed = format_bytes(receipt.bytes_reclaimed)
        done = kind_of_job(step.view.job.spec.kind).did(receipt)
        what = f"{done} with token {receipt.token}, {freed} reclaimed"
    return Announce("Succeeded", what, job=step.view.identity)
