"""Errors of versioned catalogs, their logs and participants."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from compaction.errors import CompactionError


class CatalogError(CompactionError):
    """Base of the errors of catalogs."""


class CorruptCatalogValueError(CatalogError):
    """A value of the update log that is damaged: `name` is the file or key, `offset` the byte that says so."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, offset, reason)
        self.name = name
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: damaged at byte {self.offset}: {self.reason}; restore the value from a copy of the log"


class UnsupportedCatalogValueError(CatalogError):
    """A value of the update log in a form that this version cannot read: a protocol, type or serializer version."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, offset, reason)
        self.name = name
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.name}: not a value that this version reads (byte {self.offset}: {self.reason}); use the version "
            "that wrote it, or name a value of a catalog's update log"
        )


class CatalogValueError(CatalogError):
    """An update or snapshot that no value of the log can hold; nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the update cannot be written: {self.reason}"


class CatalogValueSizeError(CatalogError):
    """A file that is too large for a value of the update log."""

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name, limit)
        self.name = name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.name}: larger than {self.limit} bytes, the most of a value; name a value of a catalog's update log"
        )


class SerializerTableError(CatalogError):
    """The table of serializers is wrong: a version is missing, twice there, or has no release that introduced it."""


class InapplicableEntryError(CatalogError):
    """An update or snapshot that contradicts the catalog it belongs to: the log is damaged."""

    def __init__(self, version: int, what: str, reason: str) -> None:
        super().__init__(version, what, reason)
        self.version = version
        self.what = what
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"catalog version {self.version}: {self.what} cannot be applied: {self.reason}; restore the update log "
            "from a copy"
        )


class CatalogValidationError(CatalogError):
    """A command that the rules of a catalog refuse; nothing was changed."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class IndexNotFoundError(CatalogValidationError):
    """A command names an index that does not exist, or is stopping."""


class IndexStatusError(CatalogValidationError):
    """A command that an index of another status expects."""


class NoStorageProfileError(CatalogValidationError):
    """A table that names no storage profile, in a zone that has none."""


class WatermarkFileError(CatalogError):
    """The file of a participant's low watermark cannot be read or written, or holds something else."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.path}: the low watermark {self.reason}; fix the permissions or the disk, or delete a damaged file: "
            "the watermark is then undefined until its next update"
        )


class ParticipantStateError(CatalogError):
    """A request that does not fit the state of a participant: an unknown partition, a checkpoint that never began."""


class MinimumAheadError(CatalogError):
    """A minimum to store that is later than what the participant's own transactions need: nothing was stored."""

    def __init__(self, participant: str, timestamp: int, own: int) -> None:
        super().__init__(participant, timestamp, own)
        self.participant = participant
        self.timestamp = timestamp
        self.own = own

    def __str__(self) -> str:
        return (
            f"{self.participant}: the minimum {self.timestamp} is later than {self.own}, which its transactions need: "
            "it is no minimum of all participants; ask all of them again"
        )


class StaleCoordinatorError(CatalogError):
    """A minimum from a coordinator whose token is not the largest that the participant has seen; nothing was stored."""

    def __init__(self, participant: str, token: int, largest: int) -> None:
        super().__init__(participant, token, largest)
        self.participant = participant
        self.token = token
        self.largest = largest

    def __str__(self) -> str:
        return (
            f"{self.participant}: token {self.token} is stale: a coordinator came with {self.largest}; stop this "
            "one, or let it claim a new token"
        )


class ParticipantFailure(StrEnum):
    """The reason for which no report of a participant can be believed."""

    NO_ANSWER = "NoAnswer"
    LATE = "Late"
    UNAUTHORIZED = "Unauthorized"
    REDIRECTED = "Redirected"
    REFUSED = "Refused"
    GARBAGE = "Garbage"
    TOO_LARGE = "TooLarge"
    WRONG_VERSION = "WrongVersion"
    NAME_DIFFERS = "NameDiffers"
    STALE_TOKEN = "StaleToken"
    MINIMUM_AHEAD = "MinimumAhead"


