"""Events of policies and catalogs for a sink: as they wait in a status, and as CloudEvents 1.0 on the wire.

An event is written into the status of its object in the same write as the change that it tells of, with the next
number of that object; only what stands there is sent. So each change has one event, with one id, whatever crashes; and
what was sent twice has the same id (docs/adr/0352-events-wait-in-the-status.md).
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from compaction.api.base import ApiModel, Count, Timestamp, cutting, format_timestamp, free_form, list_map
from compaction.api.names import API_VERSION

MAX_WAITING: Final = 256
"""Events of one object that wait at most; the oldest go first."""
SUBJECT_LIMIT: Final = 1024
_DIGITS: Final = 12
"""Of a number in the name of a file: names sort as numbers do."""


class CloudEventType(StrEnum):
    """Types of CloudEvents. They are part of the API."""

    PLAN_WAITS = "dev.compaction.plan.waits"
    RUN_ENDED = "dev.compaction.run.ended"
    JOB_ENDED = "dev.compaction.job.ended"
    STALLED = "dev.compaction.stalled"
    QUARANTINED = "dev.compaction.quarantined"
    HELD = "dev.compaction.held"


class PendingEvent(ApiModel):
    """An event that the sink has not taken yet."""

    sequence: Annotated[int, Field(ge=1)]
    """Number of the event among those of this object."""
    type: Annotated[str, StringConstraints(max_length=64)]
    """Type of the CloudEvent, such as dev.compaction.job.ended."""
    time: Timestamp
    """Time of what it tells of."""
    subject: Annotated[str, StringConstraints(max_length=SUBJECT_LIMIT), cutting(SUBJECT_LIMIT)] = ""
    """What of the object it is about: the name of a job, the hash of a plan, a source."""
    data: Annotated[dict[str, Any], Field(max_length=32), free_form()] = Field(default_factory=dict)
    """Its data, without what is read from a job when it is sent."""


class EventsStatus(ApiModel):
    """Events for the sink of the operator's configuration."""

    last: Count = 0
    """Number of the newest event."""
    lost: Count = 0
    """Number of events that were given up because too many waited."""
    waiting: Annotated[tuple[PendingEvent, ...], Field(max_length=MAX_WAITING), list_map("sequence")] = ()
    """Events that the sink has not taken yet, the oldest first; at most 256."""

    def after(self, new: tuple[PendingEvent, ...], *, delivered: int) -> EventsStatus:
        """With new events (their numbers are given here), and without those that the sink has taken."""
        numbered = [event.model_copy(update={"sequence": self.last + at}) for at, event in enumerate(new, 1)]
        waiting = [event for event in (*self.waiting, *numbered) if event.sequence > delivered]
        over = max(0, len(waiting) - MAX_WAITING)
        return EventsStatus(last=self.last + len(new), lost=self.lost + over, waiting=tuple(waiting[over:]))


def pending(kind: CloudEventType, time: datetime, subject: str, **data: Any) -> PendingEvent:
    """An event that has no number yet. Data that is empty is left out."""
    given = {name: value for name, value in data.items() if value not in ("", None)}
    return PendingEvent(sequence=1, type=kind.value, time=time, subject=subject, data=given)


class CloudEvent(ApiModel):
    """A CloudEvent in the JSON format of version 1.0, with the extension `sequence`."""

    specversion: Literal["1.0"] = "1.0"
    """Version of the specification."""
    id: str
    """Unique among the events of a source: uid of the object and number of the event."""
    source: str
    """Path of the object on the API server."""
    type: str
    """Type of the event."""
    subject: str | None = None
    """What of the object it is about."""
    time: str
    """Time of what it tells of, RFC 3339."""
    sequence: str
    """Number of the event among those of its source, with leading zeros: a number that is missing was lost."""
    datacontenttype: Literal["application/json"] = "application/json"
    """Form of the data."""
    data: dict[str, Any]
    """What happened."""

    def line(self) -> bytes:
        """One line of JSON, in UTF-8."""
        return json.dumps(self.to_object(), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class EventSource(ApiModel):
    """The object whose events they are."""

    plural: str
    namespace: str
    name: str
    uid: str

    def cloud_event(self, event: PendingEvent, more: dict[str, Any]) -> CloudEvent:
        """The event as it is sent. `more`: what is added to its data."""
        return CloudEvent(
            id=f"{self.uid}/{event.sequence}",
            source=f"/apis/{API_VERSION}/namespaces/{self.namespace}/{self.plural}/{self.name}",
            type=event.type,
            subject=event.subject or None,
            time=format_timestamp(event.time),
            sequence=f"{event.sequence:0{_DIGITS}d}",
            data=event.data | more,
        )

    def file_of(self, event: PendingEvent) -> str:
        """Name of the event's file below the folder: the same for each try, and in order within one object."""
        return f"{self.namespace}/{self.plural}/{self.name}.{self.uid}/{event.sequence:0{_DIGITS}d}.jsonl"
