"""The explanation of a policy's state, in sentences: a pure function of the policy, its jobs, Leases and the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from compaction.api.base import format_timestamp
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType, JobState, PlanApproval, PolicyReason, WaitReason
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus, is_superseded
from compaction.api.text.printing import format_age, format_bytes, format_cost, plural
from compaction.core.explain.explanation import (
    Explanation,
    ExplanationBuilder,
    coordination,
    first_of,
    tell_coordinator,
)
from compaction.core.explain.why_job import last_change, progress_of, why_parked
from compaction.core.explain.words import TROUBLE_ACTIONS, left_out_words, policy_words, target_words, wait_words
from compaction.core.kind import Kind
from compaction.core.meaning import Meaning, Names, meaning_of
from compaction.leases.record import Lease
from compaction.registry import kind_of

_UNKNOWN: Final = "Unknown"
_OF_PLANS: Final = frozenset({WaitReason.APPROVAL_PENDING, WaitReason.AWAITING_SCHEDULE})
"""What plans wait for, not jobs."""


def explain_policy(
    policy: CompactionPolicy, jobs: Sequence[CompactionJob], leases: Sequence[Lease] | None, now: datetime
) -> Explanation:
    """State and its age, debt, what happens next, and what a user can do.

    Args:
        jobs: the policy's own.
        leases: those of the policy's namespace; None when they may not be read.
    """
    meta, status = policy.metadata, policy.status
    builder = ExplanationBuilder(Names(meta.namespace, meta.name), now)
    ready = get_condition(status.conditions, ConditionType.READY)
    kind = kind_of(policy.spec.store)
    _explain_debt(builder, policy, leases)
    _explain_plan(builder, status)
    tell_coordinator(builder, leases, now, namespace=meta.namespace, seen=status.observed_generation >= 0)
    if ready is not None:
        meaning = meaning_of(policy_words(), ready.reason)
        # A message about sources or targets is not repeated: each of them has a line of its own below.
        message = "" if _is_listed(ready.reason, status) else ready.message
        since = builder.age(status.reason_since or ready.last_transition_time)
        builder.state(builder.once(f"{ready.reason}, for {since}", meaning.says, message))
        builder.consequences(_with_trouble(meaning, ready.reason, status))
    if 0 <= status.observed_generation < meta.generation:
        builder.state("The spec has changed since; the operator has not observed the change yet.")
    _explain_waits(builder, status, ready.reason if ready is not None else "")
    _explain_memory(builder, policy)
    _explain_jobs(builder, status, jobs, leases)
    _explain_damage(builder, status, kind)
    skew = get_condition(status.conditions, ConditionType.WORKER_VERSION_SKEW)
    if skew is not None:
        builder.state(f"{skew.type}, for {builder.age(skew.last_transition_time)}: {skew.message}.")
    _explain_left_out(builder, status)
    _explain_times(builder, policy)
    if meta.is_deleting:
        builder.state("It is being deleted: workers stop, jobs are deleted, the store is not changed.")
    return builder.told(f"CompactionPolicy {meta.namespace}/{meta.name}: {ready.reason if ready else _UNKNOWN}")


def _with_trouble(meaning: Meaning, reason: str, status: CompactionPolicyStatus) -> Meaning:
    """Replace the advice by what to do about the very thing that a worker lacks, where that is known."""
    if reason not in (PolicyReason.LAUNCH_FAILED, WaitReason.WORKER_PENDING):
        return meaning
    known = (TROUBLE_ACTIONS[item.reason] for item in status.worker_statuses if item.reason in TROUBLE_ACTIONS)
    return replace(meaning, do=next(known, meaning.do))


def _is_listed(reason: str, status: CompactionPolicyStatus) -> bool:
    """The condition's message repeats what is said about each source or target anyway."""
    if reason == PolicyReason.SOURCES_QUARANTINED:
        return bool(status.quarantined)
    return bool(status.target_errors) and (
        reason == PolicyReason.SOURCES_UNREADABLE or all(error.reason == reason for error in status.target_errors)
    )