_PARTICIPANT_ADVICE = {
    ParticipantFailure.NO_ANSWER: "check that it runs, its address, and network policies",
    ParticipantFailure.LATE: "check its load, or allow it more time",
    ParticipantFailure.UNAUTHORIZED: "give coordinator and participant the same secret, or allow the service account",
    ParticipantFailure.REDIRECTED: "name the address that answers itself: redirects are not followed",
    ParticipantFailure.REFUSED: "read its log",
    ParticipantFailure.GARBAGE: "run `compactor catalogs debug conformance` against it",
    ParticipantFailure.TOO_LARGE: "let the process hold fewer partitions",
    ParticipantFailure.WRONG_VERSION: "upgrade the participant or the operator, so that both have the same protocol",
    ParticipantFailure.NAME_DIFFERS: "name the participant that answers there, or correct the address",
    ParticipantFailure.STALE_TOKEN: "another coordinator was elected: this one has to stop. If there is none, restart "
    "the participant, which remembers the largest token until then",
    ParticipantFailure.MINIMUM_AHEAD: "compute the minimum again from new reports of all participants",
}


class ParticipantError(CatalogError):
    """A participant that gave no report, or none that may be believed: no history is cut. `name`, `url`: which one."""

    def __init__(self, name: str, url: str, reason: ParticipantFailure, detail: str) -> None:
        super().__init__(name, url, reason, detail)
        self.name = name
        self.url = url
        self.reason = reason
        self.detail = detail

    @property
    def explanation(self) -> str:
        """The sentence that says what happened and what to do; the name of the participant stands before it."""
        return f"{self.detail} ({self.reason}, {self.url}); {_PARTICIPANT_ADVICE[self.reason]}"

    def __str__(self) -> str:
        return f"participant {self.name}: {self.explanation}"


class ParticipantConfigError(CatalogError):
    """Addresses or secrets by which participants cannot be asked safely."""


class CatalogArgumentError(CatalogError):
    """An argument of another type than a call of the library takes."""


class CatalogNotFoundError(CatalogError):
    """A version that is not retained, or a time before the earliest retained one."""

    @classmethod
    def of_version(cls, version: int, earliest: int, latest: int) -> Self:
        return cls(f"catalog version {version} not found: versions {earliest} to {latest} are retained")

    @classmethod
    def at_time(cls, at: int, earliest: int, since: int) -> Self:
        return cls(
            f"no catalog found for the time {at}: the earliest retained version {earliest} is active from {since} on; "
            "use a later time"
        )


class CatalogConflictError(CatalogError):
    """Other processes wrote a version each time that this one was about to; nothing was changed."""

    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts

    def __str__(self) -> str:
        return f"other processes changed the catalog in each of {self.attempts} attempts; run the command again"


class CatalogClockError(CatalogError):
    """A clock is further off than the catalog's `max_skew` allows. `off`: milliseconds that the clock of `who` is ahead
    of that of `reference`, below 0 when it is behind.
    """

    def __init__(self, who: str, off: int, reference: str, allowed: int) -> None:
        super().__init__(who, off, reference, allowed)
        self.who = who
        self.off = off
        self.reference = reference
        self.allowed = allowed

    def __str__(self) -> str:
        direction = "ahead of" if self.off > 0 else "behind"
        return (
            f"the clock of {self.who} is {abs(self.off):,} ms {direction} that of {self.reference}, and "
            f"{self.allowed:,} ms are allowed (max_skew); synchronize the clocks, then run the command again"
        )


class CatalogNotRunError(CatalogError):
    """A batch that was to run after another one, which failed; nothing of it was written."""

    def __str__(self) -> str:
        return "not run: a step before it failed"


class CatalogLateError(CatalogError):
    """A version that came after its time was complete (`wait_complete`). `age`: milliseconds since its timestamp."""

    def __init__(self, version: int, writer: str, age: int) -> None:
        super().__init__(version, writer, age)
        self.version = version
        self.writer = writer
        self.age = age

    def __str__(self) -> str:
        return (
            f"version {self.version} of {self.writer} has a time {self.age:,} ms ago, for which the catalog was "
            "complete already; synchronize the clocks of both processes, or raise slowest_append where etcd is slower "
            "than that, then start this process again"
        )


class CatalogClosedError(CatalogError):
    """The manager of the catalog was closed before the result was known."""

    def __str__(self) -> str:
        return "the manager of the catalog is closed; what it was asked for may have reached the log or not"


