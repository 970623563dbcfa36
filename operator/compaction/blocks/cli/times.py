"""Times of data on the command line: epoch microseconds inside, RFC 3339 in UTC for people and for machines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from compaction.blocks.model import SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HELP: Final = (
    "write a date (2026-11-21), a time in UTC (2026-11-21T10:30:00Z, also with an offset such as +01:00) or epoch "
    "microseconds"
)


class TimeParameter(click.ParamType[int]):
    """`2026-11-21`, `2026-11-21T10:30:00.5Z`, `2026-11-21T11:30+01:00` or epoch microseconds; without an offset UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return microseconds_of(str(value))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: {_HELP}", param, ctx)


def microseconds_of(text: str) -> int:
    """Epoch microseconds. Raises ValueError, OverflowError."""
    if text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal():
        number = int(text) if len(text) < 20 else 1 << 63
        if abs(number) >= 1 << 63:
            raise ValueError("more than 64 bits")
        return number
    moment = datetime.fromisoformat(text)
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def time_text(microseconds: int | None) -> str | None:
    """`2026-11-21T10:30:00.500000Z`, exact; a number outside of the years 1 to 9999; None for None."""
    if microseconds is None:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return str(microseconds)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def short_time(text: str | None) -> str:
    """What a table shows of `time_text`: whole seconds; `-` for None."""
    return "-" if text is None else text.partition(".")[0] + ("Z" if "." in text else "")


def age(since: int, now: int) -> int:
    """Whole seconds between two times in microseconds, never negative."""
    return max(0, (now - since) // SECOND)
