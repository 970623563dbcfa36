"""`status` of a CompactionJob: where it is, who had it, the report of its attempt, and the proof when it is done."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, ValidationError, computed_field

from compaction.api.base import (
    ApiModel,
    Count,
    Mark,
    Message,
    Timestamp,
    Word,
    first_problem,
    keeping_first,
    keeping_last,
    list_atomic,
    list_map,
)
from compaction.api.conditions import Condition
from compaction.api.enums import AttemptOutcome, JobState
from compaction.api.policy.policy_status import MAX_CONDITIONS, WaitStatus
from compaction.api.policy.segment_logs import MAX_GROUPS_PER_JOB, MAX_OBSOLETE_PER_JOB, MAX_SOURCES_PER_GROUP
from compaction.api.text.printing import format_age
from compaction.errors import MalformedReportError

# `status` of a CompactionJob: where it is, who had it, and the proof when it is done.

MAX_ATTEMPTS_KEPT = 32
MAX_SKIPPED = 256
MAX_MEASURE_CHANGES = 8
WorkerName = Annotated[str, StringConstraints(max_length=63)]
SourceName = Annotated[str, StringConstraints(max_length=400)]
Fingerprint = Annotated[str, StringConstraints(max_length=128)]


Seconds = Annotated[float, Field(ge=0)]


class ResourceUsage(ApiModel):
    """CPU time, memory and bytes of work, in the driver and in executors. A figure that could not be measured is
    absent, never 0."""

    driver_cpu_seconds: Seconds | None = None
    """CPU seconds of the attempt in the driver's Python process: planning, handing out tasks, committing."""
    executor_cpu_seconds: Seconds | None = None
    """CPU seconds of the tasks: of their Python processes, and of the threads of executors' JVMs that served them.
    Absent when a task ended without its figures, as one that was stopped or whose process died."""
    driver_peak_bytes: Count | None = None
    """Most memory of the driver since its start: of its Python process and of its JVM, each at its peak. Several jobs
    may have run in it."""
    executor_peak_bytes: Count | None = None
    """Most memory of the Python process of a task."""
    executor_heap_peak_bytes: Count | None = None
    """Most heap of an executor's JVM that Spark has seen while tasks ran; absent for tasks that are shorter than its
    looks."""
    bytes_read: Count | None = None
    """Bytes of the store that were read, to prove what was written as well."""
    bytes_written: Count | None = None
    """Bytes that were written to the store."""

    @property
    def cpu_seconds(self) -> float | None:
        """CPU seconds of driver and executors; None when those of one of the two are not known."""
        if self.driver_cpu_seconds is None or self.executor_cpu_seconds is None:
            return None
        return round(self.driver_cpu_seconds + self.executor_cpu_seconds, 3)

    def plus(self, other: Self | None) -> Self:
        """Return the usage of both: sums, and of peaks the higher one. A figure that one lacks is the other's."""
        if other is None:
            return self
        found = {}
        for name in type(self).model_fields:
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            found[name] = None if not known else max(known) if "peak" in name else round(sum(known), 3)
        return type(self)(**found)


class AttemptStatus(ApiModel):
    """One assignment of the job to a worker."""

    token: Annotated[int, Field(ge=1)]
    """Fencing token of the attempt; larger at each assignment."""
    worker: WorkerName
    """Name of the worker (and of its Lease)."""
    started_at: Timestamp
    """Time at which the job was assigned."""
    ended_at: Timestamp | None = None
    """Time at which the attempt ended. Empty while it runs."""
    outcome: AttemptOutcome = AttemptOutcome.RUNNING
    """Outcome of the attempt: Running, Succeeded, Failed (the worker said so), Expired (the worker went silent), Lost
    (the worker is gone) or Revoked (the coordinator took the job back)."""
    charged: bool = False
    """Whether the attempt counts against the policy's maxAttempts. Lost workers are not charged."""
    bytes_per_second: Count | None = None
    """Bytes per second that the attempt may read and write, its share of the policy's limits.bytesPerSecond. It grows
    when others end and no job could start in their place."""
    reason: Word = ""
    """Reason for the outcome in one word."""
    message: Message = ""
    """Message for a person: what happened."""
    usage: ResourceUsage | None = None
    """CPU time, memory and bytes of the attempt. Absent when its worker did not report them, as one that was killed."""

    @property
    def is_measured(self) -> bool:
        """False when its CPU seconds are not known, so that they are in no sum."""
        return self.usage is not None and self.usage.cpu_seconds is not None


class SkippedSource(ApiModel):
    """A source that was left as it is."""

    source: SourceName
    """Name of the source: of the segment file, or the id of the block."""
    index: Count | None = None
    """Index of the damaged record, where known."""
    offset: Count | None = None
    """Byte offset of the damage in the source, where known."""
    reason: Word
    """Reason in one word, such as SourceCorrupt."""
    message: Message = ""
    """Message for a person: what is wrong and where."""
    identity: Annotated[str, StringConstraints(max_length=128)] = ""
    """Identity of the file that was read: device, inode, size and modification time. Empty when it is not known."""