class CatalogStoppedError(CatalogError):
    """The manager of a catalog applies no further versions, because of the error it was raised from."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(version, reason)
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        return f"the catalog stopped at version {self.version}: {self.reason}"


class CatalogHistoryError(CatalogError):
    """A file that holds no history of a catalog, or a damaged one."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(name, line, reason)
        self.name = name
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name}: line {self.line} is no step of a history: {self.reason}; name a file of recorded DDL"


class CatalogLogError(CatalogError):
    """The update log did not do what was asked of it. `log` names it: endpoints and prefix, never a password."""

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(log, reason)
        self.log = log
        self.reason = reason

    def __str__(self) -> str:
        return f"update log {self.log}: {self.reason}"


class CatalogLogUnavailableError(CatalogLogError):
    """No endpoint answered in time. A write may have happened all the same: then the watch delivers it."""

    def __str__(self) -> str:
        return f"{super().__str__()}; check that etcd has a quorum and that its endpoints can be reached"


class CatalogLogAccessError(CatalogLogError):
    """The log refuses the certificate, the user or what the user may do."""

    def __str__(self) -> str:
        return f"{super().__str__()}; check the Secret of the log: certificates, user and password, and the user's role"


class CatalogLogRefusedError(CatalogLogError):
    """The log refuses a request for a reason of its own; `code` is that of gRPC."""

    def __init__(self, log: str, code: int, reason: str) -> None:
        super().__init__(log, reason)
        self.code = code

    def __str__(self) -> str:
        return f"{super().__str__()} (gRPC code {self.code}); see the log of the etcd server"


class CatalogLogCutError(CatalogLogError):
    """The history of etcd no longer reaches back to a revision that was asked for; reading again helps."""


class CatalogLogRewoundError(CatalogLogError):
    """The log has lost versions that it had: it was restored from an older copy."""

    def __str__(self) -> str:
        return f"{super().__str__()}; restart the processes that use the catalog, so that they recover from this log"


class CatalogLogUncertainError(CatalogLogError):
    """An answer was lost, and the log no longer holds what would show whether the write happened."""

    def __str__(self) -> str:
        return f"{super().__str__()}; check the catalog before the command is given again"


class CatalogLogSizeError(CatalogLogRefusedError):
    """A request is larger than the log takes."""


class CatalogLogFullError(CatalogLogError):
    """etcd has no space left (its alarm NOSPACE): it reads and deletes, and writes nothing."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}: etcd has no space left and writes nothing. Compact its history (etcdctl compact "
            "REVISION), defragment each member (etcdctl defrag), then clear the alarm (etcdctl alarm disarm)"
        )


class CatalogLogLimitError(CatalogError):
    """A version that is larger than the log takes; nothing was written. `size`: bytes of its value."""

    def __init__(self, version: int, size: int, reason: str) -> None:
        super().__init__(version, size, reason)
        self.version = version
        self.size = size
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"catalog version {self.version} takes {self.size:,} bytes, more than the update log takes in one request "
            f"({self.reason}); set --max-request-bytes of every etcd member above that, or split the batch"
        )


class CorruptCatalogLogError(CatalogError):
    """The update log contradicts itself; `key` is the key that shows it."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; restore the update log from a copy, or name the prefix of another log"


class UnreadableVersionError(CorruptCatalogLogError):
    """A value of the update log that does not decode; the versions around it may be whole."""

    def __str__(self) -> str:
        return (
            f"{self.key}: {self.reason}; restore the update log from a copy. `compactor catalogs repair` lists such "
            "versions, and replaces them on request"
        )


class CatalogRepairError(CatalogError):
    """A version that is not stepped over; nothing was written for it."""

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(version, reason)
        self.version = version
        self.reason = reason

    def __str__(self) -> str:
        return f"catalog version {self.version} is not replaced: {self.reason}"


class CatalogDdlError(CatalogError):
    """A file of DDL commands that cannot be run: nothing of it was."""

    def __init__(self, file: str, step: str, reason: str) -> None:
        super().__init__(f"{file}: {step}: {reason}" if step else f"{file}: {reason}")
