"""Previews of a policy: what another spec would do now, beside what the spec in force would. No I/O, no clock.

A preview is a request (`api.preview`). It is refused at once when it cannot be answered; else the store is scanned
with both specs by a task of its own, which changes nothing and shares nothing with the scans of the policy. Both plans
are made from these scans beside the jobs that exist, as `replan` makes them. Nothing else in the memory changes: no
plan, approval, cooldown, schedule or scan of the policy depends on a preview. A coordinator that ends before the status
is written leaves it unanswered, and the next one scans again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from compaction.api.base import first_problem, timestamp_from_epoch
from compaction.api.enums import Approval, PolicyReason, WaitReason
from compaction.api.names import ANNOTATION_PREVIEW
from compaction.api.policy.configuration import PolicyDefaults, completed, taken
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicySpec, QuarantinedSource, TargetError
from compaction.api.policy.policy_status import (
    MAX_DIFFERENCES,
    MAX_PREVIEWED_ERRORS,
    MAX_PREVIEWED_WORK,
    PlannedSum,
    PolicyPreview,
    PreviewedPlan,
    TargetDifference,
)
from compaction.api.policy.store import StoreSpec
from compaction.api.preview import (
    BeginReason,
    BeginStatus,
    PreviewRefusal,
    PreviewRequest,
    SpecChange,
    changes_of,
    parse_preview,
)
from compaction.api.requests import RequestReason, answered_with, unhandled
from compaction.api.text.printing import format_work, mark_of, plural
from compaction.core.planning.debt import ScanResult, debt_of
from compaction.core.planning.planner import Plan
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import CreateJob, RunStoreTask, StoreTask
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Hold, Memory, Moment, PolicySnapshot
from compaction.core.reconcile.planning import approval, replan
from compaction.core.reconcile.requests import known
from compaction.core.reconcile.status.announcing import for_window, when
from compaction.core.reconcile.timing import Timing, timing
from compaction.registry import kind_of

# The request: what it proposes, and why it is refused.

_NAMED: Final = 3
"""Fields of another store that a refusal names."""


def asked(policy: CompactionPolicy, memory: Memory) -> str:
    """The value of a preview that has no answer yet; "" when there is none."""
    return unhandled(policy.metadata.annotations, ANNOTATION_PREVIEW, known(policy, memory).preview_mark)


def proposed(policy: CompactionPolicy, value: str, defaults: PolicyDefaults) -> CompactionPolicy | None:
    """The policy with the spec that a value proposes; None when it proposes none that could be scanned with."""
    request = _request(value, defaults)
    if isinstance(request, PreviewRefusal) or opens_another_store(policy, request.spec):
        return None
    return policy.model_copy(update={"spec": request.spec})


def _request(value: str, defaults: PolicyDefaults) -> PreviewRequest[CompactionPolicySpec] | PreviewRefusal:
    """The request with what the installation adds to a spec, as it does to that in force: else fields that neither sets
    would differ.
    """
    request = parse_preview(value, CompactionPolicySpec)
    if isinstance(request, PreviewRefusal):
        return request
    # What the user wrote, and not what the model adds: a built-in default comes last.
    own = request.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not (added := taken(own, defaults)):
        return request
    try:
        return replace(request, spec=CompactionPolicySpec.from_object(completed({"spec": own}, added)["spec"]))
    except ValidationError as error:
        said = f"with the defaults of the installation, spec.{first_problem(error)}"
        return PreviewRefusal(request.id, PolicyReason.INVALID_SPEC, said)


def opens_another_store(policy: CompactionPolicy, spec: CompactionPolicySpec) -> str:
    """Say what the spec opens and the one in force does not: else who may annotate a policy would have the operator
    read a store for him that no policy was ever admitted for. "" when both open the same.
    """
    before, after = policy.spec.store, spec.store
    if _opened(before, policy.metadata.namespace) == _opened(after, policy.metadata.namespace):
        return ""
    changes = [change for change in changes_of(policy.spec, spec) if change.field.startswith("spec.store.")]
    named = ", ".join(f"{change.field}: {change.before or 'unset'} -> {change.after or 'unset'}" for change in changes)
    where = f"{before.location} ({named})" if len(changes) <= _NAMED else before.location
    return (
        f"the spec opens another store, Secret or volume than the spec in force, {where}, and nothing is opened for a "
        "preview: apply it as a policy of another name with spec.suspend: true, which starts nothing, and preview that"
    )


def _opened(store: StoreSpec, namespace: str) -> tuple[object, ...]:
    # The kind's own name comes first: two kinds may call one directory by the same place.
    kind = kind_of(store)
    return kind.name, kind.places(store, namespace), kind.secrets(store), kind.volume(store)


def _refusal(
    snapshot: PolicySnapshot, policy: CompactionPolicy, value: str
) -> PreviewRequest[CompactionPolicySpec] | PreviewRefusal:
    request = _request(value, snapshot.defaults)
    if isinstance(request, PreviewRefusal):
        return request
    if other := opens_another_store(policy, request.spec):
        return PreviewRefusal(request.id, RequestReason.OTHER_STORE, other)
    if held_by := snapshot.held_by or snapshot.proposed_held_by:
        return PreviewRefusal(request.id, PolicyReason.STORE_OVERLAPS, held_by)
    return request


# The way of a preview through the reconciles: refused, or scanned for, or answered from the scans.


def look_ahead(
    snapshot: PolicySnapshot,
    memory: Memory,
    *,
    steps: Sequence[JobStep],
    quarantined: Iterable[QuarantinedSource],
    created: Iterable[CreateJob] = (),
) -> tuple[tuple[RunStoreTask, ...], Memory]:
    """The task that a preview needs now, and the memory with its answer, if there is one by now."""
    policy = snapshot.policy  # not the one of this reconcile: on hold, that one is suspended
    assert policy is not None, "only an existing policy has previews"
    value = asked(policy, memory)
    if not value:
        return (), memory
    request, mark = _refusal(snapshot, policy, value), mark_of(value)
    if isinstance(request, PreviewRefusal):
        answer = request.answer(PolicyPreview, snapshot.now.time, generation=policy.metadata.generation)
        return (), _with_answer(policy, memory, mark, answer)
    # Scans for a value that another one has replaced, or with a spec that was in force then, answer nothing.
    scans = snapshot.preview
    this = (mark, policy.metadata.uid, policy.metadata.generation)
    if scans is not None and (scans.mark, scans.uid, scans.generation) == this:
        changed = policy.model_copy(update={"spec": request.spec})
        comparison = Comparison(steps, memory, snapshot.now, snapshot.hold)
        answer = comparison.answer((policy, changed), (scans.in_force, scans.proposed), id=request.id)
        return (), _with_answer(policy, memory, mark, answer)
    if memory.store.preview_running:
        return (), memory
    # The jobs that exist are known to both scans: where sources are in no two jobs, neither spec could plan theirs.
    look = store_work.look_of(policy, memory, steps=steps, quarantined=quarantined, created=created)
    # A plan that waits for approval keeps nothing out of these: both specs would make another one of its sources.
    jobs = store_work.held_by_jobs(steps, created, memory.planning.unmade.jobs)
    task = replace(look, task=StoreTask.PREVIEW, jobs=jobs, proposed=request.spec, mark=mark)
    return (task,), replace(memory, store=replace(memory.store, preview_running=True))


def _with_answer(policy: CompactionPolicy, memory: Memory, mark: str, answer: PolicyPreview) -> Memory:
    return replace(memory, requests=replace(known(policy, memory), preview_mark=mark, preview=answer))


def reads_alike(spec: CompactionPolicySpec, other: CompactionPolicySpec) -> bool:
    """Return whether a scan with the one spec is a scan with the other one."""
    return (spec.store, spec.limits, spec.cleanup) == (other.store, other.limits, other.cleanup)


# The answer.


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two specs compared beside the same jobs at the same moment."""

    steps: Sequence[JobStep]
    memory: Memory
    now: Moment
    hold: Hold | None = None

    def answer(
        self, policies: tuple[CompactionPolicy, CompactionPolicy], scans: tuple[ScanResult, ScanResult], *, id: str = ""
    ) -> PolicyPreview:
        """The answer about a policy with the spec in force, and the same with the proposed one."""
        before, after = policies
        changes = changes_of(before.spec, after.spec)
        of_both = {"id": id, "generation": before.metadata.generation, "changes": changes, "changed": len(changes)}
        # A plan from a store that could not be read would say that nothing is due.
        problem = next((scan.problem for scan in scans if scan.problem is not None), None)
        if problem is not None:
            return answered_with(
                PolicyPreview, self.now.time, problem.reason, problem.message, accepted=False, **of_both
            )
        found = [
            replan.plan_beside(scan, policy, self.steps, self.memory, self.now)
            for policy, scan in zip(policies, scans, strict=True)
        ]
        plans = found[0][0], found[1][0]
        differences = _differences(plans, (found[0][1], found[1][1]))
        columns = [self._column(*item) for item in zip(policies, scans, plans, strict=True)]
        return answered_with(
            PolicyPreview,
            self.now.time,
            RequestReason.PREVIEWED,
            _said(changes, plans, columns[1].begins),
            accepted=True,
            **of_both,
            in_force=columns[0],
            proposed=columns[1],
            differences=differences[:MAX_DIFFERENCES],
            differing=len(differences),
        )

    def _column(self, policy: CompactionPolicy, scan: ScanResult, plan: Plan) -> PreviewedPlan:
        debt = debt_of(scan)
        return PreviewedPlan(
            plan=approval.as_shown(plan, work=approval.work_of(plan)[:MAX_PREVIEWED_WORK]),
            sources=sum(len(group.sources) for job in plan.jobs for group in job.groups)
            + sum(len(job.obsolete) for job in plan.jobs),
            targets=len({job.target for job in plan.jobs}),
            begins=self._begins(policy, plan),
            debt_bytes=debt.bytes,
            debt_sources=debt.sources,
            target_errors=tuple(
                TargetError(target=problem.target, reason=problem.reason, message=problem.message)
                for problem in scan.problems[:MAX_PREVIEWED_ERRORS]
            ),
        )

    def _begins(self, policy: CompactionPolicy, plan: Plan) -> BeginStatus:
        """Everything that stands between the plan and its jobs, what is first in front."""
        meant = policy.model_copy(update={"spec": policy.spec.model_copy(update={"suspend": False})})
        # A suspended policy has no time of its schedule that is due; what would be due without that is asked here.
        clock = timing(meant, self.memory, self.now)
        # Without jobs nothing waits, whatever stands in the way of those that may come.
        if not plan.jobs:
            due = min((row.due for row in plan.left_out if row.due is not None), default=None)
            return BeginStatus(reason=BeginReason.NOTHING_DUE, message="nothing is due now", at=_time(due))
        found = list(_obstacles(policy, clock, self.hold))
        if not found:
            return BeginStatus(reason=BeginReason.DUE, message="its jobs are created at the next scan")
        reason, _, at = found[0]
        message = "; ".join(words for _, words, _ in found)
        return BeginStatus(reason=reason, message=message, at=_time(at))


