"""Requests of a user that count once, and the answers to them in the status.

A request is an annotation. Each new value of it counts once: the status keeps the value that was handled last, as Flux
does with `reconcile.fluxcd.io/requestedAt`. So a request survives a restart of the operator, is seen in the audit log
under the name of who made it, and needs no permission but that to change the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Message, Timestamp, Word, keeping_last, list_set, to_timestamp
from compaction.api.names import ANNOTATION_OUTSIDE_WINDOW, ANNOTATION_RUN_NOW
from compaction.api.text.printing import mark_of

MAX_PLANS: Final = 64
"""Plans whose jobs one request lets start outside of the windows: each is at least one unfinished job."""


class RequestOutcome(StrEnum):
    """What came of a request."""

    ACCEPTED = "Accepted"
    REFUSED = "Refused"  # it can do nothing now, for the reason beside it; the same value is not tried again


class RequestReason(StrEnum):
    """Reasons of an answer, beside those of a policy, of a failed scan and of a round."""

    PLANNED = "Planned"  # a plan was made, and its jobs are created
    JOBS_UNFINISHED = "JobsUnfinished"  # all that is due is in jobs that run or wait already
    NOTHING_DUE = "NothingDue"  # the scan has found nothing that a plan could contain
    SCANNED = "Scanned"  # the store was scanned, or the participants were asked
    PREVIEWED = "Previewed"  # the status says what the spec would do now
    TOO_LONG = "TooLong"  # the spec of a preview has more characters than the operator reads
    OTHER_STORE = "OtherStore"  # the spec of a preview opens what the spec in force does not open


class RequestStatus(ApiModel):
    """What came of the last request of a sort."""

    handled_at: Timestamp
    """Time at which the request was answered."""
    outcome: RequestOutcome
    """Outcome: Accepted, or Refused when it can do nothing."""
    reason: Word
    """Reason in one word, such as Planned, NothingDue or Suspended."""
    message: Message = ""
    """Message for a person: what follows, or what stands in the way and what to do."""


class RunNowStatus(RequestStatus):
    """What came of the last request to run now."""

    plan: Annotated[str, StringConstraints(max_length=64)] = ""
    """Hash of the plan for the request, which does not depend on trigger.cooldown."""
    plans: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=64)], ...],
        Field(max_length=MAX_PLANS),
        keeping_last(MAX_PLANS),
        list_set(),
    ] = ()
    """Hashes of plans whose jobs start outside of trigger.windows, because the request says so. Empty when the last of
    these jobs has ended."""


class RequestAnswers(Protocol):
    """What the status of a policy and that of a catalog say about requests."""

    @property
    def last_handled_run_now(self) -> str: ...
    @property
    def run_now(self) -> RequestStatus | None: ...
    @property
    def last_handled_scan(self) -> str: ...
    @property
    def scan(self) -> RequestStatus | None: ...
    @property
    def last_handled_preview(self) -> str: ...
    @property
    def preview(self) -> RequestStatus | None: ...


Answer = TypeVar("Answer", bound=RequestStatus)


def answered_with(
    model: type[Answer], at: datetime, reason: str, message: str, *, accepted: bool, **more: Any
) -> Answer:
    """The answer to a request. ValueError when `at` is out of range."""
    outcome = RequestOutcome.ACCEPTED if accepted else RequestOutcome.REFUSED
    return model(handled_at=to_timestamp(at), outcome=outcome, reason=str(reason), message=message, **more)


def unhandled(annotations: Mapping[str, str], annotation: str, mark: str) -> str:
    """The value of an annotation that counts once; "" without one, and when it is the one that was handled (`mark`)."""
    value = annotations.get(annotation, "")
    return value if mark_of(value) != mark else ""


def run_now_annotations(value: str, *, outside_window: bool) -> dict[str, str | None]:
    """The annotations of a request to run now; None takes away what an earlier request said of windows."""
    return {ANNOTATION_RUN_NOW: value, ANNOTATION_OUTSIDE_WINDOW: value if outside_window else None}


def outside_window(annotations: Mapping[str, str]) -> bool:
    """Return whether the request to run now says that windows do not count: both annotations have the same value."""
    value = annotations.get(ANNOTATION_RUN_NOW, "")
    return bool(value) and annotations.get(ANNOTATION_OUTSIDE_WINDOW) == value
