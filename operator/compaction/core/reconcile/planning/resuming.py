"""An approved plan of which another coordinator created only a part: what is created is what is missing.

The plan cannot be made again once one of its jobs has run. But a planned job's name is made of everything that the job
is, and the status names the jobs that are missing (`approval`). So a plan is made as if none of the approved one's jobs
existed, and those of its jobs that the status names are created: what was approved, and nothing else. A job that
cannot be planned under its name any more has other sources now, and belongs to a plan that is approved by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from compaction.api.enums import JobState, PlanApproval
from compaction.api.names import LABEL_PLAN
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.planning.planner import Plan
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.memory import Memory, Unmade, frozen
from compaction.core.reconcile.observations import PolicySnapshot
from compaction.core.reconcile.planning import approval
from compaction.core.reconcile.timing import approved_hash


def sought(policy: CompactionPolicy, steps: Sequence[JobStep], memory: Memory) -> frozenset[str]:
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


def others(steps: Sequence[JobStep], plan: str) -> list[JobStep]:
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
