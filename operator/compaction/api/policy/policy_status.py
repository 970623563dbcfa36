"""`status` of a CompactionPolicy: what is behind, since when, until when, at what cost, the plan, and what it
waits for.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StringConstraints, computed_field

from compaction.api.base import (
    ApiModel,
    Count,
    Mark,
    Message,
    Path,
    Timestamp,
    Word,
    cutting,
    free_form,
    keeping_first,
    keeping_last,
    list_atomic,
    list_map,
    once_by,
)
from compaction.api.conditions import Condition
from compaction.api.enums import PlanApproval, WorkerState
from compaction.api.events import EventsStatus
from compaction.api.policy.store import StoreName
from compaction.api.preview import BeginStatus, PreviewStatus
from compaction.api.requests import RequestStatus, RunNowStatus
from compaction.api.text.printing import format_age, format_bytes

# The parts of a policy's status about what comes next: the plan, and what is waited for.

MAX_LEFT_OUT = 64
MAX_PLANNED_WORK = 64
MAX_WAITS = 32
MAX_RUNS = 20
MAX_UNMADE = 700_000
"""Of 100,000 jobs, five bytes each in base64: as many as `maxJobsQueued` can be."""


class LeftOutStatus(ApiModel):
    """Candidates that got no job, grouped by the reason."""

    reason: Word
    """Reason in one word, such as DenseEnough, NewestSegment, BelowThreshold or Cooldown."""
    count: Count
    """Number of candidates left out for this reason."""
    example: Path | None = None
    """Name of one of them."""
    due_at: Timestamp | None = None
    """Time at which the first of sources that wait for more get a job at the latest. Empty for other reasons."""
    missing: Count = 0
    """Number of sources that the first of those that wait for more lack to get a job at once; 0 for other reasons."""


class PlannedWork(ApiModel):
    """A job that waits for approval of its plan."""

    job: Annotated[str, StringConstraints(max_length=253)]
    """Name that the job will have."""
    target: Path
    """Target of the job: path of the log, or name of the batch of blocks."""
    groups: Count = 0
    """Number of groups of sources that it rewrites."""
    obsolete: Count = 0
    """Number of sources that it drops because nothing live is in them."""
    cost_bytes: Count = 0
    """Bytes that it will copy."""
    gain_bytes: Count = 0
    """Bytes that it will reclaim."""


class PlanStatus(ApiModel):
    """The newest plan."""

    hash: Annotated[str, StringConstraints(max_length=64)] = ""
    """Hash of the plan: equal hashes mean the same jobs."""
    jobs: Count = 0
    """Number of jobs in the plan."""
    cost_bytes: Count = 0
    """Bytes that the plan's jobs will copy."""
    gain_bytes: Count = 0
    """Bytes that the plan's jobs will reclaim."""
    created_at: Timestamp | None = None
    """Time at which the plan was made."""
    approval: PlanApproval | None = None
    """Whether the plan waits for approval (Pending) or its jobs were created (Approved). Empty with approval: Auto."""
    generation: Count = 0
    """Generation of the spec that the plan was made for."""
    unmade: Annotated[str, StringConstraints(max_length=MAX_UNMADE)] = ""
    """Jobs of an approved plan that are still to be created: the ends of their names, as bytes in base64. A coordinator
    that coordinates next goes on with them. Empty once all exist, and with approval: Auto."""
    waiting_since: Timestamp | None = None
    """Time since which plans of the policy wait for approval, while this one does; longer than this plan exists when
    the world changed meanwhile."""
    work: Annotated[
        tuple[PlannedWork, ...], Field(max_length=MAX_PLANNED_WORK), keeping_first(MAX_PLANNED_WORK), list_atomic()
    ] = ()
    """Jobs of a plan that waits for approval, or was approved, the largest gain first; at most 64."""
    reason: Word = ""
    """Why the plan was made: Scan, Schedule or RunNow."""
    approved_at: Timestamp | None = None
    """Time at which the operator has seen the approval and began to create the jobs."""
    approved_by: Annotated[str, StringConstraints(max_length=253), cutting(253)] = ""
    """Who approved, as the annotation compaction.dev/approved-by claims; the audit log of the API server has the
    proof."""
    left_out: Annotated[
        tuple[LeftOutStatus, ...], Field(max_length=MAX_LEFT_OUT), keeping_first(MAX_LEFT_OUT), list_atomic()
    ] = ()
    """Candidates that got no job, grouped by the reason."""


