"""The parts of a policy's status about what comes next: the plan, and what is waited for."""

from typing import Annotated

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.bounds import Count, Message, Path, Word, keeping_first
from compaction.api.crd.hints import list_atomic
from compaction.api.enums import PlanApproval
from compaction.api.text.times import Timestamp

MAX_LEFT_OUT = 64
MAX_PLANNED_WORK = 64
MAX_WAITS = 32
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
    """Jobs that the plan would create, the largest gain first, while it waits for approval; at most 64."""
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
