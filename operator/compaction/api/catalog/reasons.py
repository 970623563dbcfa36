"""The two processes of a round, what a trigger does while they run, and the reasons for which they end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

# Outcomes of the two processes of a round, and the reasons for them (docs/design/catalog-compaction.md#outcomes).

UNDEFINED = 0
"""The published minimum of a partition that has published none since its process started; also a missing watermark."""


class Process(StrEnum):
    """What a round does, side by side."""

    COMPACTION = "Compaction"
    PROPAGATION = "Propagation"


class Outcome(StrEnum):
    """How a process ended."""

    SUCCEEDED = "Succeeded"
    SKIPPED = "Skipped"
    """There was nothing to do, or what pins the history is at work as it should be."""
    ABORTED = "Aborted"
    """What the participants report does not allow it; the next round tries again."""
    FAILED = "Failed"
    """The log or a participant refused what was decided."""


class Reason(StrEnum):
    """Why a process ended as it did; each has one outcome (OUTCOMES)."""

    COMPACTED = "Compacted"
    PROPAGATED = "Propagated"
    NOTHING_TO_COMPACT = "NothingToCompact"
    NOTHING_TO_PROPAGATE = "NothingToPropagate"
    """A catalog without participants."""
    DRY_RUN = "DryRun"
    NOT_NEWER = "NotNewer"
    """The log has a later snapshot already."""
    LOW_WATERMARK = "LowWatermark"
    TRANSACTION = "Transaction"
    REPLAY = "Replay"
    """A partition has published no later minimum: a restart would replay its log from there."""
    REBALANCE = "Rebalance"
    NO_PARTICIPANTS = "NoParticipants"
    NO_ANSWER = "NoAnswer"
    ANSWER_LATE = "AnswerLate"
    ANSWER_REFUSED = "AnswerRefused"
    CLOCK_OFF = "ClockOff"
    NO_WATERMARK = "NoWatermark"
    UNDEFINED_PARTITION = "UndefinedPartition"
    NOT_READY = "NotReady"
    """A participant says so without a watermark or partition that explains it."""
    INDEX_CONSTRUCTION = "IndexConstruction"
    MISSING_PARTICIPANT = "MissingParticipant"
    MISSING_ZONE = "MissingZone"
    """The expected topology names a zone that no retained version has."""
    MISSING_ASSIGNMENT = "MissingAssignment"
    MISSING_PARTITION = "MissingPartition"
    DELETED_TABLE_READABLE = "DeletedTableReadable"
    FENCED = "Fenced"
    LOG_UNAVAILABLE = "LogUnavailable"
    LOG_CORRUPT = "LogCorrupt"
    SNAPSHOT_REFUSED = "SnapshotRefused"
    """The log does not take a snapshot of this size."""
    NO_SPACE = "NoSpace"
    """etcd has no space left: it takes no claim and no snapshot."""
    NOT_DELIVERED = "NotDelivered"
    """A participant did not take the minimum."""
    SECRET_MISSING = "SecretMissing"
    """A Secret, or a key of it, is not there, or its value is not what it must be."""
    PERMISSION_DENIED = "PermissionDenied"
    """The coordinator may not find the participants, or read a Secret."""
    PARTICIPANTS_UNKNOWN = "ParticipantsUnknown"
    """The coordinator does not learn where the participants are."""
    INTERNAL_ERROR = "InternalError"
    """An unexpected failure in the coordinator; its log has the details."""


_SKIPPED: Final = (
    Reason.NOTHING_TO_COMPACT,
    Reason.NOTHING_TO_PROPAGATE,
    Reason.DRY_RUN,
    Reason.NOT_NEWER,
    Reason.LOW_WATERMARK,
    Reason.TRANSACTION,
    Reason.REPLAY,
    Reason.REBALANCE,
)
_FAILED: Final = (
    Reason.FENCED,
    Reason.LOG_UNAVAILABLE,
    Reason.LOG_CORRUPT,
    Reason.SNAPSHOT_REFUSED,
    Reason.NO_SPACE,
    Reason.NOT_DELIVERED,
    Reason.SECRET_MISSING,
    Reason.PERMISSION_DENIED,
    Reason.PARTICIPANTS_UNKNOWN,
    Reason.INTERNAL_ERROR,
)

OUTCOMES: Final = MappingProxyType(
    dict.fromkeys(Reason, Outcome.ABORTED)
    | dict.fromkeys((Reason.COMPACTED, Reason.PROPAGATED), Outcome.SUCCEEDED)
    | dict.fromkeys(_SKIPPED, Outcome.SKIPPED)
    | dict.fromkeys(_FAILED, Outcome.FAILED)
)

PINS: Final = (Reason.TRANSACTION, Reason.REPLAY, Reason.REBALANCE, Reason.LOW_WATERMARK)
"""What holds the required time, what a user can act upon first: at equal times the earlier in this list is named."""

UNANSWERED: Final = frozenset({Reason.NO_ANSWER, Reason.ANSWER_LATE, Reason.ANSWER_REFUSED, Reason.CLOCK_OFF})
"""A participant without an answer that counts: its transactions are not known, so nothing is propagated either."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a process ended, in one word and in a sentence that names the object and what to do.

    `subject` is what stays the same while the same thing is in the way: participant, table, partition, index or zone.
    `since`: hybrid timestamp of the coordinator's clock or of the participant's, UNDEFINED when this is the first time.
    """

    reason: Reason
    message: str
    participant: str = ""
    subject: str = ""
    since: int = UNDEFINED

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES[self.reason]


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended, and why."""

    process: Process
    finding: Finding


