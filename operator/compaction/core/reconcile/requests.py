"""Requests of a user to a policy, to run now and to scan: when each is refused, accepted, and over. No I/O, no clock.

A request is an annotation whose value counts once (`api.requests`). It asks for a scan that begins after it was seen;
a request to run now also for a plan from that scan, whatever `trigger.schedule` and `trigger.cooldown` say, and where
it says so for jobs that start outside of `trigger.windows`. Thresholds, limits and approval stand: the request changes
when, never what. The answer is in the memory first and in the status with the next write; a coordinator that ends in
between leaves the request unanswered, and the next one scans and plans again, which finds the jobs that exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from compaction.api.enums import PlanApproval, PolicyReason, WaitReason
from compaction.api.names import ANNOTATION_RUN_NOW, ANNOTATION_SCAN, LABEL_PLAN
from compaction.api.policy.policy import CompactionPolicy, LeftOutStatus, PlanStatus
from compaction.api.requests import (
    RequestReason,
    RequestStatus,
    RunNowStatus,
    answered_with,
    outside_window,
    unhandled,
)
from compaction.api.text.printing import format_bytes, mark_of, plural
from compaction.core.planning.debt import ScanResult, debt_of
from compaction.core.reconcile.jobs.job import is_finished
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Memory, PolicySnapshot, RequestMemory
from compaction.core.reconcile.status.announcing import for_window
from compaction.core.reconcile.timing import Timing, is_of_now
from compaction.registry import kind_of

_NAMED: Final = 3
"""Reasons for which targets were left out that a message names; `plan` shows all of them."""


def known(policy: CompactionPolicy, memory: Memory) -> RequestMemory:
    """The answers so far; after a restart those in the status."""
    if memory.requests is not None:
        return memory.requests
    status = policy.status
    return RequestMemory(
        run_now_mark=status.last_handled_run_now,
        scan_mark=status.last_handled_scan,
        run_now=status.run_now,
        scan=status.scan,
        preview_mark=status.last_handled_preview,
        preview=status.preview,
    )


def is_open(policy: CompactionPolicy, memory: Memory) -> bool:
    """Return whether a request has no answer yet."""
    return bool(_run_now(policy, memory) or _scan(policy, memory))


def _run_now(policy: CompactionPolicy, memory: Memory) -> str:
    return unhandled(policy.metadata.annotations, ANNOTATION_RUN_NOW, known(policy, memory).run_now_mark)


def _scan(policy: CompactionPolicy, memory: Memory) -> str:
    return unhandled(policy.metadata.annotations, ANNOTATION_SCAN, known(policy, memory).scan_mark)


# Before the scan: a request that can do nothing is refused at once, every other one asks for a scan.


def refused(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory, clock: Timing) -> Memory:
    """The memory with the answer to requests that can do nothing now."""
    after = known(policy, memory)
    run, scan = _run_now(policy, memory), _scan(policy, memory)
    # A scan reads only, so neither a suspension nor a hold nor a window refuses it.
    if scan and snapshot.held_by:
        answer = answered_with(
            RequestStatus, snapshot.now.time, PolicyReason.STORE_OVERLAPS, snapshot.held_by, accepted=False
        )
        after = replace(after, scan_mark=mark_of(scan), scan=answer)
    if run and (why := _obstacle(snapshot, policy, clock)) is not None:
        answer = answered_with(RunNowStatus, snapshot.now.time, *why, accepted=False)
        after = replace(after, run_now_mark=mark_of(run), run_now=answer)
    return replace(memory, requests=after)


def _obstacle(snapshot: PolicySnapshot, policy: CompactionPolicy, clock: Timing) -> tuple[str, str] | None:
    """Return why no plan could be carried out now: the reason, and what to do."""
    if snapshot.held_by:
        return PolicyReason.STORE_OVERLAPS, snapshot.held_by
    if snapshot.hold is not None:
        return PolicyReason.HELD, f"{snapshot.hold.said}; release the hold first: kubectl compaction release"
    if policy.spec.suspend:
        resume = f"kubectl compaction resume {policy.metadata.name} -n {policy.metadata.namespace}"
        return PolicyReason.SUSPENDED, f"spec.suspend is true; resume the policy first: {resume}"
    if not clock.window.is_open and not outside_window(policy.metadata.annotations):
        return WaitReason.OUTSIDE_WINDOW, f"{for_window(clock)}; --outside-window does not wait for it"
    return None


def scans_asked_for(policy: CompactionPolicy, memory: Memory) -> frozenset[str]:
    """Names in the memory of the scans that requests ask for."""
    run, scan = _run_now(policy, memory), _scan(policy, memory)
    return frozenset(name for name, value in ((f"run-now {run}", run), (f"scan {scan}", scan)) if value)


def is_for_figures(policy: CompactionPolicy, memory: Memory, clock: Timing) -> bool:
    """Return whether the scan that comes is a request to scan and nothing else: no plan is made from that one."""
    return clock.due is None and bool(_scan(policy, memory)) and len(memory.store.looks) == 1


def plans_at_once(policy: CompactionPolicy, memory: Memory) -> bool:
    """Return whether the plan that comes is that of a request to run now: one that has no answer yet, or one whose plan
    waits for approval or is being carried out. A scan in between must not make another plan of it.
    """
    if _run_now(policy, memory):
        return True
    run, plan = known(policy, memory).run_now, memory.planning.plan or policy.status.plan
    if run is None or plan is None or not run.plan or plan.hash != run.plan:
        return False
    return plan.approval is PlanApproval.PENDING or bool(plan.unmade)


# After the plan: the answer, and which jobs need no window because of it.


def answered(
    snapshot: PolicySnapshot, policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory, *, before: Memory
) -> Memory:
    """The memory with the answers that a scan and the plan from it give. `before`: as it was before that plan."""
    after, reading = known(policy, memory), snapshot.reading
    after = replace(after, run_now=_going_on(after.run_now, policy, steps, memory, before))
    if not is_of_now(reading, policy, memory):
        return replace(memory, requests=after)
    if scan := _scan(policy, memory):
        answer = answered_with(
            RequestStatus, snapshot.now.time, *_found(policy, reading), accepted=reading.problem is None
        )
        after = replace(after, scan_mark=mark_of(scan), scan=answer)
    if run := _run_now(policy, memory):
        outcome = _outcome(snapshot, policy, steps, memory, reading)
        if outcome is not None:
            after = replace(after, run_now_mark=mark_of(run), run_now=outcome)
    return replace(memory, requests=after)


def _found(policy: CompactionPolicy, reading: ScanResult) -> tuple[str, str]:
    if reading.problem is not None:
        return reading.problem.reason, reading.problem.message
    debt = format_bytes(debt_of(reading).bytes)
    return RequestReason.SCANNED, f"{kind_of(policy.spec.store).scanned(reading)} scanned, {debt} of debt"


def _outcome(
    snapshot: PolicySnapshot, policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory, reading: ScanResult
) -> RunNowStatus | None:
    """The answer to a request to run now; None while the jobs of an approved plan are still being created, before which
    no other plan is made.
    """
    now = snapshot.now.time
    if reading.problem is not None:
        # The next scan may be a good one: then a user asks again, instead of a run hours after the request.
        return answered_with(RunNowStatus, now, reading.problem.reason, reading.problem.message, accepted=False)
    if memory.planning.reading != reading.number:
        return None
    plan = memory.planning.plan
    assert plan is not None, "a plan was made from this scan"
    unfinished = [step for step in steps if not is_finished(step.status)]
    names = {step.name for step in steps}
    new = [job.name for job in memory.planning.unmade.jobs if job.name not in names]
    waits = plan.approval is PlanApproval.PENDING
    lifts: list[str] = []
    if outside_window(policy.metadata.annotations):
        lifts = [step.view.job.metadata.labels.get(LABEL_PLAN, "") for step in unfinished]
        lifts += [plan.hash] if new or waits else []
    reason: str
    if waits:
        reason, message = WaitReason.APPROVAL_PENDING, f"plan {plan.hash} waits for approval"
    elif new:
        reason, message = RequestReason.PLANNED, f"plan {plan.hash} with {plural(plan.jobs, 'job')} is carried out"
    elif unfinished:
        all_of_it = plural(len(unfinished), "job runs or waits", "jobs run or wait")
        reason, message = RequestReason.JOBS_UNFINISHED, f"{all_of_it} already, and nothing else is due"
    else:
        return answered_with(RunNowStatus, now, RequestReason.NOTHING_DUE, _nothing_due(policy, plan), accepted=False)
    of_plan = plan.hash if new or waits else ""
    plans = tuple(dict.fromkeys(lifts))
    return answered_with(RunNowStatus, now, reason, message, accepted=True, plan=of_plan, plans=plans)


def _nothing_due(policy: CompactionPolicy, plan: PlanStatus) -> str:
    rows: Sequence[LeftOutStatus] = sorted(plan.left_out, key=lambda row: -row.count)
    if not rows:
        return "the store holds nothing that could be compacted"
    named = ", ".join(f"{row.reason} {row.count}" for row in rows[:_NAMED])
    where = f"{policy.metadata.name} -n {policy.metadata.namespace}"
    return f"nothing is due ({named}); reasons: kubectl compaction plan {where}"


def _going_on(
    run: RunNowStatus | None, policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory, before: Memory
) -> RunNowStatus | None:
    """The answer of before, as it stands: while its plan waits for approval a newer scan may have changed it; once the
    last of its jobs has ended windows count again.
    """
    if run is None:
        return None
    plan = memory.planning.plan
    another = plan is not None and plan is not before.planning.plan and plan.hash != run.plan
    if plan is not None and another and run.plan and plan.approval is not None and plans_at_once(policy, before):
        plans = tuple(plan.hash if item == run.plan else item for item in run.plans)
        run = run.model_copy(update={"plan": plan.hash, "plans": plans})
    if run.plans:
        # Without an end a request of last week would keep the windows open for good.
        kept = _unfinished_plans(policy, steps, memory)
        run = run.model_copy(update={"plans": tuple(item for item in run.plans if item in kept)})
    return run


def _unfinished_plans(policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory) -> set[str]:
    """Hashes of plans of which a job is to be created, waits or runs, or that wait for approval."""
    kept = {step.view.job.metadata.labels.get(LABEL_PLAN, "") for step in steps if not is_finished(step.status)}
    plan = memory.planning.plan or policy.status.plan
    if plan is not None and (plan.approval is PlanApproval.PENDING or plan.unmade):
        kept.add(plan.hash)
    if memory.planning.unmade.jobs:
        kept.add(memory.planning.unmade.plan)
    return kept


def needs_no_window(step: JobStep, run: RunNowStatus | None) -> bool:
    """Return whether the job starts outside of the windows, because a request says so."""
    return run is not None and step.view.job.metadata.labels.get(LABEL_PLAN, "") in run.plans


def starts_jobs(before: Memory, after: Memory) -> bool:
    """Return whether an answer between the two lets jobs start that waited for a window."""
    old, new = (memory.requests.run_now if memory.requests is not None else None for memory in (before, after))
    return new is not None and bool(new.plans) and new != old
