"""When a policy plans, and on what: the planner's inputs from the picture, its outputs as actions.

A plan is made once per reading of the store (and once per change of the spec): between two readings nothing new is
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from compaction.api.enums import JobKind, JobState
from compaction.api.job import (
    CompactionJobSpec,
    JobParameters,
    JobSources,
    PolicyReference,
    SegmentGroup,
    SegmentLogParameters,
    SegmentLogSources,
)
from compaction.api.policy import CompactionPolicy, LeftOut, PlanStatus
from compaction.planning.candidates import Candidate
from compaction.planning.planner import JobInventory, Plan, PlanLimits, PlannedJob, Planner
from compaction.planning.scheduler import eviction_order
from compaction.planning.triggers import LogHistory, Trigger
from compaction.reconcile.actions import CreateJob
from compaction.reconcile.counting import deletable
from compaction.reconcile.job import AT_ONCE_FAULTY, NOT_THE_SOURCES, is_finished
from compaction.reconcile.observations import Memory, Moment, Reading, Snapshot, frozen
from compaction.reconcile.steps import JobStep
from compaction.reconcile.teardown import owner_uid

EVICTED_FOR: Final = 600.0
"""Seconds before what was evicted, or forgotten while Faulty, is planned again: others go first."""


def plan_again(
    snapshot: Snapshot, policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory
) -> tuple[Plan | None, Memory]:
    """A new plan when there is something new to plan from, and the memory of having planned."""
    reading, generation = snapshot.reading, policy.metadata.generation
    if reading is None or reading.generation != generation or reading.problem is not None:
        return None, memory
    if memory.planned_reading == reading.number and memory.planned_generation == generation:
        return None, memory
    spec, now = policy.spec, snapshot.now
    planner = Planner(
        policy_name=policy.metadata.name,
        owner_uid=policy.metadata.uid,
        limits=PlanLimits(int(spec.limits.max_bytes_per_job), spec.limits.max_jobs_queued),
        trigger=Trigger(
            debt_bytes=int(spec.trigger.thresholds.debt_bytes),
            debt_segments=spec.trigger.thresholds.debt_segments,
            cooldown=float(spec.trigger.cooldown),
            suspended=spec.suspend,
        ),
    )
    memory = replace(
        memory,
        planned_reading=reading.number,
        planned_generation=generation,
        evicted=frozen({name: until for name, until in memory.evicted.items() if until > now.monotonic}),
        finished=frozen({log: at for log, at in memory.finished.items() if at >= reading.started}),
    )
    inventory = _inventory(policy, steps, memory, split_records(steps, reading))
    plan = planner.plan(reading.candidates, _history(steps, memory), inventory, now=now.wall)
    return plan, replace(memory, plan=_plan_status(memory.plan or policy.status.plan, plan, now))


def _plan_status(before: PlanStatus | None, plan: Plan, now: Moment) -> PlanStatus:
    """The newest plan that had jobs; what was left out is always of the newest plan."""
    left_out = tuple(LeftOut(reason=row.reason, count=row.count, example=row.example) for row in plan.left_out)
    if not plan.jobs and before is not None:
        return PlanStatus.model_validate({**dict(before), "left_out": left_out})
    return PlanStatus(
        hash=plan.hash,
        jobs=len(plan.jobs),
        cost_bytes=plan.cost_bytes,
        gain_bytes=plan.gain_bytes,
        created_at=now.time,
        left_out=left_out,
    )


def _history(steps: Iterable[JobStep], memory: Memory) -> dict[str, LogHistory]:
    history = {log: LogHistory(finished_monotonic=at) for log, at in memory.finished.items()}
    for step in steps:
        known = history.get(step.log, LogHistory())
        ended = step.status.finished_at.timestamp() if step.status.finished_at is not None else None
        history[step.log] = LogHistory(
            finished_at=max((at for at in (known.finished_at, ended) if at is not None), default=None),
            finished_monotonic=known.finished_monotonic,
            has_unfinished_job=known.has_unfinished_job or not is_finished(step.status),
        )
    return history


def _inventory(
    policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory, records: frozenset[str]
) -> JobInventory:
    faulty = [step for step in steps if step.state is JobState.FAULTY]
    persisted = policy.status.counted
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
        splittable=frozenset(step.name for step in faulty if _may_split(step)),
        evictable=order,
        queue_size=sum(step.state is not JobState.SUCCEEDED and step.name not in records for step in steps),
        recently_evicted=frozenset(memory.evicted),
    )


def split_records(steps: Iterable[JobStep], reading: Reading | None) -> frozenset[str]:
    """Faulty jobs that are the only record of a split: without one, its parts would be planned as a whole again.

    Such a job is needed as long as the store offers any part of it, and while that is not known. It takes no room in
    the queue: its work is planned in halves.
    """
    candidates = {one.path: one for one in reading.candidates} if reading is not None else {}
    needed = set()
    for step in steps:
        sources = step.view.job.spec.sources.segment_log
        if step.state is not JobState.FAULTY or sources is None or not owner_uid(step.view.job):
            continue
        if len(sources.groups) + bool(sources.unreferenced) < 2 or not _may_split(step):
            continue
        candidate = candidates.get(step.log)
        unknown = reading is None or reading.problem is not None or (candidate is None and step.log in reading.logs)
        if unknown or (candidate is not None and _offers_any(candidate, sources)):
            needed.add(step.name)
    return frozenset(needed)


def _offers_any(candidate: Candidate, sources: SegmentLogSources) -> bool:
    if candidate.snapshot_index != sources.snapshot_index:
        return False  # the names of all its jobs are different ones now
    groups = {group.sources for group in candidate.groups}
    names = {one.name for one in candidate.unreferenced}
    return any(group.segments in groups for group in sources.groups) or not names.isdisjoint(sources.unreferenced)


def _may_split(step: JobStep) -> bool:
    """A job that used up its attempts for a reason that may lie in one of its groups."""
    reasons = {attempt.reason for attempt in step.status.attempts if attempt.charged}
    return bool(reasons) and not reasons & (NOT_THE_SOURCES | AT_ONCE_FAULTY)


def evicted(memory: Memory, names: Iterable[str], now: Moment) -> Memory:
    """The memory of jobs that were dropped although their work is not done."""
    added = dict.fromkeys(names, now.monotonic + EVICTED_FOR)
    return replace(memory, evicted=frozen({**memory.evicted, **added})) if added else memory


def cooling(steps: Iterable[JobStep], cooldown: float, *, now: Moment) -> frozenset[str]:
    """Jobs that must be kept because the cooldown of their log is measured from their end."""
    if cooldown <= 0:
        return frozenset()
    newest: dict[str, tuple[float, str]] = {}
    for step in steps:
        if step.status.finished_at is not None:
            entry = (step.status.finished_at.timestamp(), step.name)
            newest[step.log] = max(entry, newest.get(step.log, entry))
    return frozenset(name for ended, name in newest.values() if ended + cooldown > now.wall)


def creations(plan: Plan | None, policy: CompactionPolicy) -> tuple[CreateJob, ...]:
    """The jobs of a plan as objects to create."""
    return tuple(CreateJob(job.name, spec_of(job, policy)) for job in plan.jobs) if plan is not None else ()


def spec_of(job: PlannedJob, policy: CompactionPolicy) -> CompactionJobSpec:
    """The spec of a planned job, with the policy's store parameters as they are now."""
    logs = policy.spec.store.segment_logs
    parameters = SegmentLogParameters()
    if logs is not None:
        parameters = SegmentLogParameters(
            max_entries_per_segment=logs.max_entries_per_segment,
            max_bytes_per_segment=int(logs.max_bytes_per_segment),
            when_indexes_missing=logs.when_indexes_missing,
        )
    return CompactionJobSpec(
        policy_ref=PolicyReference(name=policy.metadata.name),
        kind=JobKind.SEGMENT_REWRITE,
        level=job.level,
        estimated_bytes=job.cost_bytes,
        sources=JobSources(
            segment_log=SegmentLogSources(
                path=job.path,
                snapshot_index=job.snapshot_index,
                groups=tuple(SegmentGroup(segments=group.sources) for group in job.groups),
                unreferenced=tuple(one.name for one in job.unreferenced),
            )
        ),
        parameters=JobParameters(segment_log=parameters),
    )
