"""What a policy says to its planner, and planned jobs as objects to be created."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from compaction.api.enums import Approval, JobKind
from compaction.api.job import (
    CompactionJobSpec,
    JobParameters,
    JobSources,
    PolicyReference,
    SegmentGroup,
    SegmentLogParameters,
    SegmentLogSources,
)
from compaction.api.policy import CompactionPolicy
from compaction.planning.planner import Plan, PlanLimits, PlannedJob, Planner
from compaction.planning.triggers import Trigger
from compaction.reconcile.actions import CreateJob
from compaction.reconcile.observations import Memory, Unmade
from compaction.reconcile.timing import approved_hash

CREATED_AT_ONCE: Final = 256
"""So many jobs are created before the next look at everything: workers that are free meanwhile get the first of them,
and nothing is decided on a picture that is minutes old.
"""


def creations(
    plan: Plan | None, policy: CompactionPolicy, *, existing: Container[str], before: Memory, memory: Memory
) -> tuple[tuple[CreateJob, ...], Memory]:
    """The next jobs to create, and the memory of those that are left.

    They are of `plan` when one was made just now, else of the one made before, unless it is outdated. After a restart
    the rest is planned anew. `before`: the memory before anything was planned in this reconcile.
    """
    unmade = memory.unmade
    if plan is not None:
        unmade = Unmade(plan.hash, plan.jobs)
    elif (memory.planned_reading, policy.metadata.generation) != (before.planned_reading, memory.planned_generation):
        unmade = Unmade()
    elif policy.spec.approval is Approval.MANUAL and unmade.plan != approved_hash(policy):
        unmade = Unmade()  # the approval was taken back
    jobs = tuple(job for job in unmade.jobs if job.name not in existing)
    now, later = jobs[:CREATED_AT_ONCE], jobs[CREATED_AT_ONCE:]
    made = tuple(CreateJob(job.name, spec_of(job, policy), unmade.plan) for job in now)
    return made, replace(memory, unmade=replace(unmade, jobs=later))


def trigger_of(policy: CompactionPolicy) -> Trigger:
    """When one of the policy's logs is due. A log without a history has no cooldown, whatever it is."""
    thresholds = policy.spec.trigger.thresholds
    return Trigger(
        debt_bytes=int(thresholds.debt_bytes),
        debt_segments=thresholds.debt_segments,
        cooldown=float(policy.spec.trigger.cooldown),
        suspended=policy.spec.suspend,
    )


def planner_of(policy: CompactionPolicy, *, owner_uid: str) -> Planner:
    """The planner of a policy's jobs; its owner is part of their names."""
    limits = policy.spec.limits
    return Planner(
        policy_name=policy.metadata.name,
        owner_uid=owner_uid,
        limits=PlanLimits(int(limits.max_bytes_per_job), limits.max_jobs_queued),
        trigger=trigger_of(policy),
        parameters=parameters_of(policy).model_dump_json(),
    )


def parameters_of(policy: CompactionPolicy) -> SegmentLogParameters:
    """What every job of the policy is told besides its sources."""
    logs = policy.spec.store.segment_logs
    if logs is None:
        return SegmentLogParameters()
    return SegmentLogParameters(
        max_entries_per_segment=logs.max_entries_per_segment,
        max_bytes_per_segment=int(logs.max_bytes_per_segment),
        when_indexes_missing=logs.when_indexes_missing,
    )


def spec_of(job: PlannedJob, policy: CompactionPolicy) -> CompactionJobSpec:
    """The spec of a planned job, with the policy's store parameters as they are now."""
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
        parameters=JobParameters(segment_log=parameters_of(policy)),
    )
