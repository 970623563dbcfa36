"""Plans of a policy: when it plans and on what, the objects that follow, and a plan that another coordinator began."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from compaction.api.enums import Approval, JobState, PlanApproval, PlanTriggerReason
from compaction.api.job.job import CompactionJobSpec, PolicyReference
from compaction.api.names import LABEL_PLAN
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.planning.candidates import Candidate, LeftOutReason
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import (
    JobInventory,
    LeftOut,
    Plan,
    PlanLimits,
    PlannedJob,
    Planner,
    PlanTrigger,
    TargetHistory,
    cooldown_left,
    split_due,
)
from compaction.core.planning.scheduler import eviction_order
from compaction.core.reconcile import requests
from compaction.core.reconcile.actions import CreateJob
from compaction.core.reconcile.jobs.counting import by_job, deletable, is_parked, may_split
from compaction.core.reconcile.jobs.ending import owner_uid
from compaction.core.reconcile.jobs.job import is_finished, parts_of
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Memory, Moment, PlanMemory, PolicySnapshot, Unmade, frozen
from compaction.core.reconcile.planning import approval
from compaction.core.reconcile.planning.approval import is_pending
from compaction.core.reconcile.timing import Timing, approved_hash, is_of_now
from compaction.registry import kind_of

# Input of a policy to its planner, and planned jobs as objects to be created.

CREATED_AT_ONCE: Final = 256
"""So many jobs are created before the next reconcile: workers that are free meanwhile get the first of them,
and nothing is decided on a picture that is minutes old.
"""


def creations(
    plan: Plan | None, policy: CompactionPolicy, *, existing: Container[str], before: PlanMemory, memory: PlanMemory
) -> tuple[tuple[CreateJob, ...], PlanMemory]:
    """The next jobs to create, and the memory of those that are left.

    They are of `plan` when one was made just now, else of the one made before, unless it is outdated. What does not
    exist by the next decision is created again. Of an approved plan nothing is created before the status on the API
    server names what is to be created. `before`: the memory before anything was planned in this reconcile.
    """
    unmade = memory.unmade
    if plan is not None:
        unmade = Unmade(plan.hash, plan.jobs)
    elif unmade is not before.unmade:
        pass  # found just now: the rest of an approved plan
    elif (memory.reading, policy.metadata.generation) != (before.reading, memory.generation):
        unmade = Unmade()
    elif policy.spec.approval is Approval.MANUAL and unmade.plan != approved_hash(policy):
        unmade = Unmade()  # the approval was taken back
    unmade = replace(unmade, jobs=tuple(job for job in unmade.jobs if job.name not in existing))
    memory = replace(memory, unmade=unmade)
    now = unmade.jobs[:CREATED_AT_ONCE]
    if policy.spec.approval is Approval.MANUAL:
        if memory.plan is not None and (unmade.names or memory.plan.unmade):
            memory = replace(memory, plan=approval.with_unmade(memory.plan, unmade.names))
        if not approval.is_written(policy.status.plan, unmade.plan):
            now = ()
    return tuple(CreateJob(job.name, spec_of(job, policy), unmade.plan) for job in now), memory


def trigger_of(policy: CompactionPolicy) -> PlanTrigger:
    """Return the conditions under which a target of the policy is due. One without a history has no cooldown."""
    store = policy.spec.store
    return PlanTrigger(
        is_due=kind_of(store).due(store),
        cooldown=float(policy.spec.trigger.cooldown),
        suspended=policy.spec.suspend,
    )


def planner_of(policy: CompactionPolicy, *, owner_uid: str) -> Planner:
    """The planner of a policy's jobs; its owner is part of their names."""
    limits, store = policy.spec.limits, policy.spec.store
    return Planner(
        policy_name=policy.metadata.name,
        owner_uid=owner_uid,
        limits=PlanLimits(int(limits.max_bytes_per_job), limits.max_jobs_queued),
        trigger=trigger_of(policy),
        parameters=kind_of(store).parameters(store).model_dump_json(),
    )