def _time(moment: float | None) -> datetime | None:
    return None if moment is None else timestamp_from_epoch(moment)


def _obstacles(policy: CompactionPolicy, clock: Timing, hold: Hold | None) -> Iterable[tuple[str, str, float | None]]:
    """Reason, words, and when it ends by itself (epoch seconds)."""
    # In the order in which they would be met: a plan is made, approved, and its jobs are started.
    if hold is not None:
        yield PolicyReason.HELD, hold.said, None
    if policy.spec.suspend:
        yield PolicyReason.SUSPENDED, "spec.suspend is true", None
    if policy.spec.trigger.schedule is not None and clock.due is None:
        at = clock.upcoming
        yield WaitReason.AWAITING_SCHEDULE, "no plan follows" if at is None else f"the next plan is made {when(at)}", at
    if policy.spec.approval is Approval.MANUAL:
        yield WaitReason.APPROVAL_PENDING, "the plan waits for approval", None
    if not clock.window.is_open:
        yield WaitReason.OUTSIDE_WINDOW, for_window(clock), clock.window.opens_at


def _said(changes: Sequence[SpecChange], plans: tuple[Plan, Plan], begins: BeginStatus) -> str:
    before, after = (_work_said(plan) for plan in plans)
    instead = "as the spec in force does" if before == after else f"instead of {before}"
    return f"{plural(len(changes), 'changed field')}: {after}, {instead}; {begins.reason}"


