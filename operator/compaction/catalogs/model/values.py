"""Constants that columns default to: a type for each that Python has none for, and which values are legal
(docs/design/catalogs.md#primitives).
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from compaction.catalogs.model.enums import ColumnType

MAX_YEAR: Final = 999_999_999
FIRST_SECOND: Final = -31_557_014_167_219_200
LAST_SECOND: Final = 31_556_889_864_403_199
"""Of the first and the last year, in seconds since the epoch: they are not as far from it."""
_NANOS: Final = 1_000_000_000
_DAYS: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MOST_BYTES: Final = 2**31 - 1


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


def fault_of(constant: Constant) -> str | None:
    """Why no reader takes a constant, None for a legal one: its value is of another type than `Constant.type` has, or
    out of its range.
    """
    legal = _RULES.get(constant.type)
    if legal is None:
        return f"no constant has the type {constant.type.name}"
    of, rule = legal
    value = constant.value
    # bool is an int of Python, and no number of a catalog.
    if not isinstance(value, of) or (isinstance(value, bool) and of is not bool):
        return f"{value!r} is no value of the type {constant.type.name}"
    if any(type(part) is not int for part in _parts(value)):
        return f"{value!r} is no value of the type {constant.type.name}: its members are whole numbers"
    return rule(value)


def _parts(value: Value) -> tuple[object, ...]:
    if isinstance(value, DateTime):
        named = isinstance(value.date, Date) and isinstance(value.time, Time)
        return tuple(chain(value.date, value.time)) if named else (None,)
    return tuple(value) if isinstance(value, tuple) else ()


def _fits(low: int, high: int) -> Callable[[int], str | None]:
    return lambda value: None if low <= value <= high else f"{value} is out of range {low} to {high}"


def _signed(bits: int) -> Callable[[int], str | None]:
    return _fits(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _date_fault(date: Date) -> str | None:
    """Why a date is no day of the calendar."""
    days = 29 if date.month == 2 and calendar.isleap(date.year) else _DAYS[date.month] if 1 <= date.month <= 12 else 0
    legal = -MAX_YEAR <= date.year <= MAX_YEAR and 1 <= date.day <= days
    return None if legal else f"no day is {date.year}-{date.month}-{date.day}"


def _time_fault(time: Time) -> str | None:
    """Why a time is none of a day."""
    legal = 0 <= time.hour < 24 and 0 <= time.minute < 60 and 0 <= time.second < 60 and 0 <= time.nano < _NANOS
    return None if legal else f"no time of day is {time.hour}:{time.minute}:{time.second} and {time.nano} ns"


def _moment_fault(moment: Timestamp) -> str | None:
    legal = FIRST_SECOND <= moment.second <= LAST_SECOND and 0 <= moment.nano < _NANOS
    return None if legal else f"no moment is {moment.second} s and {moment.nano} ns after the epoch"


def _duration_fault(duration: Duration) -> str | None:
    if not 0 <= duration.nano < _NANOS:
        return f"no duration has {duration.nano} ns"
    return _signed(64)(duration.second)


def _decimal_fault(decimal: Decimal) -> str | None:
    if decimal.unscaled.bit_length() // 8 >= _MOST_BYTES:
        return "a decimal of more than 2 GiB"
    return _signed(16)(decimal.scale)


def _each(rule: Callable[[int], str | None]) -> Callable[[tuple[int, ...]], str | None]:
    return lambda parts: next((fault for part in parts if (fault := rule(part))), None)


_RULES: Final[Mapping[ColumnType, tuple[type, Callable[..., str | None]]]] = {
    ColumnType.NULL: (type(None), lambda _: None),
    ColumnType.BOOLEAN: (bool, lambda _: None),
    ColumnType.INT8: (int, _signed(8)),
    ColumnType.INT16: (int, _signed(16)),
    ColumnType.INT32: (int, _signed(32)),
    ColumnType.INT64: (int, _signed(64)),
    ColumnType.FLOAT: (int, _fits(0, 2**32 - 1)),
    ColumnType.DOUBLE: (int, _fits(0, 2**64 - 1)),
    ColumnType.DECIMAL: (Decimal, _decimal_fault),
    ColumnType.DATE: (Date, _date_fault),
    ColumnType.TIME: (Time, _time_fault),
    ColumnType.DATETIME: (DateTime, lambda both: _date_fault(both.date) or _time_fault(both.time)),
    ColumnType.TIMESTAMP: (Timestamp, _moment_fault),
    ColumnType.UUID: (Uuid, _each(_signed(64))),
    ColumnType.STRING: (str, lambda _: None),
    ColumnType.BYTE_ARRAY: (bytes, lambda _: None),
    ColumnType.PERIOD: (Period, _each(_signed(32))),
    ColumnType.DURATION: (Duration, _duration_fault),
}
"""The type of Python of each type of constants, and its range. Each limit is that of the reference's own types."""


@dataclass(frozen=True, slots=True)
class Function:
    """A default that is computed for each row by a function of this name."""

    name: str


Default = Constant | Function | None
"""None: the column has no default at all; the format knows it, commands never write it."""