def spec_of(job: PlannedJob, policy: CompactionPolicy) -> CompactionJobSpec:
    """The spec of a planned job, with the policy's store parameters as they are now."""
    work = kind_of(policy.spec.store).work(job, policy.spec.store)
    return CompactionJobSpec(
        policy_ref=PolicyReference(name=policy.metadata.name),
        kind=work.job_type,
        level=job.level,
        estimated_bytes=job.cost_bytes,
        sources=work.sources,
        parameters=work.parameters,
    )


# An approved plan of which another coordinator created only a part: what is created is what is missing.
#
# The plan cannot be made again once one of its jobs has run. But a planned job's name is made of everything that the
# job is, and the status names the jobs that are missing (`approval`). So a plan is made as if none of the approved
# one's jobs existed, and those of its jobs that the status names are created: what was approved, and nothing else. A
# job that cannot be planned under its name any more has other sources now, and belongs to a plan that is approved by
# itself.


def sought_jobs(policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory) -> frozenset[str]:
    """Names of missing jobs of the approved plan that this coordinator has not planned yet; empty when it has planned
    all of them itself, or the approval or the spec is another one by now.
    """
    wanted, generation = approved_hash(policy), policy.metadata.generation
    if not wanted:
        return frozenset()
    if memory.planning.unmade.sought:
        holds = memory.planning.unmade.plan == wanted and memory.planning.generation == generation
        return memory.planning.unmade.sought if holds else frozenset()
    plan = policy.status.plan
    if memory.planning.plan is not None or plan is None or plan.approval is not PlanApproval.APPROVED:
        return frozenset()
    if (plan.hash, plan.generation) != (wanted, generation):
        return frozenset()
    return approval.unmade(plan, policy) - {step.name for step in steps}


def other_jobs(steps: Sequence[JobStep], plan: str) -> list[JobStep]:
    """The jobs that are not of the plan with this hash."""
    return [step for step in steps if step.view.job.metadata.labels.get(LABEL_PLAN) != plan]


def go_on(
    snapshot: PolicySnapshot,
    policy: CompactionPolicy,
    steps: Sequence[JobStep],
    memory: Memory,
    missing: frozenset[str],
    found: Plan,
) -> Memory | None:
    """The memory with the jobs to create, and with what has to be sought at the next scan; None when the rest is given
    up. While a job of the plan runs, what it leaves to another job of its target may not be seen yet.
    """
    reading, shown = snapshot.reading, memory.planning.plan or policy.status.plan
    assert reading is not None, "a plan is made from a scan"
    wanted = approved_hash(policy)
    jobs = tuple(job for job in found.jobs if job.name in missing)
    rest = missing - {job.name for job in jobs}
    own = [step for step in steps if step.view.job.metadata.labels.get(LABEL_PLAN) == wanted]
    ended = {target for target, at in memory.finished.items() if at >= reading.started}
    undecided = any(step.state is JobState.IN_PROGRESS or step.target in ended for step in own)
    if not jobs and not undecided:
        return None
    planning = replace(
        memory.planning,
        plan=shown,
        unmade=Unmade(wanted, jobs, rest if undecided else frozenset()),
        reading=reading.number,
        jobs=None,
        generation=policy.metadata.generation,
    )
    finished = frozen({target: at for target, at in memory.finished.items() if target in ended})
    return replace(memory, planning=planning, finished=finished)


# The time and the basis of a policy's plans: the planner's inputs from the picture, its outputs as actions.
#
# A plan is made once per reading of the store (and once per change of the spec): between two readings nothing new is
# known. A schedule leaves only the readings that it asks for; approval leaves only the plan that was approved.


