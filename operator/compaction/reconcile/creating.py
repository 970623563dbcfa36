"""Planned jobs as objects to be created."""

from __future__ import annotations

from collections.abc import Container

from compaction.api.enums import JobKind
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
from compaction.planning.planner import Plan, PlannedJob
from compaction.reconcile.actions import CreateJob


def creations(plan: Plan | None, policy: CompactionPolicy, *, existing: Container[str]) -> tuple[CreateJob, ...]:
    """The jobs of a plan as objects to create, without those that exist."""
    if plan is None:
        return ()
    made_for = plan.hash
    return tuple(CreateJob(job.name, spec_of(job, policy), made_for) for job in plan.jobs if job.name not in existing)


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
