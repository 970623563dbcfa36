"""What a policy says to its planner, and planned jobs as objects to be created."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from compaction.api.block_store_spec import BlockStore
from compaction.api.enums import Approval, JobKind
from compaction.api.job import (
    BlockParameters,
    BlockSources,
    CompactionJobSpec,
    JobParameters,
    JobSources,
    PolicyReference,
    SegmentGroup,
    SegmentLogParameters,
    SegmentLogSources,
)
from compaction.api.policy import CompactionPolicy
from compaction.api.store_spec import SegmentLogsStore
from compaction.planning.block_offers import work_of
from compaction.planning.planner import Plan, PlanLimits, PlannedJob, Planner
from compaction.planning.triggers import Trigger
from compaction.reconcile import approval
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

    They are of `plan` when one was made just now, else of the one made before, unless it is outdated. What does not
    exist by the next decision is created again. Of an approved plan nothing is created before the status on the API
    server names what is to be created. `before`: the memory before anything was planned in this reconcile.
    """
    unmade = memory.unmade
    if plan is not None:
        unmade = Unmade(plan.hash, plan.jobs)
    elif unmade is not before.unmade:
        pass  # found just now: the rest of an approved plan
    elif (memory.planned_reading, policy.metadata.generation) != (before.planned_reading, memory.planned_generation):
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


def trigger_of(policy: CompactionPolicy) -> Trigger:
    """When one of the policy's logs, or batches of blocks, is due. One without a history has no cooldown."""
    thresholds = policy.spec.trigger.thresholds
    blocks = policy.spec.store.block_store is not None
    return Trigger(
        debt_bytes=int(thresholds.debt_bytes),
        debt_segments=thresholds.debt_blocks if blocks else thresholds.debt_segments,
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
        parameters=_told(policy),
    )


def _told(policy: CompactionPolicy) -> str:
    """What every job of the policy is told besides its sources, in a stable text."""
    store = policy.spec.store
    if store.block_store is not None:
        return _of_blocks(store.block_store).model_dump_json()
    return _of_logs(store.segment_logs).model_dump_json()


def _of_logs(logs: SegmentLogsStore | None) -> SegmentLogParameters:
    if logs is None:
        return SegmentLogParameters()
    return SegmentLogParameters(
        max_entries_per_segment=logs.max_entries_per_segment,
        max_bytes_per_segment=int(logs.max_bytes_per_segment),
        when_indexes_missing=logs.when_indexes_missing,
        ownership=logs.ownership,
    )


def _of_blocks(store: BlockStore) -> BlockParameters:
    keep_last_of = store.deduplicate.columns if store.deduplicate is not None else ()
    return BlockParameters(memory_bytes=int(store.merge_memory), sort_key=store.sort_key, deduplicate_by=keep_last_of)


def spec_of(job: PlannedJob, policy: CompactionPolicy) -> CompactionJobSpec:
    """The spec of a planned job, with the policy's store parameters as they are now."""
    blocks = policy.spec.store.block_store
    kind, sources, parameters = _block_work(job, blocks) if blocks is not None else _segment_work(job, policy)
    return CompactionJobSpec(
        policy_ref=PolicyReference(name=policy.metadata.name),
        kind=kind,
        level=job.level,
        estimated_bytes=job.cost_bytes,
        sources=sources,
        parameters=parameters,
    )


def _segment_work(job: PlannedJob, policy: CompactionPolicy) -> tuple[JobKind, JobSources, JobParameters]:
    sources = SegmentLogSources(
        path=job.path,
        snapshot_index=job.snapshot_index,
        groups=tuple(SegmentGroup(segments=group.sources) for group in job.groups),
        unreferenced=tuple(one.name for one in job.unreferenced),
    )
    parameters = JobParameters(segment_log=_of_logs(policy.spec.store.segment_logs))
    return JobKind.SEGMENT_REWRITE, JobSources(segment_log=sources), parameters


def _block_work(job: PlannedJob, store: BlockStore) -> tuple[JobKind, JobSources, JobParameters]:
    work = work_of(job)
    sources = BlockSources(
        store=store.reference, tenant=work.tenant, shard=work.shard, batch=job.path, blocks=work.sources
    )
    return JobKind.BLOCK_REWRITE, JobSources(blocks=sources), JobParameters(blocks=_of_blocks(store))