def plan_again(
    snapshot: PolicySnapshot,
    policy: CompactionPolicy,
    steps: Sequence[JobStep],
    memory: Memory,
    clock: Timing,
    *,
    owed: frozenset[str] = frozenset(),
) -> tuple[Plan | None, Memory]:
    """A new plan to be carried out, when there is something new to plan from, and the memory of having planned.

    With a schedule a plan is made at its times only, and between them for what the last one still owes to the targets
    `owed`; with approval: Manual it is only shown until a user approves it.
    """
    reading, now = snapshot.reading, snapshot.now
    on_hold = snapshot.hold is not None
    if reading is None or not _is_new(reading, policy, memory, on_hold=on_hold) or _is_being_created(policy, memory):
        return None, memory
    if requests.is_for_figures(policy, memory, clock):
        return None, replace(memory, planning=replace(memory.planning, skipped=reading.number))
    at_once = requests.plans_at_once(policy, memory)
    reason = PlanTriggerReason.SCHEDULE if clock.due is not None else PlanTriggerReason.SCAN
    reason = PlanTriggerReason.RUN_NOW if at_once else reason
    sought = sought_jobs(policy, steps, memory)
    if sought:
        found = _plan(
            reading, policy, other_jobs(steps, approved_hash(policy)), memory, now, whatever_waits=True, at_once=at_once
        )
        gone_on = go_on(snapshot, policy, steps, memory, sought, found)
        if gone_on is not None:
            return None, gone_on
    before = memory.planning.plan or policy.status.plan
    if policy.spec.trigger.schedule is not None and clock.due is None and not is_pending(before) and not at_once:
        # Outside its times only what the last plan still owes is planned.
        owing = tuple(candidate for candidate in reading.candidates if candidate.target in owed)
        if not owing:
            return None, memory
        reading = replace(reading, candidates=owing)
    reading = _as_shown(reading, policy, memory)
    planning = replace(
        memory.planning,
        pending=(),
        reading=reading.number,
        jobs=snapshot.job_versions,
        generation=policy.metadata.generation,
        on_hold=on_hold,
        scheduled_for=clock.due if clock.due is not None else memory.planning.scheduled_for,
    )
    # The scan has seen the outputs of jobs that ended before it began; the targets of later ones are not planned from
    # it.
    finished = frozen({target: at for target, at in memory.finished.items() if at >= reading.started})
    memory = replace(memory, planning=planning, finished=finished)
    plan = _approved(reading, policy, steps, memory, now, at_once=at_once)
    if plan is None:
        plan = _plan(reading, policy, steps, memory, now, at_once=at_once)
        if policy.spec.approval is Approval.MANUAL and plan.jobs:
            shown = approval.pending(before, plan, now, policy=policy, reason=reason)
            waiting = tuple(job for job in plan.jobs if any(group.divisible for group in job.groups))
            return None, replace(memory, planning=replace(planning, plan=shown, pending=waiting))
    manual = policy.spec.approval is Approval.MANUAL
    shown = approval.carried_out(before, plan, now, policy=policy, manual=manual, reason=reason)
    exists = {step.name for step in steps}
    news = any(job.name not in exists for job in plan.jobs)
    if not news:
        return None, replace(memory, planning=replace(planning, plan=shown))
    return plan, replace(memory, planning=replace(planning, plan=shown, jobs=None))


def plan_of(reading: ScanResult, policy: CompactionPolicy, now: Moment) -> Plan:
    """The plan of a store without jobs, to look into: the first one that `plan_again` would make of this scan."""
    return _plan(reading, policy, (), Memory(), now)


def plan_beside(
    reading: ScanResult, policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory, now: Moment
) -> tuple[Plan, Mapping[str, str]]:
    """The plan that a scan leads to beside these jobs, to look into: whether the policy is suspended does not count.
    And the targets that are not due, each with the reason.
    """
    meant = policy.model_copy(update={"spec": policy.spec.model_copy(update={"suspend": False})})
    _, others = split_due(reading.candidates, trigger_of(meant), _history(steps, memory), now=now.wall)
    reasons = {candidate.target: str(reason) for candidate, reason in others}
    return _plan(reading, meant, steps, memory, now), reasons


def _as_shown(reading: ScanResult, policy: CompactionPolicy, memory: Memory) -> ScanResult:
    """The scan without the targets that became due after the plan that waits for approval was made, while all of that
    plan can still be done. Sources arrive all the time: else it would be another plan after every review.
    They are in the next plan.
    """
    if policy.spec.approval is not Approval.MANUAL or memory.planning.generation != policy.metadata.generation:
        return reading
    targets = {candidate.target: candidate for candidate in reading.candidates}
    shown = [
        (targets.get(job.target), {name for group in job.groups for name in group.sources})
        for job in memory.planning.pending
    ]
    if not shown or any(item is None or item.sources != names for item, names in shown):
        return reading
    return replace(reading, candidates=tuple(item for item, _ in shown if item is not None))


