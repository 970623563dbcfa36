"""Times as they are written in the resources: RFC 3339 in UTC, whole seconds, as metav1.Time."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, PlainSerializer, WithJsonSchema


def to_timestamp(moment: datetime) -> datetime:
    """The moment as metav1.Time keeps it: UTC, whole seconds (the rest is cut off). ValueError out of range."""
    try:
        return moment.astimezone(UTC).replace(microsecond=0)
    except OverflowError as error:
        raise ValueError("a time must lie between the years 1 and 9999 in UTC") from error


def format_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds: `2026-11-21T03:36:00Z`."""
    # Not strftime: it writes years before 1000 with fewer than four digits.
    return to_timestamp(moment).replace(tzinfo=None).isoformat() + "Z"


def timestamp_from_epoch(seconds: float) -> datetime:
    """The time of that many seconds since 1970 UTC."""
    return to_timestamp(datetime.fromtimestamp(seconds, tz=UTC))


Timestamp = Annotated[
    AwareDatetime,
    AfterValidator(to_timestamp),
    PlainSerializer(format_timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in status: an aware datetime in UTC, to the second."""
