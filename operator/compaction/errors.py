"""The base of all errors that the project raises on purpose, and those of no single part.

A message names the object (file, index, job, policy) and says what to do; the command line prints it as it is. Each
part that raises errors of its own has a module `errors` of its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

CONFIG_MAP: Final = "configmap_"
"""Before the name of a ConfigMap where those of Secrets stand: no Secret has an underscore in its name. Both are keys
with texts, and are mounted, read and checked alike.
"""


def shown_bytes(raw: bytes, limit: int = 80) -> str:
    """Bytes from outside as quoted text, cut to so many of them: `'tables/a.json'`; what is no text is written out."""
    return ascii(raw[:limit].decode("utf-8", "backslashreplace"))


class CompactionError(Exception):
    """Base of all errors that are meant for a person to read."""


class StaleTokenError(CompactionError):
    """A token that is not the one claimed last for its job: another attempt took over, and this one commits nothing."""

    def __init__(self, path: str, job: str, token: int, claimed: int | None) -> None:
        super().__init__(path, job, token, claimed)
        self.path = path
        self.job = job
        self.token = token
        self.claimed = claimed

    def __str__(self) -> str:
        known = "no claim stands" if self.claimed is None else f"token {self.claimed} is claimed"
        return f"{self.path}: token {self.token} of job {self.job} is stale ({known}): nothing was committed by it"


class ClaimRefusal(StrEnum):
    """The meaning of a refused claim for the job."""

    BUSY = "Busy"  # another job, or somebody else, has the target or a source: it is tried again
    GONE = "Gone"  # the job cannot have its sources: the next scan of the store says whether they are there at all
    ERROR = "Error"  # the store cannot be asked, or cannot write the claim down: it is tried again


class ClaimRefusedError(CompactionError):
    """A store refuses the claim of a job, and nothing was changed; raised by the adapters of all kinds.

    `wait`: the kind's own word for what the job waits for, "" for the general one of the `refusal`.
    """

    def __init__(self, refusal: ClaimRefusal, message: str, wait: str = "") -> None:
        super().__init__(refusal, message, wait)
        self.refusal = refusal
        self.message = message
        self.wait = wait

    def __str__(self) -> str:
        return self.message


class RecordTextError(CompactionError):
    """A record, value or operation that is not written as it must be; says what is wrong and what to write."""


class RecordLineError(RecordTextError):
    """A line of a file that is not written as it must be; `line` counts from 1."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path = path
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}: {self.reason}"


class ApiError(CompactionError):
    """The API server answered with an error; `status` is the HTTP code, `reason` the machine-readable Status reason."""

    def __init__(self, message: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def said(self) -> str:
        """The message without the request in front of it, for a person who did not write the request."""
        return str(self).split(": ", 1)[-1]

    @property
    def is_refusal(self) -> bool:
        """True when the API server has judged the request, and will not judge otherwise of the same one at once."""
        return 400 <= self.status < 500 and self.status not in (408, 429)


class NotFoundError(ApiError):
    """404: the object, or its kind, does not exist."""

    @property
    def is_of_kind(self) -> bool:
        """Return whether it is the kind that does not exist: a server without a handler for the path processes nothing,
        and answers with no Status, so there is no reason.
        """
        return not self.reason


class AlreadyExistsError(ApiError):
    """409 AlreadyExists: a create met an object of the same name."""


class ConflictError(ApiError):
    """409 Conflict: a resourceVersion or uid precondition did not hold; read again and decide again."""


class GoneError(ApiError):
    """410: the resourceVersion of a watch or of a continued list is too old; list again."""


class TooManyRequestsError(ApiError):
    """429: refused unprocessed by flow control even after the bounded retries."""


class ForbiddenError(ApiError):
    """403: the credentials lack a permission, or the API server takes no such object now."""

    @property
    def is_of_kind(self) -> bool:
        """Return whether the kind goes away: its definition is being deleted, and takes no new objects. Nothing but the
        words of the API server tells this from a missing permission.
        """
        return "custom resource definition is terminating" in str(self)


class UnauthorizedError(ApiError):
    """401: the credentials are missing, expired or unknown."""


class InvalidObjectError(ApiError):
    """400 or 422: the API server refused the object itself; its message tells the fix."""


class ApiUnavailableError(ApiError):
    """No answer (transport error, deadline, 5xx): a write may have happened, so read again before deciding."""


class MalformedLeaseError(CompactionError):
    """A Lease object holds a value this project cannot read; names the Lease and the field."""


class TokenExhaustedError(CompactionError):
    """A job's fencing counter reached the largest value a Lease can hold (int32)."""


class InvalidAssignmentError(CompactionError):
    """An assigned job cannot be understood or carried out by this worker."""


class IllegalTransitionError(CompactionError):
    """A job was to change its state in a way the state machine does not know: a defect of the coordinator."""


class MalformedReportError(CompactionError):
    """The report a worker left on a job's Lease cannot be read; names the field."""


class InvalidManifestError(CompactionError):
    """A policy file that the API server would refuse; one line per problem, each with the field and the fix."""