class WaitStatus(ApiModel):
    """What the object waits for."""

    reason: Word
    """Reason for waiting in one word, such as NoFreeSlot, WorkerStarting or Cooldown."""
    message: Message = ""
    """Message for a person: what is waited for."""
    since: Timestamp
    """Time at which the wait for this reason began."""


class WaitCount(ApiModel):
    """What a number of jobs, or a plan, wait for."""

    reason: Word
    """Reason for waiting in one word, as in status.waiting."""
    count: Count
    """Number of jobs that wait for this reason; of plans, for AwaitingSchedule and ApprovalPending."""
    since: Timestamp
    """Time since which something waits for this reason without a break."""
    message: Message = ""
    """Message for a person: what is waited for."""
    example: Annotated[str, StringConstraints(max_length=253)] = ""
    """Name of one of the jobs."""


# `status` of a CompactionPolicy: what is behind, since when, until when, at what cost, and what stands in the way.
#
# Numbers are the truth; the strings beside them (`summary`, `eta`, `reclaimed`) are computed from them for printer
# columns.

MAX_CONDITIONS = 16
MAX_TARGET_ERRORS = 128
MAX_QUARANTINED = 1024
MAX_COUNTED = 2048
MAX_EVICTED = 1024
MAX_WORKER_STATUSES = 100
MAX_TENANTS = 10
MAX_CONFLICTS = 10
MAX_MEASURES = 32
MAX_BEHIND = 5
MAX_TENANT = 256


class LevelDebtStatus(ApiModel):
    """Debt of one level."""

    level: Annotated[int, Field(ge=0, le=100)]
    """Level of the debt; segment logs have only level 0."""
    bytes: Count = 0
    """Bytes that compaction of this level would reclaim, or merge."""
    sources: Count = 0
    """Number of sources that compaction of this level would remove or rewrite."""


class TenantDebtStatus(ApiModel):
    """Debt of one tenant."""

    tenant: Annotated[str, StringConstraints(max_length=MAX_TENANT)]
    """Name of the tenant."""
    bytes: Count = 0
    """Bytes of its sources that compaction would reclaim, or merge."""
    sources: Count = 0
    """Number of its sources that compaction would remove or rewrite."""


class MeasureStatus(ApiModel):
    """A number about the store that its kind adds."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name of the measure: missingLiveEntries of segment logs; liveBlocks, windows, readAmplification and
    readAmplificationAfter of block stores."""
    value: Annotated[float, Field(ge=0)] = 0.0
    """Value of the measure, in its unit."""


class TargetDebtStatus(ApiModel):
    """Debt of one target."""

    target: Path
    """Name of the target, such as the branch of a repository."""
    measures: Annotated[
        tuple[MeasureStatus, ...], Field(max_length=MAX_MEASURES), keeping_first(MAX_MEASURES), list_map("name")
    ] = ()
    """Numbers of the target as of the last scan; those whose names end in After are what compaction would leave."""

    def measure(self, name: str) -> float:
        """The value of a measure; 0 when the target has none of that name."""
        return next((measure.value for measure in self.measures if measure.name == name), 0.0)