def standing(found: Finding, before: Finding | None, now: int) -> Finding:
    """`found` with the time since when it stands: its own, that of `before` if it is about the same, else `now`."""
    if found.since != UNDEFINED:
        return found
    same = (
        before is not None
        and before.since != UNDEFINED
        and (before.reason, before.participant, before.subject) == (found.reason, found.participant, found.subject)
    )
    since = before.since if before is not None and same else now
    return Finding(found.reason, found.message, found.participant, found.subject, since)


# The running processes of a round, and the effect of a trigger meanwhile (docs/design/catalog-compaction.md#processes).


class Trigger(StrEnum):
    """Why a round begins; an earlier one in this list is named when several are remembered."""

    NEW_TERM = "NewTerm"
    SPEC_CHANGED = "SpecChanged"
    WATERMARK = "Watermark"
    INTERVAL = "Interval"
    REQUESTED = "Requested"


class Stage(StrEnum):
    """Where a round is."""

    IDLE = "Idle"
    ASKING = "Asking"
    ACTING = "Acting"
    """The answers are there; one of the two processes runs, or both."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The round of one catalog. `running` is empty except while acting. `trigger` began the round that runs;
    `remembered` begins the next one, when both processes of this one have ended.
    """

    stage: Stage = Stage.IDLE
    running: frozenset[Process] = frozenset()
    trigger: Trigger | None = None
    remembered: Trigger | None = None

    def triggered(self, trigger: Trigger) -> Processes:
        """A trigger begins a round, or is remembered while one runs: what it is about may have come too late for it."""
        if self.stage is Stage.IDLE:
            return Processes(Stage.ASKING, trigger=trigger)
        return replace(self, remembered=min(self.remembered or trigger, trigger, key=tuple(Trigger).index))

    def answered(self) -> Processes:
        """All answers are there, or have failed to come: both processes begin, side by side. ValueError when no answer
        is awaited.
        """
        if self.stage is not Stage.ASKING:
            raise ValueError(f"answers arrive while the round is {self.stage}")
        return replace(self, stage=Stage.ACTING, running=frozenset(Process))

    def ended(self, process: Process) -> Processes:
        """One process has ended, whatever the other does; after both a remembered trigger begins the next round.
        ValueError when it does not run.
        """
        if process not in self.running:
            raise ValueError(f"{process} ends and does not run")
        running = self.running - {process}
        if running:
            return replace(self, running=running)
        ended = Processes()
        return ended if self.remembered is None else ended.triggered(self.remembered)

    def runs(self, process: Process) -> bool:
        """True once this process has begun, until it ends."""
        return process in self.running