def _explain_unknown(builder: ExplanationBuilder, policy: CompactionPolicy, leases: Sequence[Lease] | None) -> None:
    """No scan has ended well. Attempts without a change are recorded late, so whole intervals are added, as long as an
    operator coordinates.
    """
    attempt, interval = policy.status.last_sense_time, float(policy.spec.trigger.interval)
    if attempt is None:
        builder.debt("Unknown: no scan of the store has completed yet.")
        return
    said = "Unknown: the store was never read successfully; last attempt"
    if coordination(leases, policy.metadata.namespace, builder.now, complete=False).is_missing:
        builder.debt(f"{said} {builder.age(attempt)} ago.")
        return
    since = max(0.0, (builder.now - attempt).total_seconds()) % interval
    builder.debt(f"{said} {format_age(since)} ago, next in {format_age(interval - since)}.")


def _explain_debt(builder: ExplanationBuilder, policy: CompactionPolicy, leases: Sequence[Lease] | None) -> None:
    status, kind = policy.status, kind_of(policy.spec.store)
    debt = status.debt
    if debt is None:
        _explain_unknown(builder, policy, leases)
        return
    if not debt.bytes and not debt.sources:
        if debt.behind:
            builder.debt("None to plan now; the targets that are furthest behind are left out.", *kind.details(status))
        else:
            builder.debt(f"None: the last scan, {builder.age(status.last_sense_time)} ago, found no debt.")
        return
    oldest = f"; the oldest debt is {builder.age(status.oldest_debt_at)} old" if status.oldest_debt_at else ""
    builder.debt(f"{kind.debt(status)}{oldest}.", *kind.details(status))
    one_waits, many_wait = f"{kind.nouns.source} waits", f"{kind.nouns.source}s wait"
    tenants = {
        f"Of tenant {tenant.tenant}": f"{plural(tenant.sources, one_waits, many_wait)} to be {kind.nouns.compacted}."
        for tenant in debt.tenants
    }
    builder.debt(*first_of(tenants, "tenants"))
    builder.debt(
        *(f"{conflict.message} ({plural(conflict.sources, kind.nouns.source)})." for conflict in status.conflicts)
    )
    if status.cost is not None:
        builder.debt(f"Finished jobs took {format_cost(status.cost.cpu_seconds, status.cost.gain_per_cpu_second)}.")
    if status.eta_seconds is not None:
        builder.debt(f"Estimated time to finish, at the measured speed: {format_age(status.eta_seconds)}.")
    elif status.active:
        builder.debt("Estimated time to finish: unknown, because no job of this kind has finished yet.")


def _explain_plan(builder: ExplanationBuilder, status: CompactionPolicyStatus) -> None:
    plan = status.plan
    if plan is None or not plan.hash:
        return
    builder.debt(
        f"The newest plan with jobs, {plan.hash}, is {builder.age(plan.created_at)} old: {plural(plan.jobs, 'job')}, "
        f"to copy {format_bytes(plan.cost_bytes)} and reclaim {format_bytes(plan.gain_bytes)}."
    )
    if plan.approval is PlanApproval.PENDING and not status.waits:
        since = builder.age(plan.waiting_since)
        builder.state(f"The plan {plan.hash} waits for approval; for {since} plans of this policy have been waiting.")


def _explain_waits(builder: ExplanationBuilder, status: CompactionPolicyStatus, ready: str) -> None:
    """Every reason with its own age; `waiting` alone is what an older operator wrote. What follows from the reason of
    Ready stands with the condition.
    """
    for wait in status.waits:
        meaning = meaning_of(wait_words(), wait.reason)
        what = plural(wait.count, "plan" if wait.reason in _OF_PLANS else "job")
        example = f", such as {wait.example}" if wait.example else ""
        said = f"{what} waiting for {wait.reason}, {builder.age(wait.since)} by now{example}"
        builder.state(builder.once(said, meaning.says, wait.message))
        if wait.reason != ready:
            builder.consequences(_with_trouble(meaning, wait.reason, status))
    if status.waiting is not None and not status.waits:
        wait_for = status.waiting
        meaning = meaning_of(wait_words(), wait_for.reason)
        said = f"Waiting for {wait_for.reason}, {builder.age(wait_for.since)} by now"
        builder.state(builder.once(said, meaning.says, wait_for.message))
        builder.consequences(meaning)