class DebtStatus(ApiModel):
    """What compaction would gain now."""

    bytes: Count = 0
    """Bytes that compaction of logs would reclaim; of blocks, those that it would merge."""
    sources: Count = 0
    """Number of sources that compaction would remove or rewrite: segments, or blocks."""
    targets: Count = 0
    """Number of targets that have debt: logs, or batches of blocks."""
    measures: Annotated[
        tuple[MeasureStatus, ...], Field(max_length=MAX_MEASURES), keeping_first(MAX_MEASURES), list_map("name")
    ] = ()
    """Numbers that the kind of store adds, as of the last scan."""
    behind: Annotated[
        tuple[TargetDebtStatus, ...], Field(max_length=MAX_BEHIND), keeping_first(MAX_BEHIND), list_map("target")
    ] = ()
    """The targets that are furthest behind, the worst first, of kinds of store that measure each; at most five."""
    levels: Annotated[tuple[LevelDebtStatus, ...], Field(max_length=16), keeping_first(16), list_map("level")] = ()
    """Debt of each level that has any."""
    tenants: Annotated[
        tuple[TenantDebtStatus, ...], Field(max_length=MAX_TENANTS), keeping_first(MAX_TENANTS), list_map("tenant")
    ] = ()
    """Debt of the ten tenants of a block store that have the most blocks to merge."""

    @computed_field(return_type=Annotated[str, StringConstraints(max_length=16)])  # type: ignore[prop-decorator]
    @property
    def summary(self) -> str:
        """Bytes of debt for people, such as 163Mi (the column DEBT)."""
        return format_bytes(self.bytes)

    def measure(self, name: str) -> float:
        """The value of a measure; 0 when the store has none of that name."""
        return next((measure.value for measure in self.measures if measure.name == name), 0.0)


class SourceConflict(ApiModel):
    """Sources of a tenant that belong together and cannot be compacted with one another."""

    tenant: Annotated[str, StringConstraints(max_length=MAX_TENANT)]
    """Name of the tenant."""
    classes: Count = 0
    """Number of classes of sources, each of which is compacted by itself."""
    sources: Count = 0
    """Number of sources that wait, or are in jobs, beside those of another class."""
    message: Message = ""
    """Message for a person: what keeps them apart, such as columns whose types have no common one."""


class QuarantinedSource(ApiModel):
    """A damaged source that is in quarantine, so that its siblings can be compacted."""

    target: Path
    """Target that the source is of: path of the log, or name of the batch of blocks."""
    source: Annotated[str, StringConstraints(max_length=253)]
    """Name of the damaged source: of the segment file, or the id of the block."""
    index: Count | None = None
    """Index of the damaged record, where known."""
    offset: Count | None = None
    """Byte offset of the damage in the source, where known."""
    reason: Word
    """Reason in one word, such as SourceCorrupt."""
    message: Message = ""
    """Message for a person: what is damaged and where."""
    since: Timestamp
    """Time at which the source was quarantined."""
    identity: Annotated[str, StringConstraints(max_length=128)] = ""
    """Identity of the source when it was quarantined. The quarantine of a file ends when it is replaced or repaired;
    that of a block when it is released or dropped."""


class TargetError(ApiModel):
    """A target that could not be planned."""

    target: Path
    """Path of the log; of a block store, what could not be planned or cleaned."""
    reason: Word
    """Reason in one word, such as LiveSetUnknown or PermissionDenied."""
    message: Message = ""
    """Message for a person: what is wrong and what to do."""


class CountedJob(ApiModel):
    """A finished job whose receipt is in the policy's totals."""

    job: Annotated[str, StringConstraints(max_length=253)]
    """Name of the job."""
    uid: Annotated[str, StringConstraints(max_length=64)] = ""
    """UID of the job: another job of the same name, made after this one was deleted, is counted as well."""
    token: Count = 0
    """Fencing token with which it ended: a job that was retried and ended again has a larger one."""
    bytes: Count = 0
    """Bytes of it that bytesReclaimed contains."""
    succeeded: bool = False
    """Whether it is counted in succeeded."""
    cpu_seconds: Annotated[float, Field(ge=0)] | None = None
    """CPU seconds of it that cost contains. Absent when none of its attempts has reported them."""


class WorkerStatus(ApiModel):
    """One worker."""

    name: Annotated[str, StringConstraints(max_length=63)]
    """Name of the worker: of its Lease, and of its pod or SparkApplication where it has one."""
    state: WorkerState
    """State of the worker: Pending (created, and waits for something), Starting, or Ready (it takes jobs)."""
    reason: Word = ""
    """What a pending worker waits for in one word, such as Unschedulable or ImagePull."""
    message: Message = ""
    """Message for a person: what a pending worker waits for."""
    ui: Annotated[str, StringConstraints(max_length=1024)] = ""
    """Address of Spark's web page, when spark.ui.enabled is true in workers.sparkConf and the worker runs in a pod."""


