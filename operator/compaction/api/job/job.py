"""CompactionJob: one immutable unit of rewrite, made by a policy or by hand."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints
from pydantic.alias_generators import to_camel

from compaction.api.base import ApiModel, Count, ObjectMeta, PrinterColumn, PrinterColumnType, ResourceInfo, Rule
from compaction.api.job.job_status import (
    AttemptStatus,
    ClumpReceipt,
    CompactionJobStatus,
    JobReceipt,
    MeasureChange,
    MetarangeReceipt,
    SkippedSource,
)
from compaction.api.members import JobMember, OneOf, SourcesModel
from compaction.api.names import API_VERSION, JOB_KIND, JOB_PLURAL, MAX_JOB_NAME, MAX_POLICY_NAME
from compaction.api.policy.block_store import BlockParameters, BlockSources
from compaction.api.policy.policy_status import WaitStatus
from compaction.api.policy.segment_logs import SegmentLogParameters, SegmentLogSources
from compaction.api.policy.staging_area import MetarangeParameters, MetarangeSources
from compaction.api.policy.store import STORES

# `spec` of a CompactionJob: one immutable unit of work.
#
# `sources` and `parameters` are unions by the job's type, with a member for each type of each kind of store.


def job_members() -> tuple[JobMember, ...]:
    """The types of jobs of all kinds."""
    return tuple(job for store in STORES for job in store.jobs)


JobTypeName = Annotated[str, OneOf(lambda: (member.name for member in job_members()))]


class PolicyReference(ApiModel):
    """A CompactionPolicy in the same namespace."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=MAX_POLICY_NAME)]
    """Name of the CompactionPolicy, in the job's namespace, whose workers, limits and lease the job uses."""


class JobSources(ApiModel):
    """What a job works on: the member that belongs to its kind."""

    segment_log: SegmentLogSources | None = None
    """Segments of one log, for a job of kind SegmentRewrite."""
    blocks: BlockSources | None = None
    """Blocks of one tenant and shard, for a job of kind BlockRewrite."""
    metarange: MetarangeSources | None = None
    """Tokens of one branch, for a job of kind MetarangeRewrite."""

    @property
    def chosen(self) -> SourcesModel | None:
        """The member that is set, if any is. Loops, not generators: every reconcile asks this of every job."""
        for store in STORES:
            for job in store.jobs:
                member: SourcesModel | None = getattr(self, job.member)
                if member is not None:
                    return member
        return None


class JobParameters(ApiModel):
    """How a job works: the member that belongs to its kind."""

    segment_log: SegmentLogParameters | None = None
    """How segments are rewritten, for a job of kind SegmentRewrite. The defaults are Ra's."""
    blocks: BlockParameters | None = None
    """How blocks are merged, for a job of kind BlockRewrite."""
    metarange: MetarangeParameters | None = None
    """How tokens are compacted, for a job of kind MetarangeRewrite."""


def _sources_rule(job: JobMember) -> Rule:
    return Rule(
        cel=f"(self.kind == '{job.name}') == has(self.sources.{to_camel(job.member)})",
        message=f"kind {job.name} needs sources.{to_camel(job.member)}: {job.needs}",
        holds=lambda spec: (spec.kind == job.name) == (getattr(spec.sources, job.member) is not None),
        field=".sources",
    )


def job_rules() -> tuple[Rule, ...]:
    """The rules of a job's spec, of the types there are."""
    immutable = Rule(
        cel="self == oldSelf",
        message="spec is immutable, a job is one unit of work: delete this job and create another",
    )
    return (immutable, *map(_sources_rule, job_members()))


class CompactionJobSpec(ApiModel):
    """One unit of work: what to rewrite, and how."""

    policy_ref: PolicyReference
    """The policy, in the same namespace, whose workers, limits and lease the job uses."""
    kind: JobTypeName
    """Kind of the work. SegmentRewrite rewrites groups of segments of one log and drops obsolete ones;
    BlockRewrite merges blocks into one of the next level; MetarangeRewrite makes tokens of a branch part of its
    base."""
    level: Annotated[int, Field(ge=0, le=100)] = 0
    """Level of the job. Lower levels run first; jobs of segment logs and of branches are level 0. What a
    BlockRewrite makes is of the next level."""
    estimated_bytes: Count = 0
    """Bytes that the job is expected to copy. Used for progress and for the time of arrival."""
    sources: JobSources
    """What the job works on: the member that belongs to its kind must be set."""
    parameters: JobParameters = Field(default_factory=JobParameters)
    """How the job works: the member that belongs to its kind may be set."""

    RULES = job_rules()

    @property
    def target(self) -> str:
        """What the job's commits are to. Jobs of one target run one after another."""
        chosen = self.sources.chosen
        return chosen.target if chosen is not None else ""

    @property
    def block_parameters(self) -> BlockParameters:
        """Parameters of a BlockRewrite, with the defaults where the job gives none."""
        return self.parameters.blocks or BlockParameters()

    @property
    def metarange_parameters(self) -> MetarangeParameters:
        """Parameters of a MetarangeRewrite, with the defaults where the job gives none."""
        return self.parameters.metarange or MetarangeParameters()

    @property
    def segment_log_parameters(self) -> SegmentLogParameters:
        """Parameters of a SegmentRewrite, with Ra's defaults where the job gives none."""
        return self.parameters.segment_log or SegmentLogParameters()


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
            PrinterColumn("Level", ".spec.level", "Level of the job", PrinterColumnType.INTEGER),
            PrinterColumn("State", ".status.state", "State of the job"),
            PrinterColumn("Progress", ".status.progress", "Progress of the newest attempt"),
            PrinterColumn("Worker", ".status.worker", "Worker that has the job"),
            PrinterColumn(
                "Token", ".status.fencingToken", "Fencing token of the newest attempt", PrinterColumnType.INTEGER
            ),
            PrinterColumn("Started", ".status.assignedAt", "Start of the newest attempt", PrinterColumnType.DATE),
            PrinterColumn("Ended", ".status.finishedAt", "End of the job", PrinterColumnType.DATE),
            PrinterColumn("Took", ".status.took", "Time from the start of the newest attempt to the end"),
            PrinterColumn("Age", ".metadata.creationTimestamp", "Age of the job", PrinterColumnType.DATE),
            PrinterColumn("Failures", ".status.failures", "Failed attempts", PrinterColumnType.INTEGER, wide=True),
            PrinterColumn(
                "Reclaimed", ".status.receipt.bytesReclaimed", "Bytes reclaimed", PrinterColumnType.INTEGER, wide=True
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