class ClumpReceipt(ApiModel):
    """What was re-written at the head of a log."""

    entries_moved: Count = 0
    """Number of live entries that have a new index now."""
    bytes_moved: Count = 0
    """Bytes of entry data that were written once more."""
    ranges_before: Count = 0
    """Ranges of neighbours in the live set before."""
    ranges_after: Count = 0
    """Ranges of neighbours in the live set afterwards, the new entries included."""
    first_index: Count | None = None
    """Index of the first new entry. Empty when nothing was sparse enough."""
    last_index: Count | None = None
    """Index of the last new entry."""


class MetarangeReceipt(ApiModel):
    """What became of the tree of a branch."""

    metarange: Annotated[str, StringConstraints(max_length=64)] = ""
    """Id of the metarange that the branch has as its base now."""
    changes: Count = 0
    """Number of keys that the tokens changed, tombstones among them."""
    tombstones: Count = 0
    """Number of them that were tombstones, which reads step over no more."""
    ranges_touched: Count = 0
    """Number of ranges of the old base that changes touched, and that were rewritten or dropped."""
    ranges_written: Count = 0
    """Number of ranges that were written."""
    ranges_reused: Count = 0
    """Number of ranges that no change touched; the metarange names them as they are."""
    bytes_read: Count = 0
    """Bytes of changes and of touched ranges that were read."""
    bytes_written: Count = 0
    """Bytes of ranges that were written, before compression."""


class MeasureChange(ApiModel):
    """A measure of the target, before the job and after it."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name of the measure, such as tombstones or sealedTokens."""
    before: Annotated[float, Field(ge=0)] = 0.0
    """Value that the sources of the job had."""
    after: Annotated[float, Field(ge=0)] = 0.0
    """Value that is left of it."""


class JobReceipt(ApiModel):
    """Proof of what the job committed, over all its attempts."""

    token: Annotated[int, Field(ge=1)]
    """Fencing token of the attempt that made the last commit."""
    worker: WorkerName
    """Name of the worker that made it. Empty when that is not known any more."""
    groups: Count = 0
    """Number of groups in the job."""
    groups_committed: Count = 0
    """Number of groups that were committed."""
    sources: Annotated[
        tuple[SourceName, ...], Field(max_length=MAX_GROUPS_PER_JOB * MAX_SOURCES_PER_GROUP), list_atomic()
    ] = ()
    """Names of the sources that were rewritten: of segments, or ids of blocks."""
    outputs: Annotated[tuple[SourceName, ...], Field(max_length=MAX_GROUPS_PER_JOB), list_atomic()] = ()
    """Names of the outputs that hold their content now: of segments, or ids of blocks."""
    obsolete: Annotated[tuple[SourceName, ...], Field(max_length=MAX_OBSOLETE_PER_JOB), list_atomic()] = ()
    """Names of the sources that hold nothing live and are deleted after the grace."""
    records: Count = 0
    """Number of records in the outputs: live entries that were copied, rows of blocks."""
    duplicates: Count = 0
    """Number of records that were left out because a later one has the same key."""
    bytes_before: Count = 0
    """Bytes of the source files."""
    bytes_after: Count = 0
    """Bytes of the files that replace them."""
    bytes_reclaimed: Count = 0
    """Bytes that the job frees. Those of rewritten segments are free at the commit, when their names become links
    to the output; those of segments without live entries and of blocks when the grace is over."""
    fingerprint_before: Fingerprint = ""
    """Fingerprint of the content as read from the sources: SHA-256 of the live entries of segments; number of rows and
    sum of their hashes for blocks."""
    fingerprint_after: Fingerprint = ""
    """Fingerprint of the content as read back from the results. Equal to fingerprintBefore less
    fingerprintDuplicates, or nothing was committed."""
    fingerprint_duplicates: Fingerprint = ""
    """Fingerprint of the records that were left out as duplicates. Empty when none were."""
    measures: Annotated[
        tuple[MeasureChange, ...],
        Field(max_length=MAX_MEASURE_CHANGES),
        keeping_first(MAX_MEASURE_CHANGES),
        list_map("name"),
    ] = ()
    """What made reads slow, before the job and after it, as numbers that the kind of store adds."""
    seconds: Seconds = 0.0
    """Seconds of work in the attempts that committed."""
    committed_at: Timestamp | None = None
    """Time of the last commit."""
    clump: ClumpReceipt | None = None
    """What was re-written at the head of the log, in a job with clump. The maps beside the log name every entry."""

    metarange: MetarangeReceipt | None = None
    """What became of the tree of a branch, in a job of kind MetarangeRewrite."""
    usage: ResourceUsage | None = None
    """Usage of all attempts of the job whose worker has reported it, failed ones too."""

    @property
    def commits(self) -> frozenset[str]:
        """What the receipt proves, by name: outputs, obsolete sources, the copies at the head of a log, and the tree of
        a branch, which may have no ranges.
        """
        clump = ("clump",) if self.clump is not None else ()
        tree = (self.metarange.metarange,) if self.metarange is not None else ()
        return frozenset((*self.outputs, *self.obsolete, *clump, *tree))