class RunRecord(ApiModel):
    """One plan that was carried out: when, why, and what came of its jobs."""

    plan: Annotated[str, StringConstraints(max_length=64)]
    """Hash of the plan; its jobs have it in the label compaction.dev/plan while they exist."""
    reason: Word = ""
    """Why the plan was made: Scan, Schedule or RunNow."""
    started_at: Timestamp
    """Time at which the first of its jobs was created."""
    ended_at: Timestamp | None = None
    """Time at which the last of its jobs ended. Empty while one waits or runs."""
    approved_at: Timestamp | None = None
    """Time at which the plan was approved. Empty with approval: Auto."""
    approved_by: Annotated[str, StringConstraints(max_length=253), cutting(253)] = ""
    """Who approved it, as the annotation compaction.dev/approved-by claimed."""
    debt_bytes: Count | None = None
    """Debt of the store when it began, as in status.debt. Absent when no scan has determined it."""
    jobs: Count = 0
    """Number of jobs. Those that neither succeeded nor are parked when the run has ended were given up."""
    succeeded: Count = 0
    """Number of jobs that succeeded."""
    faulty: Count = 0
    """Number of jobs that are parked."""
    bytes_read: Count = 0
    """Bytes of the sources of the jobs that succeeded."""
    bytes_written: Count = 0
    """Bytes of what replaces them."""
    bytes_reclaimed: Count = 0
    """Bytes that the jobs have reclaimed, also those that are parked."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Seconds of work in the attempts that committed, of all jobs together."""
    cpu_seconds: Annotated[float, Field(ge=0)] | None = None
    """CPU seconds of drivers and executors, of all attempts of the jobs that have reported them, failed ones too.
    Absent when none has."""
    driver_peak_bytes: Count | None = None
    """Most memory that a driver of these jobs had."""
    executor_peak_bytes: Count | None = None
    """Most memory that the Python process of a task of these jobs had."""
    work: Annotated[
        tuple[PlannedWork, ...], Field(max_length=MAX_PLANNED_WORK), keeping_first(MAX_PLANNED_WORK), list_atomic()
    ] = ()
    """Jobs of a plan that was approved, the largest gain first, until the run has ended; at most 64."""


class PolicyCost(ApiModel):
    """CPU time of the policy's finished jobs whose workers have reported it, and the bytes that these jobs have
    reclaimed."""

    cpu_seconds: Annotated[float, Field(ge=0)] = 0.0
    """CPU seconds of drivers and executors, of all attempts of the jobs, failed ones too."""
    bytes_reclaimed: Count = 0
    """Bytes that these jobs have reclaimed, without those of jobs whose CPU time is not known."""

    @computed_field(return_type=Count | None)  # type: ignore[prop-decorator]
    @property
    def gain_per_cpu_second(self) -> int | None:
        """Bytes reclaimed for each CPU second. Empty until a CPU second was used."""
        return round(self.bytes_reclaimed / self.cpu_seconds) if self.cpu_seconds else None


# The answer to a preview: two columns of the same moment, and where they differ.

MAX_PREVIEWED_WORK = 16
MAX_DIFFERENCES = 32
MAX_PREVIEWED_ERRORS = 16


class PreviewedPlan(ApiModel):
    """What one of two specs would do now."""

    plan: PlanStatus
    """The plan: jobs, cost, gain, and why other candidates are left out; of its jobs those with the largest gain, at
    most 16. A suspension and a schedule are not taken into account: begins says them."""
    sources: Count = 0
    """Number of sources that its jobs rewrite or drop."""
    targets: Count = 0
    """Number of targets that its jobs are of."""
    begins: BeginStatus
    """When its jobs would be started."""
    debt_bytes: Count = 0
    """Bytes of debt, as in status.debt."""
    debt_sources: Count = 0
    """Number of sources in the debt."""
    target_errors: Annotated[
        tuple[TargetError, ...],
        Field(max_length=MAX_PREVIEWED_ERRORS),
        keeping_first(MAX_PREVIEWED_ERRORS),
        list_atomic(),
    ] = ()
    """Targets that could not be planned; at most 16."""


class PlannedSum(ApiModel):
    """The jobs of one target in a plan."""

    jobs: Count = 0
    """Number of jobs."""
    cost_bytes: Count = 0
    """Bytes that they would copy."""
    gain_bytes: Count = 0
    """Bytes that they would reclaim."""
    reason: Word = ""
    """Why the target has no job, such as BelowThreshold. Empty when it has one, or is not selected at all."""


