"""What a person wants to see happen while a watch runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compaction.api.conditions import get_condition, is_true
from compaction.api.enums import ConditionType, PlanApproval
from compaction.api.policy.resource import CompactionPolicyStatus
from compaction.api.text.formatting import format_work, plural
from compaction.core.reconcile.actions import Announce

PLAN_PENDING: Final = "PlanPending"
"""News of a plan that waits for approval; the message begins with its hash."""


@dataclass(frozen=True, slots=True)
class News:
    """An Event of the reconciler, or a change of the policy's status."""

    reason: str
    message: str
    warning: bool = False
    job: str = ""


def of_event(event: Announce) -> News:
    """An Event as news."""
    return News(event.reason, event.message, event.warning, event.job.name if event.job is not None else "")


def of_status(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[News]:
    """What a new status says: another reason of Ready, another plan that waits for approval."""
    news = []
    old, new = (get_condition(one.conditions, ConditionType.READY) for one in (before, after))
    if new is not None and (old is None or old.reason != new.reason):
        news.append(News(new.reason, new.message, warning=is_true(after.conditions, ConditionType.STALLED)))
    plan = after.plan
    if plan is not None and plan.approval is PlanApproval.PENDING and plan.hash != _pending_hash(before):
        work = format_work(plan.cost_bytes, plan.gain_bytes)
        message = f"{plan.hash}: {plural(plan.jobs, 'job')}, {work}"
        news.append(News(PLAN_PENDING, message))
    return news


def _pending_hash(status: CompactionPolicyStatus) -> str:
    plan = status.plan
    return plan.hash if plan is not None and plan.approval is PlanApproval.PENDING else ""
