"""CompactionPolicy: which store to compact, when and how; and what came of it."""

from typing import ClassVar, Final, Literal

from pydantic import Field

from compaction.api.base import ApiModel
from compaction.api.crd.columns import ColumnType, PrinterColumn, ResourceInfo
from compaction.api.metadata import ObjectMeta
from compaction.api.names import API_VERSION, MAX_POLICY_NAME, POLICY_KIND, POLICY_PLURAL
from compaction.api.policy.plan_status import LeftOutStatus, PlannedWork, PlanStatus, WaitCount, WaitStatus
from compaction.api.policy.schedule import Window
from compaction.api.policy.spec import CleanupSpec, CompactionPolicySpec, LeaseSpec, LimitsSpec, TriggerSpec
from compaction.api.policy.status import (
    CompactionPolicyStatus,
    DebtStatus,
    LevelDebtStatus,
    MeasureStatus,
    QuarantinedSource,
    SourceConflict,
    TargetDebtStatus,
    TargetError,
    TenantDebtStatus,
)
from compaction.api.policy.store import StoreSpec
from compaction.api.policy.workers import WorkersSpec
from compaction.api.rules import Rule

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
            PrinterColumn("Oldest", ".status.oldestDebtAt", "Age of the oldest debt", ColumnType.DATE),
            PrinterColumn("Active", ".status.active", "Jobs that run", ColumnType.INTEGER),
            PrinterColumn("Queued", ".status.queued", "Jobs that wait for a worker", ColumnType.INTEGER),
            PrinterColumn(
                "Faulty",
                ".status.faulty",
                "Jobs that are parked, without those whose work was planned again",
                ColumnType.INTEGER,
            ),
            PrinterColumn("ETA", ".status.eta", "Time until the debt is worked off"),
            PrinterColumn("Age", ".metadata.creationTimestamp", "Age of the policy", ColumnType.DATE),
            PrinterColumn("Waiting", ".status.waiting.reason", "What the next step waits for", wide=True),
            PrinterColumn("Plan", ".status.plan.hash", "Hash of the newest plan", wide=True),
            PrinterColumn("Approval", ".status.plan.approval", "Whether the plan is approved", wide=True),
            PrinterColumn("Workers", ".status.workers", "Workers that run", ColumnType.INTEGER, wide=True),
            PrinterColumn("Reclaimed", ".status.reclaimed", "Bytes reclaimed so far", wide=True),
            PrinterColumn("Since", ".status.reasonSince", "Age of the reason", ColumnType.DATE, wide=True),
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
