"""CatalogCompaction: a catalog whose history is cut when no participant needs it, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, StringConstraints

from compaction.api.base import (
    ApiModel,
    Count,
    Mark,
    Message,
    ObjectMeta,
    PrinterColumn,
    PrinterColumnType,
    ResourceInfo,
    Timestamp,
    Word,
    cutting,
    keeping_first,
    keeping_last,
    list_atomic,
    list_map,
    once_by,
)
from compaction.api.catalog.catalog_spec import CatalogCompactionSpec
from compaction.api.catalog.reasons import Outcome, Reason, Stage, Trigger
from compaction.api.conditions import Condition
from compaction.api.events import EventsStatus
from compaction.api.names import API_VERSION, CATALOG_KIND, CATALOG_PLURAL
from compaction.api.policy.store import PolicyStanding
from compaction.api.preview import BeginStatus, PreviewStatus
from compaction.api.requests import RequestStatus

# `status` of a CatalogCompaction: how long the history is, who pins it since when, and how the last round ended.
#
# Hybrid timestamps stand beside the time that they mean.

MAX_CONDITIONS: Final = 16
MAX_PARTICIPANTS: Final = 100
MAX_ROUNDS: Final = 20
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
    """What began it: NewTerm, SpecChanged, Watermark, Interval or Requested."""
    started_at: Timestamp
    """Time at which it began."""
    participants: Count = 0
    """Number of participants that were asked."""
    answered: Count = 0
    """Number of participants that have answered."""


class RoundRecord(ApiModel):
    """One round that has cut versions, was asked for, or ended in another way than the one before it."""

    trigger: Trigger
    """What began it: NewTerm, SpecChanged, Watermark, Interval or Requested."""
    started_at: Timestamp
    """Time at which it began."""
    ended_at: Timestamp
    """Time at which it ended."""
    compaction: Word = ""
    """How the attempt to cut history ended, in one word."""
    propagation: Word = ""
    """How the propagation of the transactions' minimum ended, in one word."""
    versions_cut: Count = 0
    """Number of versions that it cut."""
    bytes_cut: Count = 0
    """Bytes of updates that its snapshot replaced, less those of the snapshot."""


class PreviewedCut(ApiModel):
    """What one of two specs would do in a round now."""

    reason: Word
    """How the attempt to cut history would end, in one word, such as Compacted, Transaction or MissingPartition."""
    message: Message = ""
    """Message for a person: what would be cut, or what stands in the way."""
    participant: Subject = ""
    """Name of the participant that the reason is about."""
    subject: Subject = ""
    """The partition, index, table or zone that the reason is about."""
    earliest_version: Count | None = None
    """First version that the log would have then. Empty when the log could not be read."""
    latest_version: Count | None = None
    """Last version that the log has."""
    versions: Count = 0
    """Number of versions that would be cut."""
    bytes: Count = 0
    """Bytes of updates that the snapshot would replace, less its own."""
    required_time: RequiredTime | None = None
    """From which time on the catalog is needed, and who needs it. Empty while that is not known."""
    low_watermark: HybridTime | None = None
    """Low watermark that the coordinator would have."""
    begins: BeginStatus
    """When the cut would be made."""


class CatalogPreview(PreviewStatus):
    """What a proposed spec of the catalog would do now, beside what the spec in force would. Nothing is claimed, cut or
    propagated for it."""

    participants: Count = 0
    """Number of participants that were asked."""
    answered: Count = 0
    """Number of participants that have answered."""
    in_force: PreviewedCut | None = None
    """What the spec in force would do, by the same answers. Empty when the preview was refused."""
    proposed: PreviewedCut | None = None
    """What the proposed spec would do. Empty when the preview was refused."""


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
    history: Annotated[
        tuple[RoundRecord, ...], Field(max_length=MAX_ROUNDS), keeping_last(MAX_ROUNDS), list_atomic()
    ] = ()
    """The last 20 rounds that have cut versions, were asked for, or ended in another way than the one before them; the
    newest last."""
    next_run_time: Timestamp | None = None
    """Time at which the next round begins, when nothing begins one earlier."""
    events: EventsStatus | None = None
    """Events for the sink of the operator's configuration. Empty without a sink."""
    last_handled_run_now: Mark = ""
    """Value of the annotation compaction.dev/run-now that was last answered (its SHA-256, if it is long)."""
    run_now: RequestStatus | None = None
    """What came of that request: how the round ended that it began."""
    last_handled_scan: Mark = ""
    """Value of the annotation compaction.dev/scan that was last answered (its SHA-256, if it is long)."""
    scan: RequestStatus | None = None
    """What came of that request: how the round would have ended, in which nothing was cut."""
    last_handled_preview: Mark = ""
    """Value of the annotation compaction.dev/preview that was last answered (its SHA-256, if it is long)."""
    preview: CatalogPreview | None = None
    """What the spec in that annotation would do, as of the time of the answer."""
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


# The meaning of each reason of a CatalogCompaction for its conditions (docs/design/catalog-compaction.md#conditions).