def _explain_memory(builder: ExplanationBuilder, policy: CompactionPolicy) -> None:
    workers, status = policy.spec.workers, policy.status
    for role, spec, now in (
        ("driver", workers.driver, status.driver_memory_bytes),
        ("executor", workers.executor, status.executor_memory_bytes),
    ):
        if now is not None:
            least, most = format_bytes(int(spec.memory)), format_bytes(int(spec.max_memory))
            builder.state(
                f"The next {role} gets {format_bytes(now)} of memory: one was killed for using more than it had. "
                f"workers.{role} says memory {least} and maxMemory {most}; with a larger memory none is killed first."
            )


def _explain_jobs(
    builder: ExplanationBuilder,
    status: CompactionPolicyStatus,
    jobs: Sequence[CompactionJob],
    leases: Sequence[Lease] | None,
) -> None:
    running = {
        f"Job {job.metadata.name} runs on {job.status.worker}": f"token {job.status.fencing_token}, "
        f"{progress_of(job, leases)}, for {builder.age(job.status.assigned_at)}."
        for job in jobs
        if job.status.state is JobState.IN_PROGRESS
    }
    builder.state(*first_of(running, "jobs run"))
    builder.state(last_change(jobs))
    faulty = {
        f"Job {job.metadata.name} has been parked for {builder.age(job.status.finished_at)}": why_parked(
            job, brief=bool(status.quarantined)
        )
        for job in jobs
        if job.status.state is JobState.FAULTY and not is_superseded(job, status.quarantined)
    }
    builder.state(*first_of(faulty, "jobs are parked"))


def _explain_damage(builder: ExplanationBuilder, status: CompactionPolicyStatus, kind: Kind) -> None:
    alarms = {measure.alarm.reason for measure in kind.measures if measure.alarm is not None}
    damaged = {
        f"{item.target}/{item.source} quarantined for {builder.age(item.since)}": f"{item.reason}. {item.message}"
        for item in status.quarantined
    }
    builder.state(*first_of(damaged, "sources are quarantined"))
    errors = {
        f"{error.target} {'has lost records' if error.reason in alarms else 'could not be planned'}": (
            f"{error.reason}. {error.message}"
        )
        for error in status.target_errors
    }
    builder.state(*first_of(errors, "targets could not be planned"))
    builder.state(*kind.warnings(status))


def _explain_left_out(builder: ExplanationBuilder, status: CompactionPolicyStatus) -> None:
    """Whole targets first; of their parts only the counts matter, each with its reason."""
    rows = status.plan.left_out if status.plan is not None else ()
    for row in sorted(rows, key=lambda row: row.reason not in target_words()):
        meaning = meaning_of(left_out_words(), row.reason)
        example = f", such as {row.example}" if row.example else ""
        builder.debt(f"{row.count} left out as {row.reason}{example}: {meaning.says} {meaning.next}")
        if meaning.do and row.reason in target_words():
            builder.consequences(meaning)


def _explain_times(builder: ExplanationBuilder, policy: CompactionPolicy) -> None:
    """Explain when plans are made, when jobs may start, when the store is scanned."""
    trigger, status = policy.spec.trigger, policy.status
    if trigger.schedule is not None and status.next_schedule_time is not None:
        moment = format_timestamp(status.next_schedule_time)
        builder.next(
            f"The next plan is created {builder.until(status.next_schedule_time)}, at {moment} "
            f"(trigger.schedule: {trigger.schedule}, {trigger.time_zone})."
        )
    if trigger.windows and status.next_window_time is not None:
        moment = format_timestamp(status.next_window_time)
        builder.next(f"The next window opens {builder.until(status.next_window_time)}, at {moment}.")
    scanned, interval = status.last_sense_time, float(trigger.interval)
    last = f"; last scan {builder.age(scanned)} ago" if scanned is not None else ""
    if scanned is not None and (builder.now - scanned).total_seconds() > interval:
        # The status gets the time of a scan without news late, so that an idle policy writes nothing.
        last = f"; the last one that is recorded was {builder.age(scanned)} ago, those without news may not be"
    builder.next(f"The store is scanned every {trigger.interval.text}{last}.")
