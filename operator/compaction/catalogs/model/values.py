"""Constants that columns default to. Types without a value of Python that holds every one of theirs have one here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from compaction.catalogs.model.enums import ColumnType


class Decimal(NamedTuple):
    """`unscaled` times ten to the power of `-scale`."""

    scale: int
    unscaled: int


class Date(NamedTuple):
    """A day of the proleptic ISO calendar; years reach from -999,999,999 to 999,999,999."""

    year: int
    month: int
    day: int


class Time(NamedTuple):
    """A time of day."""

    hour: int
    minute: int
    second: int
    nano: int


class DateTime(NamedTuple):
    """A day and a time of day, of no time zone."""

    date: Date
    time: Time


class Timestamp(NamedTuple):
    """Seconds since the epoch, and nanoseconds after them."""

    second: int
    nano: int


class Uuid(NamedTuple):
    """Two signed 64-bit halves."""

    high: int
    low: int


class Period(NamedTuple):
    """A calendar amount."""

    years: int
    months: int
    days: int


class Duration(NamedTuple):
    """Seconds, and nanoseconds after them."""

    second: int
    nano: int


Value = None | bool | int | str | bytes | Decimal | Date | Time | DateTime | Timestamp | Uuid | Period | Duration


@dataclass(frozen=True, slots=True)
class Constant:
    """A value of one type. FLOAT and DOUBLE are the bits of their IEEE form, so that every number compares and returns
    as it was.
    """

    type: ColumnType
    value: Value


NULL = Constant(ColumnType.NULL, None)
"""What a column without a default of its own defaults to."""


@dataclass(frozen=True, slots=True)
class Function:
    """A default that is computed for each row by a function of this name."""

    name: str


Default = Constant | Function | None
"""None: the column has no default at all; the format knows it, commands never write it."""