class CatalogReason(StrEnum):
    """Reasons in the conditions of a CatalogCompaction beside those that a round ends with."""

    STARTING = "Starting"  # no round with this spec has ended yet
    SUSPENDING = "Suspending"  # spec.suspend is true, and the round that ran then still runs
    SUSPENDED = "Suspended"  # spec.suspend is true: no round begins
    HELD = "Held"  # the operator is on hold: no round begins until it is released; the message says why
    INVALID_SPEC = "InvalidSpec"  # stored under an older schema; the message names the field


PASSING: Final = frozenset(
    {
        Reason.COMPACTED,
        Reason.PROPAGATED,
        Reason.NOTHING_TO_COMPACT,
        Reason.NOTHING_TO_PROPAGATE,
        Reason.DRY_RUN,
        Reason.NOT_NEWER,
        Reason.LOW_WATERMARK,
        Reason.TRANSACTION,
        Reason.REPLAY,
        Reason.REBALANCE,
        Reason.NO_WATERMARK,
        Reason.UNDEFINED_PARTITION,
        Reason.NOT_READY,
        Reason.INDEX_CONSTRUCTION,
        Reason.DELETED_TABLE_READABLE,
    }
)
"""Ends by itself when participants have done what they are doing."""

NEEDS_A_USER: Final = frozenset({Reason.SECRET_MISSING, Reason.PERMISSION_DENIED})
"""No round ends it before a user has changed something: it is said at once."""

STANDING: Final[Mapping[str, PolicyStanding]] = MappingProxyType(
    {
        CatalogReason.STARTING: PolicyStanding.APPLYING,
        CatalogReason.SUSPENDING: PolicyStanding.APPLYING,
        CatalogReason.SUSPENDED: PolicyStanding.WORKING,
        CatalogReason.HELD: PolicyStanding.WORKING,
        CatalogReason.INVALID_SPEC: PolicyStanding.STALLED,
    }
)


def standing_of(reason: str, *, lasts: bool) -> PolicyStanding:
    """How a reason stands. `lasts`: it has stood for more than a round; a participant that restarts misses one."""
    if reason in STANDING:
        return STANDING[reason]
    if reason in PASSING:
        return PolicyStanding.WORKING
    return PolicyStanding.STALLED if lasts or reason in NEEDS_A_USER else PolicyStanding.APPLYING


# CatalogCompaction: a catalog whose history is cut when no participant needs it.

_READY: Final = '.status.conditions[?(@.type=="Ready")]'


class CatalogCompaction(ApiModel):
    """CatalogCompaction says which catalog's history is cut, and who must agree. Its status says how long the history
    is, and who pins it since when."""

    api_version: Literal["compaction.dev/v1alpha1"] = API_VERSION
    kind: Literal["CatalogCompaction"] = CATALOG_KIND
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: CatalogCompactionSpec
    """Which catalog to compact, and what must hold before its history is cut."""
    status: CatalogCompactionStatus = Field(default_factory=CatalogCompactionStatus)
    """What the operator last saw and did. Written by the operator only."""

    INFO: ClassVar[ResourceInfo] = ResourceInfo(
        kind=CATALOG_KIND,
        plural=CATALOG_PLURAL,
        singular="catalogcompaction",
        short_name="ccat",
        columns=(
            PrinterColumn(
                "Ready", f"{_READY}.status", "Whether history is cut without a user; False: a user has to act"
            ),
            PrinterColumn("Reason", f"{_READY}.reason", "How the last round ended, or what is wrong"),
            PrinterColumn(
                "Earliest", ".status.earliestVersion", "First version of the history", PrinterColumnType.INTEGER
            ),
            PrinterColumn("Latest", ".status.latestVersion", "Last version of the history", PrinterColumnType.INTEGER),
            PrinterColumn("Pin", ".status.requiredTime.reason", "What needs the history"),
            PrinterColumn("By", ".status.requiredTime.participant", "The participant that needs it"),
            PrinterColumn("Since", ".status.requiredTime.since", "How long it has needed it", PrinterColumnType.DATE),
            PrinterColumn("Cut", ".status.versionsCut", "Versions that were cut", PrinterColumnType.INTEGER),
            PrinterColumn("Last", ".status.lastCompactionTime", "Time since the last cut", PrinterColumnType.DATE),
            PrinterColumn("Age", ".metadata.creationTimestamp", "Age of the object", PrinterColumnType.DATE),
            PrinterColumn("Compaction", ".status.compaction.reason", "Why the last cut ended as it did", wide=True),
            PrinterColumn(
                "Propagation", ".status.propagation.reason", "Why the last propagation ended as it did", wide=True
            ),
            PrinterColumn("Propagated", ".status.propagatedMinimum.time", "Minimum that was propagated", wide=True),
            PrinterColumn("Next", ".status.nextRunTime", "Time of the next round", wide=True),
            PrinterColumn("Coordinator", ".status.coordinator", "Replica that ran the last round", wide=True),
            PrinterColumn("Message", f"{_READY}.message", "Message of the condition Ready", wide=True),
        ),
        selectable=(".spec.suspend",),
    )