class CompactionJobStatus(ApiModel):
    """Where the job is."""

    observed_generation: Annotated[int, Field(ge=-1)] = -1
    """Generation of the spec (metadata.generation) that this status describes. -1 until the operator has seen the
    job."""
    state: JobState = JobState.UNASSIGNED
    """State of the job: Unassigned (waits for a worker), InProgress, Abandoned (an attempt ended, the next one waits),
    Succeeded, or Faulty (parked; conditions say why)."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS), list_map("type")] = ()
    """Conditions of the job: Complete when it succeeded, Failed when it is parked; Ready, Reconciling and Stalled for
    tools that know nothing else."""
    worker: WorkerName | None = None
    """Name of the worker that has the job, or had it last."""
    fencing_token: Count = 0
    """Fencing token of the newest attempt. The store takes a commit with exactly this token only."""
    failures: Count = 0
    """Number of attempts that count against the policy's maxAttempts."""
    progress_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Progress of the running or last attempt in percent."""
    attempts: Annotated[
        tuple[AttemptStatus, ...],
        Field(max_length=MAX_ATTEMPTS_KEPT),
        keeping_last(MAX_ATTEMPTS_KEPT),
        list_map("token"),
    ] = ()
    """Attempts, oldest first; the newest 32 are kept."""
    assigned_at: Timestamp | None = None
    """Time of the newest assignment."""
    finished_at: Timestamp | None = None
    """Time at which the job succeeded or was parked."""
    waiting: WaitStatus | None = None
    """What the job waits for, and since when."""
    retried: Mark = ""
    """Value of the annotation compaction.dev/retry that was last acted upon (its SHA-256, if it is long)."""
    retried_token: Count = 0
    """Fencing token of the last attempt before that: it and earlier ones do not count any more."""
    skipped: Annotated[
        tuple[SkippedSource, ...], Field(max_length=MAX_SKIPPED), keeping_first(MAX_SKIPPED), list_atomic()
    ] = ()
    """Sources that were left as they are, with the reason."""
    receipt: JobReceipt | None = None
    """Proof of what was committed."""
    usage: ResourceUsage | None = None
    """Usage of all attempts whose worker has reported it; those that are not listed any more count, too."""

    @computed_field(return_type=Annotated[str, StringConstraints(max_length=8)] | None)  # type: ignore[prop-decorator]
    @property
    def progress(self) -> str | None:
        """Progress for people, such as 37% (the column PROGRESS)."""
        return None if self.progress_percent is None else f"{self.progress_percent}%"

    @computed_field(return_type=Annotated[str, StringConstraints(max_length=16)] | None)  # type: ignore[prop-decorator]
    @property
    def took(self) -> str | None:
        """Time from the newest assignment to the end for people, such as 2m10s (the column TOOK)."""
        if self.assigned_at is None or self.finished_at is None:
            return None
        return format_age(max(0.0, (self.finished_at - self.assigned_at).total_seconds()))


# The last word about an attempt: what was committed, what was skipped, and why.
#
# It travels as JSON in an annotation of the job's Lease, from the worker that writes it to the coordinator that reads
# it.


class ReportOutcome(StrEnum):
    """How an attempt ended, in the worker's own judgement."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"


class JobReport(ApiModel):
    """A worker's report about an attempt, in the types of a job's status."""

    token: int
    """The fencing token of the attempt."""
    outcome: ReportOutcome
    """How the worker judges the attempt."""
    reason: Word
    """Why, as one word: a JobReason, or one that the kind of store adds."""
    message: Message = ""
    """The same for a person."""
    charged: bool = True
    """Whether a failure counts against the job."""
    skipped: tuple[SkippedSource, ...] = ()
    """Sources that were left alone because they are damaged."""
    receipt: JobReceipt | None = None
    """What was committed, over all attempts of the job."""
    usage: ResourceUsage | None = None
    """CPU time, memory and bytes of the attempt."""

    def to_json(self) -> str:
        """The value of the annotation `compaction.dev/report`."""
        return json.dumps(self.to_object(), separators=(",", ":"))


def parse_report(text: str) -> JobReport:
    """The report in an annotation's value.

    Raises:
        MalformedReportError: it is not one; names the field.
    """
    try:
        return JobReport.model_validate_json(text)
    except ValidationError as error:
        raise MalformedReportError(f"the worker's report cannot be read: {first_problem(error)}") from error
