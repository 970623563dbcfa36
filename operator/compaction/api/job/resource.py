"""CompactionJob: one immutable unit of rewrite, made by a policy or by hand."""

from typing import ClassVar, Literal

from pydantic import Field

from compaction.api.base import ApiModel
from compaction.api.crd.columns import ColumnType, PrinterColumn, ResourceInfo
from compaction.api.job.spec import CompactionJobSpec, JobParameters, JobSources, PolicyReference, job_members
from compaction.api.job.status import (
    AttemptStatus,
    ClumpReceipt,
    CompactionJobStatus,
    JobReceipt,
    MeasureChange,
    MetarangeReceipt,
    SkippedSource,
)
from compaction.api.metadata import ObjectMeta
from compaction.api.names import API_VERSION, JOB_KIND, JOB_PLURAL, MAX_JOB_NAME
from compaction.api.policy.plan_status import WaitStatus
from compaction.api.rules import Rule


class CompactionJob(ApiModel):
    """CompactionJob is one unit of compaction: what to rewrite, who is at it, and a receipt when it is done. Policies
    create jobs; one may also be created by hand."""

    api_version: Literal["compaction.dev/v1alpha1"] = API_VERSION
    kind: Literal["CompactionJob"] = JOB_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: CompactionJobSpec
    """What to rewrite, and how. Immutable."""
    status: CompactionJobStatus = Field(default_factory=CompactionJobStatus)
    """Where the job is. Written by the operator only."""

    RULES = (
        Rule(
            cel=f"self.metadata.name.size() <= {MAX_JOB_NAME}",
            message=f"metadata.name must have at most {MAX_JOB_NAME} characters, so that tables stay readable: choose "
            "a shorter name",
            holds=lambda job: len(job.metadata.name) <= MAX_JOB_NAME,
        ),
    )

    INFO: ClassVar[ResourceInfo] = ResourceInfo(
        kind=JOB_KIND,
        plural=JOB_PLURAL,
        singular="compactionjob",
        short_name="cjob",
        columns=(
            PrinterColumn("Policy", ".spec.policyRef.name", "Policy of the job"),
            PrinterColumn("Kind", ".spec.kind", "Kind of the work"),
            PrinterColumn("Level", ".spec.level", "Level of the job", ColumnType.INTEGER),
            PrinterColumn("State", ".status.state", "State of the job"),
            PrinterColumn("Progress", ".status.progress", "Progress of the newest attempt"),
            PrinterColumn("Worker", ".status.worker", "Worker that has the job"),
            PrinterColumn("Token", ".status.fencingToken", "Fencing token of the newest attempt", ColumnType.INTEGER),
            PrinterColumn("Started", ".status.assignedAt", "Start of the newest attempt", ColumnType.DATE),
            PrinterColumn("Ended", ".status.finishedAt", "End of the job", ColumnType.DATE),
            PrinterColumn("Age", ".metadata.creationTimestamp", "Age of the job", ColumnType.DATE),
            PrinterColumn("Failures", ".status.failures", "Failed attempts", ColumnType.INTEGER, wide=True),
            PrinterColumn(
                "Reclaimed", ".status.receipt.bytesReclaimed", "Bytes reclaimed", ColumnType.INTEGER, wide=True
            ),
            *(job.column for job in job_members()),
            PrinterColumn("Reason", '.status.conditions[?(@.type=="Ready")].reason', "Reason of Ready", wide=True),
        ),
        selectable=(".spec.policyRef.name", ".spec.kind", ".status.state", ".status.worker"),
    )


__all__ = [
    "AttemptStatus",
    "ClumpReceipt",
    "CompactionJob",
    "CompactionJobSpec",
    "CompactionJobStatus",
    "JobParameters",
    "JobReceipt",
    "JobSources",
    "MeasureChange",
    "MetarangeReceipt",
    "PolicyReference",
    "SkippedSource",
    "WaitStatus",
]