def _is_new(reading: ScanResult, policy: CompactionPolicy, memory: Memory, *, on_hold: bool) -> bool:
    """True for a good look with this spec, later than what asked for one, that nothing was planned from; a plan of
    before the operator was put on hold, or of that time, counts for nothing after it.
    """
    generation = policy.metadata.generation
    if not is_of_now(reading, policy, memory) or reading.problem is not None:
        return False
    if memory.planning.skipped == reading.number:
        return False
    planned = memory.planning
    return (planned.reading, planned.generation, planned.on_hold) != (reading.number, generation, on_hold)


def _is_being_created(policy: CompactionPolicy, memory: Memory) -> bool:
    """True while jobs of the approved plan are still to be created, which takes several decisions when it is large.

    A newer plan would be another one once the first of them has run, and the rest would wait to be approved again.
    """
    unmade = memory.planning.unmade
    return (
        bool(unmade.jobs)
        and unmade.plan == approved_hash(policy)
        and memory.planning.generation == policy.metadata.generation
    )


def _approved(
    reading: ScanResult,
    policy: CompactionPolicy,
    steps: Sequence[JobStep],
    memory: Memory,
    now: Moment,
    *,
    at_once: bool,
) -> Plan | None:
    """The plan that was approved, if the world is still the one it was made for.

    Its jobs that exist already and were never tried are planned along: so a coordinator that died while it created
    them is followed by one that creates the rest of them, and of no other plan.
    """
    wanted = approved_hash(policy)
    if not wanted:
        return None
    others = [step for step in steps if not _is_untouched(step, wanted)]
    plan = _plan(reading, policy, others, memory, now, at_once=at_once)
    return plan if plan.hash == wanted else None


def _is_untouched(step: JobStep, plan: str) -> bool:
    made_for = step.view.job.metadata.labels.get(LABEL_PLAN)
    return made_for == plan and step.state is JobState.UNASSIGNED and not step.status.attempts


def _plan(
    reading: ScanResult,
    policy: CompactionPolicy,
    steps: Sequence[JobStep],
    memory: Memory,
    now: Moment,
    *,
    whatever_waits: bool = False,
    at_once: bool = False,
) -> Plan:
    """A plan beside these jobs; with `whatever_waits` a full queue leaves nothing out, with `at_once` no cooldown."""
    planner = planner_of(policy, owner_uid=policy.metadata.uid)
    if at_once:
        planner = replace(planner, trigger=replace(planner.trigger, cooldown=0.0))
    if whatever_waits:
        planner = replace(planner, limits=replace(planner.limits, max_jobs_queued=sys.maxsize))
    inventory = _inventory(policy, steps, memory, split_records(steps, reading))
    candidates, held = _apart(reading.candidates, steps)
    return planner.plan(
        candidates, _history(steps, memory), inventory, now=now.wall, left_out=(*reading.left_out, *held)
    )


def _apart(
    candidates: Sequence[Candidate], steps: Iterable[JobStep]
) -> tuple[Sequence[Candidate], tuple[LeftOut, ...]]:
    """The candidates without those that have a source of an unfinished job of another target, where sources are in no
    two jobs: a job that the scan did not know of yet, or one made by hand. Whatever raced, nothing is planned twice.
    """
    target_of: dict[str, str] = {}
    for step in steps:
        if not is_finished(step.status) and (parts := parts_of(step.view.job)).divisible:
            target_of |= dict.fromkeys(parts.sources, step.target)
    if not target_of:
        return candidates, ()
    taken = {
        candidate.target
        for candidate in candidates
        if any(target_of.get(name, candidate.target) != candidate.target for name in candidate.sources)
    }
    row = LeftOut(LeftOutReason.JOB_UNFINISHED, len(taken), min(taken, default=""))
    return [candidate for candidate in candidates if candidate.target not in taken], (row,) if taken else ()


