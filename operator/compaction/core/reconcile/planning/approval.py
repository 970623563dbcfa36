"""A plan in the policy's status: carried out, or waiting until a user approves exactly this one.

Before the first job of an approved plan is created, the status names all of its jobs. So a coordinator that takes over
in the middle knows what was approved, although it cannot make the same plan any more: some of its jobs have run.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Final

from compaction.api.enums import PlanApproval
from compaction.api.names import name_stem
from compaction.api.policy.plan_status import MAX_PLANNED_WORK
from compaction.api.policy.resource import CompactionPolicy, LeftOutStatus, PlannedWork, PlanStatus
from compaction.api.text.times import timestamp_from_epoch
from compaction.core.planning.planner import Plan
from compaction.core.reconcile.observations import Moment

_DIGITS: Final = 10
"""Hexadecimal ones at the end of a planned job's name: `core/planning/planner.py` makes them of all that the job is."""


def with_unmade(plan: PlanStatus, names: Iterable[str]) -> PlanStatus:
    """The plan with the jobs of it that do not exist yet."""
    ends = b"".join(bytes.fromhex(name[-_DIGITS:]) for name in sorted(names))
    return PlanStatus.model_validate({**dict(plan), "unmade": base64.b64encode(ends).decode()})


def unmade(plan: PlanStatus, policy: CompactionPolicy) -> frozenset[str]:
    """The names of the jobs that the status says are still to be created; none when it cannot be read."""
    try:
        ends = base64.b64decode(plan.unmade, validate=True).hex()
    except binascii.Error:
        return frozenset()
    stem = name_stem(policy.metadata.name)
    return frozenset(f"{stem}-{ends[at : at + _DIGITS]}" for at in range(0, len(ends), _DIGITS))


def is_written(plan: PlanStatus | None, wanted: str) -> bool:
    """Whether the status says what is to be created for the approved plan `wanted`."""
    return plan is not None and plan.hash == wanted and plan.approval is PlanApproval.APPROVED and bool(plan.unmade)


def is_pending(plan: PlanStatus | None) -> bool:
    """True for a plan that waits for approval."""
    return plan is not None and plan.approval is PlanApproval.PENDING


def carried_out(
    before: PlanStatus | None, plan: Plan, now: Moment, *, policy: CompactionPolicy, manual: bool
) -> PlanStatus:
    """The newest plan that had jobs, unless it still waited: then it is void. What was left out is of the newest."""
    if not plan.jobs and before is not None and not is_pending(before):
        return PlanStatus.model_validate({**dict(before), "left_out": _left_out(plan)})
    approved = PlanApproval.APPROVED if manual and plan.jobs else None
    same = before is not None and before.hash == plan.hash
    return _shown(
        plan,
        generation=policy.metadata.generation,
        created_at=before.created_at if before is not None and same else now.time,
        approval=approved,
    )


def pending(before: PlanStatus | None, plan: Plan, now: Moment, *, policy: CompactionPolicy) -> PlanStatus:
    """A plan without approval: with its jobs for review, and since when a plan waits."""
    waited = before.waiting_since if before is not None and is_pending(before) else None
    same = before is not None and before.hash == plan.hash
    largest = sorted(plan.jobs, key=lambda job: (-job.gain_bytes, job.name))[:MAX_PLANNED_WORK]
    return _shown(
        plan,
        generation=policy.metadata.generation,
        created_at=before.created_at if before is not None and same else now.time,
        approval=PlanApproval.PENDING,
        waiting_since=waited or now.time,
        work=tuple(
            PlannedWork(
                job=job.name,
                target=job.target,
                groups=len(job.groups),
                obsolete=len(job.obsolete),
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


def _left_out(plan: Plan) -> tuple[LeftOutStatus, ...]:
    return tuple(
        LeftOutStatus(
            reason=row.reason,
            count=row.count,
            example=row.example,
            due_at=None if row.due is None else timestamp_from_epoch(row.due),
            missing=row.missing,
        )
        for row in plan.left_out
    )
