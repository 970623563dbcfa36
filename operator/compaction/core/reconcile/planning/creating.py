"""What a policy says to its planner, and planned jobs as objects to be created."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from compaction.api.enums import Approval
from compaction.api.job.resource import CompactionJobSpec, PolicyReference
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.planning.planner import Plan, PlanLimits, PlannedJob, Planner
from compaction.core.planning.triggers import PlanTrigger
from compaction.core.reconcile.actions import CreateJob
from compaction.core.reconcile.memory import PlanMemory, Unmade
from compaction.core.reconcile.planning import approval
from compaction.core.reconcile.timing import approved_hash
from compaction.registry import kind_of

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
    """When a target of the policy is due. One without a history has no cooldown."""
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
