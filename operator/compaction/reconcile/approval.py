"""A plan in the policy's status: carried out, or waiting until somebody approves exactly this one."""

from __future__ import annotations

from typing import Any

from compaction.api.enums import PlanApproval
from compaction.api.plan_status import MAX_PLANNED_WORK
from compaction.api.policy import LeftOut, PlannedWork, PlanStatus
from compaction.api.values import timestamp_from_epoch
from compaction.planning.planner import Plan
from compaction.reconcile.observations import Moment


def is_pending(plan: PlanStatus | None) -> bool:
    """True for a plan that waits for approval."""
    return plan is not None and plan.approval is PlanApproval.PENDING


def carried_out(before: PlanStatus | None, plan: Plan, now: Moment, *, manual: bool) -> PlanStatus:
    """The newest plan that had jobs, unless it still waited: then it is void. What was left out is of the newest."""
    if not plan.jobs and before is not None and not is_pending(before):
        return PlanStatus.model_validate({**dict(before), "left_out": _left_out(plan)})
    approved = PlanApproval.APPROVED if manual and plan.jobs else None
    same = before is not None and is_pending(before) and before.hash == plan.hash
    return _shown(plan, created_at=before.created_at if before is not None and same else now.time, approval=approved)


def pending(before: PlanStatus | None, plan: Plan, now: Moment) -> PlanStatus:
    """A plan that nobody has approved yet: with its jobs for whoever decides, and since when a plan waits."""
    waited = before.waiting_since if before is not None and is_pending(before) else None
    same = before is not None and before.hash == plan.hash
    largest = sorted(plan.jobs, key=lambda job: (-job.gain_bytes, job.name))[:MAX_PLANNED_WORK]
    return _shown(
        plan,
        created_at=before.created_at if before is not None and same else now.time,
        approval=PlanApproval.PENDING,
        waiting_since=waited or now.time,
        work=tuple(
            PlannedWork(
                job=job.name,
                log=job.path,
                groups=len(job.groups),
                unreferenced=len(job.unreferenced),
                cost_bytes=job.cost_bytes,
                gain_bytes=job.gain_bytes,
            )
            for job in largest
        ),
    )


def _shown(plan: Plan, **more: Any) -> PlanStatus:
    return PlanStatus(
        hash=plan.hash,
        jobs=len(plan.jobs),
        cost_bytes=plan.cost_bytes,
        gain_bytes=plan.gain_bytes,
        left_out=_left_out(plan),
        **more,
    )


def _left_out(plan: Plan) -> tuple[LeftOut, ...]:
    return tuple(
        LeftOut(
            reason=row.reason,
            count=row.count,
            example=row.example,
            due_at=None if row.due is None else timestamp_from_epoch(row.due),
            missing=row.missing,
        )
        for row in plan.left_out
    )