def _work_said(plan: Plan) -> str:
    work = f" ({format_work(plan.cost_bytes, plan.gain_bytes)})" if plan.jobs else ""
    return f"{plural(len(plan.jobs), 'job')}{work}"


def _differences(
    plans: tuple[Plan, Plan], reasons: tuple[Mapping[str, str], Mapping[str, str]]
) -> list[TargetDifference]:
    """The targets of which the plans do not do the same, those with the largest difference of the gain first."""
    sums = [_sums(plan) for plan in plans]
    rows = []
    # In the order of the plans, in which targets of the same gain stay.
    for target in dict.fromkeys((*sums[0], *sums[1])):
        before, after = (
            of_plan.get(target) or PlannedSum(reason=why.get(target, ""))
            for of_plan, why in zip(sums, reasons, strict=True)
        )
        if before != after:
            rows.append(TargetDifference(target=target, in_force=before, proposed=after))
    return sorted(rows, key=lambda row: (-abs(row.proposed.gain_bytes - row.in_force.gain_bytes), row.target))


def _sums(plan: Plan) -> dict[str, PlannedSum]:
    numbers: dict[str, tuple[int, int, int]] = {}
    for job in plan.jobs:
        jobs, cost, gain = numbers.get(job.target, (0, 0, 0))
        numbers[job.target] = jobs + 1, cost + job.cost_bytes, gain + job.gain_bytes
    return {
        target: PlannedSum(jobs=jobs, cost_bytes=cost, gain_bytes=gain)
        for target, (jobs, cost, gain) in numbers.items()
    }