class TargetDifference(ApiModel):
    """A target of which the two plans do not do the same."""

    target: Path
    """Target of the jobs."""
    in_force: PlannedSum
    """What the spec in force does with it."""
    proposed: PlannedSum
    """What the proposed spec does with it."""


class PolicyPreview(PreviewStatus):
    """What a proposed spec of the policy would do now, beside what the spec in force would."""

    in_force: PreviewedPlan | None = None
    """What the spec in force would do, by a scan of the same moment. Empty when the preview was refused."""
    proposed: PreviewedPlan | None = None
    """What the proposed spec would do. Empty when the preview was refused."""
    differences: Annotated[
        tuple[TargetDifference, ...], Field(max_length=MAX_DIFFERENCES), keeping_first(MAX_DIFFERENCES), list_atomic()
    ] = ()
    """Targets of which the plans do not do the same, those with the largest difference of the gain first; at most
    32."""
    differing: Count = 0
    """Number of such targets."""


class EvictedJob(ApiModel):
    """A job that was given up although its work is not done."""

    job: Annotated[str, StringConstraints(max_length=253)]
    """Name of the job."""
    until: Timestamp
    """Time from which on its work may be planned again; until then others go first."""


class CompactionPolicyStatus(ApiModel):
    """What the operator last saw and did."""

    observed_generation: Annotated[int, Field(ge=-1)] = -1
    """Generation of the spec (metadata.generation) that this status describes. -1 until the operator has seen the
    policy."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS), list_map("type")] = ()
    """Conditions of the policy: Ready always (True while the policy does its work, False when a user has to act);
    Reconciling until the spec is carried out; Stalled while nothing happens until a user acts."""
    reason_since: Timestamp | None = None
    """Time since which Ready has its reason; lastTransitionTime is the time since which it has its status."""
    store: StoreName | None = None
    """Kind of the store that the policy compacts."""
    debt: DebtStatus | None = None
    """What compaction would gain now."""
    conflicts: Annotated[
        tuple[SourceConflict, ...], Field(max_length=MAX_CONFLICTS), keeping_first(MAX_CONFLICTS), list_atomic()
    ] = ()
    """Sources that are not compacted with one another although they belong together, those of the most sources first;
    at most ten."""
    oldest_debt_at: Timestamp | None = None
    """Time since which the oldest debt exists. Empty when there is none."""
    eta_seconds: Count | None = None
    """Seconds until the debt is worked off, from the measured speed. Empty when nothing runs or nothing was
    measured."""
    plan: PlanStatus | None = None
    """The newest plan: jobs, cost, gain, and why candidates were left out."""
    active: Count = 0
    """Number of jobs that workers are running."""
    progress_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Progress of these jobs together, in percent of the bytes that they copy. Empty while none runs."""
    queued: Count = 0
    """Number of jobs that wait for a worker."""
    faulty: Count = 0
    """Number of jobs that are parked as Faulty, without those whose work was planned again: their sources changed, or
    the quarantine of their damaged sources is over. Those stay for the record, in the list of jobs."""
    succeeded: Count = 0
    """Number of jobs that succeeded since the policy exists."""
    workers: Count = 0
    """Number of workers that are running."""
    worker_statuses: Annotated[
        tuple[WorkerStatus, ...],
        Field(max_length=MAX_WORKER_STATUSES),
        keeping_first(MAX_WORKER_STATUSES),
        list_map("name"),
    ] = ()
    """Workers one by one: their state, and what those wait for that have not begun."""
    driver_memory_bytes: Count | None = None
    """Bytes of memory that drivers get now, when one was killed for using more than workers.driver.memory."""
    executor_memory_bytes: Count | None = None
    """Bytes of memory that executors get now, when some were killed for using more than workers.executor.memory."""
    last_sense_time: Timestamp | None = None
    """Time of the last complete scan of the store."""
    last_success_time: Timestamp | None = None
    """Time at which the last job succeeded."""
    bytes_reclaimed: Count = 0
    """Bytes that jobs have reclaimed since the policy was created."""
    cost: PolicyCost | None = None
    """CPU time of the finished jobs, and their gain. Empty until one of them has reported it."""
    counted: Annotated[tuple[CountedJob, ...], Field(max_length=MAX_COUNTED), list_map("job")] = ()
    """Finished jobs that still exist and are in the totals (succeeded, bytesReclaimed), so that none is counted
    twice."""
    evicted: Annotated[
        tuple[EvictedJob, ...], Field(max_length=MAX_EVICTED), keeping_last(MAX_EVICTED), list_map("job")
    ] = ()
    """Jobs that a full queue or a history limit gave up a short while ago, so that others go first."""
    quarantined: Annotated[
        tuple[QuarantinedSource, ...],
        Field(max_length=MAX_QUARANTINED),
        keeping_first(MAX_QUARANTINED),
        list_map("target", "source"),
    ] = ()
    """Damaged sources that are in quarantine, so that their siblings can be compacted."""
    target_errors: Annotated[
        tuple[TargetError, ...],
        Field(max_length=MAX_TARGET_ERRORS),
        keeping_first(MAX_TARGET_ERRORS),
        once_by("target"),
        list_map("target"),
    ] = ()
    """Targets that could not be planned, with the reason."""
    history: Annotated[tuple[RunRecord, ...], Field(max_length=MAX_RUNS), keeping_last(MAX_RUNS), list_atomic()] = ()
    """The last 20 plans that were carried out, the newest last."""
    waiting: WaitStatus | None = None
    """What the policy's next step waits for, and since when."""
    waits: Annotated[
        tuple[WaitCount, ...], Field(max_length=MAX_WAITS), keeping_first(MAX_WAITS), list_map("reason")
    ] = ()
    """Everything that is waited for, by reason: how many jobs, since when."""
    last_schedule_time: Timestamp | None = None
    """Newest time of trigger.schedule for which a plan was made; before the first one, the time from which on the
    schedule counts. Empty without a schedule."""
    next_schedule_time: Timestamp | None = None
    """Next time of trigger.schedule. Empty without a schedule."""
    next_window_time: Timestamp | None = None
    """Time at which the next of trigger.windows opens. Empty while one is open, and without windows."""
    granted_bytes_per_second: Count | None = None
    """Bytes per second that the running jobs may read and write together. Empty without limits.bytesPerSecond."""
    released: Mark = ""
    """Value of the annotation compaction.dev/release that was last acted upon (its SHA-256, if it is long)."""
    defaults: Annotated[dict[str, Any], Field(max_length=16), free_form()] = Field(default_factory=dict)
    """Fields that the spec does not set and the operator's configuration does: together they are the spec in force."""
    events: EventsStatus | None = None
    """Events for the sink of the operator's configuration. Empty without a sink."""
    last_handled_run_now: Mark = ""
    """Value of the annotation compaction.dev/run-now that was last answered (its SHA-256, if it is long)."""
    run_now: RunNowStatus | None = None
    """What came of that request."""
    last_handled_scan: Mark = ""
    """Value of the annotation compaction.dev/scan that was last answered (its SHA-256, if it is long)."""
    scan: RequestStatus | None = None
    """What came of that request."""
    last_handled_preview: Mark = ""
    """Value of the annotation compaction.dev/preview that was last answered (its SHA-256, if it is long)."""
    preview: PolicyPreview | None = None
    """What the spec in that annotation would do, as of the time of the answer."""
    approved: Annotated[str, StringConstraints(max_length=64)] = ""
    """Hash of the newest plan that was carried out because the annotation compaction.dev/approve named it."""

    @computed_field(return_type=Annotated[str, StringConstraints(max_length=16)] | None)  # type: ignore[prop-decorator]
    @property
    def eta(self) -> str | None:
        """Time until the debt is worked off for people, such as 2m10s (the column ETA)."""
        return None if self.eta_seconds is None else format_age(self.eta_seconds)

    @computed_field(return_type=Annotated[str, StringConstraints(max_length=16)])  # type: ignore[prop-decorator]
    @property
    def reclaimed(self) -> str:
        """Bytes reclaimed so far, rounded, such as 1.2Gi (the column RECLAIMED)."""
        return format_bytes(self.bytes_reclaimed)