def unplanned(reading: ScanResult | None, policy: CompactionPolicy, steps: Sequence[JobStep]) -> tuple[Candidate, ...]:
    """Return what would be planned if a plan were made now; nothing without a schedule: one is made at each scan."""
    if reading is None or policy.spec.trigger.schedule is None:
        return ()
    busy = {step.target for step in steps if not is_finished(step.status)}
    due, _ = split_due(reading.candidates, trigger_of(policy), {}, now=0.0)
    parked: dict[str, list[JobStep]] = {}
    for step in steps:
        if step.state is JobState.FAULTY:
            parked.setdefault(step.target, []).append(step)
    return tuple(item for item in due if item.target not in busy and not is_parked(item, parked))


def _history(steps: Iterable[JobStep], memory: Memory) -> dict[str, TargetHistory]:
    history = {target: TargetHistory(finished_monotonic=at) for target, at in memory.finished.items()}
    for step in steps:
        known = history.get(step.target, TargetHistory())
        ended = step.status.finished_at.timestamp() if step.status.finished_at is not None else None
        history[step.target] = TargetHistory(
            finished_at=max((at for at in (known.finished_at, ended) if at is not None), default=None),
            finished_monotonic=known.finished_monotonic,
            has_unfinished_job=known.has_unfinished_job or not is_finished(step.status),
        )
    return history


def _inventory(
    policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory, records: frozenset[str]
) -> JobInventory:
    faulty = [step for step in steps if step.state is JobState.FAULTY]
    persisted = by_job(policy.status.counted)
    order = eviction_order(
        [
            (
                step.name,
                step.status.finished_at.timestamp() if step.status.finished_at else 0.0,
                step.view.lease is not None,
            )
            for step in faulty
            if not step.changed and deletable(step, persisted) and step.name not in records
        ]
    )
    return JobInventory(
        names=frozenset(step.name for step in steps),
        faulty=frozenset(step.name for step in faulty),
        splittable=frozenset(step.name for step in faulty if may_split(step)),
        parked=_parked_sources(faulty),
        evictable=order,
        queue_size=sum(step.state is not JobState.SUCCEEDED and step.name not in records for step in steps),
        recently_evicted=frozenset(memory.planning.evicted or ()),
    )


def _parked_sources(faulty: Iterable[JobStep]) -> dict[str, list[tuple[str, ...]]]:
    targets: dict[str, list[tuple[str, ...]]] = {}
    for step in faulty:
        parts = parts_of(step.view.job)
        if parts.divisible and owner_uid(step.view.job):
            targets.setdefault(step.target, []).extend(parts.groups)
    return targets


def split_records(steps: Iterable[JobStep], reading: ScanResult | None) -> frozenset[str]:
    """Faulty jobs that are the only record of a split: without one, its parts would be planned as a whole again.

    Such a job is needed as long as a plan could make it again from what the store offers, and while that is not known.
    It takes no room in the queue: its work is planned in halves.
    """
    candidates = {candidate.target: candidate for candidate in reading.candidates} if reading is not None else {}
    needed = set()
    for step in steps:
        if step.state is not JobState.FAULTY or not owner_uid(step.view.job):
            continue
        parts = parts_of(step.view.job)
        if not parts.may_be_halved or not may_split(step):
            continue
        candidate = candidates.get(step.target)
        unknown = (
            reading is None or reading.problem is not None or (candidate is None and step.target in reading.targets)
        )
        if unknown or (candidate is not None and parts.is_offered(candidate)):
            needed.add(step.name)
    return frozenset(needed)


def cooling(steps: Iterable[JobStep], cooldown: float, *, now: Moment) -> frozenset[str]:
    """Jobs that must be kept because the cooldown of their target is measured from their end."""
    if cooldown <= 0:
        return frozenset()
    trigger = PlanTrigger(cooldown=cooldown)
    newest: dict[str, tuple[float, str]] = {}
    for step in steps:
        if step.status.finished_at is not None:
            entry = (step.status.finished_at.timestamp(), step.name)
            newest[step.target] = max(entry, newest.get(step.target, entry))
    return frozenset(
        name
        for ended, name in newest.values()
        if cooldown_left(trigger, TargetHistory(finished_at=ended), now=now.wall) > 0
    )
