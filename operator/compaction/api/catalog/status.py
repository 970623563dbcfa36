"""`status` of a CatalogCompaction: how long the history is, who pins it since when, and how the last round ended.

Hybrid timestamps stand beside the time that they mean.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel
from compaction.api.bounds import Count, Message, Word, cutting, keeping_first, once_by
from compaction.api.catalog.processes import Stage, Trigger
from compaction.api.catalog.reasons import Outcome
from compaction.api.conditions import Condition
from compaction.api.crd.hints import list_map
from compaction.api.text.times import Timestamp

MAX_CONDITIONS: Final = 16
MAX_PARTICIPANTS: Final = 100
ANSWERED: Final = "Answered"
"""Reason of a participant whose answer counts."""

Subject = Annotated[str, StringConstraints(max_length=512), cutting(512)]


class HybridTime(ApiModel):
    """A hybrid timestamp."""

    value: Count
    """The timestamp: 48 bits of milliseconds since 1970, 16 bits of a counter."""
    time: Timestamp
    """The time that it means, to the second."""


class RequiredTime(ApiModel):
    """From which time on the catalog is needed."""

    value: Count
    """The time as a hybrid timestamp."""
    time: Timestamp
    """The time that it means, to the second."""
    reason: Word
    """What needs the catalog from there on: Transaction, Replay, Rebalance or LowWatermark."""
    participant: Subject = ""
    """Name of the participant that reports it. Empty for the coordinator's own low watermark."""
    subject: Subject = ""
    """The transaction, partition or zone."""
    since: Timestamp | None = None
    """Time since when it is needed: of the transaction's begin, of the last checkpoint, of the rebalance's begin."""


class ProcessStatus(ApiModel):
    """How one of the two processes of a round ended."""

    outcome: Outcome
    """Outcome: Succeeded; Skipped (there was nothing to do); Aborted (what participants report does not allow it);
    Failed (the log or a participant refused it)."""
    reason: Word
    """Reason in one word, such as Compacted, Transaction, NoAnswer or MissingPartition."""
    message: Message = ""
    """Message for a person: what stands in the way, and what to do."""
    participant: Subject = ""
    """Name of the participant that the reason is about."""
    subject: Subject = ""
    """The partition, index, table or zone that the reason is about."""
    since: Timestamp | None = None
    """Time since when this reason stands."""
    finished_at: Timestamp
    """Time at which the process ended."""


class ParticipantStatus(ApiModel):
    """What one participant reported in the last round."""

    name: Subject
    """Name of the participant."""
    reason: Word
    """Answered; or why it has no answer that counts, such as NoAnswer or AnswerLate."""
    message: Message = ""
    """Message for a person: what is wrong with its answer."""
    minimum: Timestamp | None = None
    """Time from which on it needs the catalog."""
    cause: Word = ""
    """Why: LowWatermark, Partition, Rebalance or NotReady."""
    subject: Subject = ""
    """The partition, zone or transaction that it names."""
    low_watermark: Timestamp | None = None
    """Low watermark of the participant."""
    oldest_transaction: Timestamp | None = None
    """Begin of its oldest read-write transaction."""
    checkpoint: Timestamp | None = None
    """Time of its last checkpoint."""
    partitions: Count = 0
    """Number of partitions that it holds."""
    undefined_partitions: Count = 0
    """Number of them that have published no minimum since its process started."""
    index_builds: Count = 0
    """Number of indexes that it builds."""
    rebalances: Count = 0
    """Number of zones whose partitions move."""
    clock_skew_milliseconds: Annotated[int, Field(ge=-(2**62), le=2**62)] = 0
    """Milliseconds by which its clock is ahead of the coordinator's; below 0 when it is behind."""


class RoundStatus(ApiModel):
    """The round that runs, or the last one."""

    stage: Stage
    """Stage: Idle, Asking (participants are asked) or Acting (history is cut, a minimum is propagated)."""
    trigger: Trigger
    """What began it: NewTerm, SpecChanged, Watermark or Interval."""
    started_at: Timestamp
    """Time at which it began."""
    participants: Count = 0
    """Number of participants that were asked."""
    answered: Count = 0
    """Number of participants that have answered."""


class CatalogCompactionStatus(ApiModel):
    """What the operator last saw and did."""

    observed_generation: Annotated[int, Field(ge=-1)] = -1
    """Generation of the spec (metadata.generation) that this status describes. -1 until the operator has seen the
    object."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=MAX_CONDITIONS), list_map("type")] = ()
    """Conditions: Ready always (True while history is cut as it may be, False when a user has to act); Reconciling
    until a first round has ended; Stalled while nothing is cut until a user acts."""
    reason_since: Timestamp | None = None
    """Time since which Ready has its reason; lastTransitionTime is the time since which it has its status."""
    coordinator: Annotated[str, StringConstraints(max_length=253)] = ""
    """Name of the operator's replica that ran the last round."""
    fencing_token: Count = 0
    """Fencing token of the last round. The log takes a snapshot with the largest token it has seen only."""
    low_watermark: HybridTime | None = None
    """Low watermark of the coordinator: versions that are active from there on stay readable."""
    required_time: RequiredTime | None = None
    """From which time on the catalog is needed, and who needs it. Empty while that is not known."""
    earliest_version: Count | None = None
    """First version that the log has."""
    latest_version: Count | None = None
    """Last version that the log has."""
    compaction: ProcessStatus | None = None
    """How the last attempt to cut history ended."""
    propagation: ProcessStatus | None = None
    """How the last attempt to propagate the transactions' minimum ended."""
    propagated_minimum: HybridTime | None = None
    """The minimum that was propagated last: read-write transactions need the catalog from there on."""
    last_compacted_version: Count | None = None
    """Version of the last snapshot that was saved."""
    last_compaction_time: Timestamp | None = None
    """Time at which it was saved."""
    versions_cut: Count = 0
    """Number of versions that were cut since this object was created."""
    bytes_cut: Count = 0
    """Bytes of updates that snapshots replaced since this object was created, less the bytes of the snapshots."""
    round: RoundStatus | None = None
    """The round that runs, or the last one."""
    next_run_time: Timestamp | None = None
    """Time at which the next round begins, when nothing begins one earlier."""
    participants: Annotated[
        tuple[ParticipantStatus, ...],
        Field(max_length=MAX_PARTICIPANTS),
        keeping_first(MAX_PARTICIPANTS),
        once_by("name"),
        list_map("name"),
    ] = ()
    """What participants reported in the last round: those without an answer first, then by the time from which on they
    need the catalog; at most 100."""

    @property
    def debt_versions(self) -> int:
        """Versions that are kept beyond the two that always stay."""
        if self.earliest_version is None or self.latest_version is None:
            return 0
        return max(0, self.latest_version - 1 - self.earliest_version)
