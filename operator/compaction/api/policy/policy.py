"""CompactionPolicy: which store to compact, when and how; what came of it; and parked jobs that need no action."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Final, Literal

from pydantic import Field

from compaction.api.base import ApiModel, ObjectMeta, PrinterColumn, PrinterColumnType, ResourceInfo, Rule
from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType, JobReason, JobState
from compaction.api.job.job import CompactionJob, CompactionJobStatus
from compaction.api.names import API_VERSION, MAX_POLICY_NAME, POLICY_KIND, POLICY_PLURAL
from compaction.api.policy.policy_spec import (
    CleanupSpec,
    CompactionPolicySpec,
    LeaseSpec,
    LimitsSpec,
    TriggerSpec,
    Window,
)
from compaction.api.policy.policy_status import (
    CompactionPolicyStatus,
    DebtStatus,
    LeftOutStatus,
    LevelDebtStatus,
    MeasureStatus,
    PlannedWork,
    PlanStatus,
    QuarantinedSource,
    SourceConflict,
    TargetDebtStatus,
    TargetError,
    TenantDebtStatus,
    WaitCount,
    WaitStatus,
)
from compaction.api.policy.store import StoreSpec
from compaction.api.policy.workers import WorkersSpec

# CompactionPolicy: which store to compact, when and how; and what came of it.

_READY: Final = '.status.conditions[?(@.type=="Ready")]'


class CompactionPolicy(ApiModel):
    """CompactionPolicy says which store is kept compacted, when, and with how much effort. Its status says what is
    behind, since when, and until when."""

    api_version: Literal["compaction.dev/v1alpha1"] = API_VERSION
    kind: Literal["CompactionPolicy"] = POLICY_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: CompactionPolicySpec
    """What to compact, when, how much at once, and by whom."""
    status: CompactionPolicyStatus = Field(default_factory=CompactionPolicyStatus)
    """What the operator last saw and did. Written by the operator only."""

    RULES = (
        Rule(
            cel=f"self.metadata.name.size() <= {MAX_POLICY_NAME}",
            message=f"metadata.name must have at most {MAX_POLICY_NAME} characters, because it becomes a label of the "
            "policy's jobs: choose a shorter name",
            holds=lambda policy: len(policy.metadata.name) <= MAX_POLICY_NAME,
        ),
    )

    INFO: ClassVar[ResourceInfo] = ResourceInfo(
        kind=POLICY_KIND,
        plural=POLICY_PLURAL,
        singular="compactionpolicy",
        short_name="cpol",
        columns=(
            PrinterColumn("Store", ".status.store", "Kind of the store"),
            PrinterColumn(
                "Ready", f"{_READY}.status", "Whether the policy works without a user; False: a user has to act"
            ),
            PrinterColumn("Reason", f"{_READY}.reason", "What the policy does, or what is wrong"),
            PrinterColumn("Debt", ".status.debt.summary", "Bytes that compaction would reclaim, or merge"),
            PrinterColumn("Oldest", ".status.oldestDebtAt", "Age of the oldest debt", PrinterColumnType.DATE),
            PrinterColumn("Active", ".status.active", "Jobs that run", PrinterColumnType.INTEGER),
            PrinterColumn("Queued", ".status.queued", "Jobs that wait for a worker", PrinterColumnType.INTEGER),
            PrinterColumn(
                "Faulty",
                ".status.faulty",
                "Jobs that are parked, without those whose work was planned again",
                PrinterColumnType.INTEGER,
            ),
            PrinterColumn("ETA", ".status.eta", "Time until the debt is worked off"),
            PrinterColumn("Age", ".metadata.creationTimestamp", "Age of the policy", PrinterColumnType.DATE),
            PrinterColumn("Waiting", ".status.waiting.reason", "What the next step waits for", wide=True),
            PrinterColumn("Plan", ".status.plan.hash", "Hash of the newest plan", wide=True),
            PrinterColumn("Approval", ".status.plan.approval", "Whether the plan is approved", wide=True),
            PrinterColumn(
                "Progress",
                ".status.progressPercent",
                "Progress of the jobs that run, in percent",
                PrinterColumnType.INTEGER,
                wide=True,
            ),
            PrinterColumn("Workers", ".status.workers", "Workers that run", PrinterColumnType.INTEGER, wide=True),
            PrinterColumn("Reclaimed", ".status.reclaimed", "Bytes reclaimed so far", wide=True),
            PrinterColumn("Since", ".status.reasonSince", "Age of the reason", PrinterColumnType.DATE, wide=True),
            PrinterColumn("Message", f"{_READY}.message", "Message of the condition Ready", wide=True),
        ),
        selectable=(".spec.suspend", ".status.store"),
    )


__all__ = [
    "CleanupSpec",
    "CompactionPolicy",
    "CompactionPolicySpec",
    "CompactionPolicyStatus",
    "DebtStatus",
    "LeaseSpec",
    "LeftOutStatus",
    "LevelDebtStatus",
    "LimitsSpec",
    "MeasureStatus",
    "PlanStatus",
    "PlannedWork",
    "QuarantinedSource",
    "SourceConflict",
    "StoreSpec",
    "TargetDebtStatus",
    "TargetError",
    "TenantDebtStatus",
    "TriggerSpec",
    "WaitCount",
    "WaitStatus",
    "Window",
    "WorkersSpec",
]


# Parked jobs that need no action: their work was planned again, and they are kept for the record only.


def parked_for(status: CompactionJobStatus) -> str:
    """Why a job is parked, as its condition Failed says; else why its last attempt ended."""
    failed = get_condition(status.conditions, ConditionType.FAILED)
    if failed is not None:
        return failed.reason
    return status.attempts[-1].reason if status.attempts else ""


def is_superseded(
    job: CompactionJob, quarantined: Iterable[QuarantinedSource], *, status: CompactionJobStatus | None = None
) -> bool:
    """True for a parked job whose sources changed under it, and for one whose damaged sources are not quarantined any
    more: they were replaced or released, and what is there now is planned. `status`: the job's, after this reconcile.
    """
    status = job.status if status is None else status
    if status.state is not JobState.FAULTY:
        return False
    reason = parked_for(status)
    if reason == JobReason.SOURCES_CHANGED:
        return True
    if reason != JobReason.SOURCE_CORRUPT or not status.skipped:
        return False
    damaged = {skipped.source for skipped in status.skipped}
    return not any(item.target == job.spec.target and item.source in damaged for item in quarantined)
