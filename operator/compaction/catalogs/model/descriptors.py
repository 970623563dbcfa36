"""Descriptors of zones, schemas, tables, columns and indexes, with the values and timestamps they hold."""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

# Numbers of the format with names (docs/design/catalogs.md#primitives).


class ColumnType(IntEnum):
    """Type of a column or of a constant, by its number on the wire."""

    NULL = 0
    BOOLEAN = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT = 6
    DOUBLE = 7
    DECIMAL = 8
    DATE = 9
    TIME = 10
    DATETIME = 11
    TIMESTAMP = 12
    UUID = 13
    STRING = 15
    BYTE_ARRAY = 16
    PERIOD = 17
    DURATION = 18
    STRUCT = 19


class IndexStatus(IntEnum):
    """Life of an index. It is alive until it is stopping: names belong to alive indexes only."""

    REGISTERED = 0
    BUILDING = 1
    AVAILABLE = 2
    STOPPING = 3


class IndexKind(IntEnum):
    """The structure of an index, by hash or sorted; protocol 1 writes this number before each index."""

    HASH = 0
    SORTED = 1


class Collation(IntEnum):
    """Order of one column of a sorted index: bit 0 ascending, bit 1 nulls first."""

    DESC_NULLS_LAST = 0
    ASC_NULLS_LAST = 1
    DESC_NULLS_FIRST = 2
    ASC_NULLS_FIRST = 3


class ConsistencyMode(IntEnum):
    """The behavior of a zone when most replicas of a partition are lost."""

    STRONG_CONSISTENCY = 0
    HIGH_AVAILABILITY = 1


class ViewKind(IntEnum):
    """The scope of a system view: one node or the cluster."""

    NODE = 0
    CLUSTER = 1


# Hybrid timestamps: 64-bit integers, 48 bits of physical milliseconds over 16 bits of a logical counter
# (docs/design/catalogs.md#hybrid-timestamps).

LOGICAL_BITS: Final = 16
MINIMUM: Final = 1
"""The smallest timestamp. Zero means that there is none."""
MAXIMUM: Final = 2**63 - 1
MAX_PHYSICAL: Final = MAXIMUM >> LOGICAL_BITS
MAX_LOGICAL: Final = (1 << LOGICAL_BITS) - 1


def hybrid(milliseconds: int, logical: int = 0) -> int:
    """The timestamp of `milliseconds` since the epoch and a counter. ValueError when no timestamp holds them."""
    if not (0 <= milliseconds <= MAX_PHYSICAL and 0 <= logical <= MAX_LOGICAL and milliseconds + logical):
        raise ValueError(f"no hybrid timestamp has {milliseconds} ms and the counter {logical}")
    return milliseconds << LOGICAL_BITS | logical


def physical(timestamp: int) -> int:
    """Milliseconds since the epoch."""
    return timestamp >> LOGICAL_BITS


def logical(timestamp: int) -> int:
    """The counter within the millisecond, 0 to 65535."""
    return timestamp & MAX_LOGICAL


def later(timestamp: int, milliseconds: int) -> int:
    """`timestamp` moved by `milliseconds`, its counter kept. ValueError when the result is no timestamp."""
    moved = timestamp + (milliseconds << LOGICAL_BITS)
    if not MINIMUM <= moved <= MAXIMUM:
        raise ValueError(f"{timestamp} moved by {milliseconds} ms is no hybrid timestamp")
    return moved


def next_millisecond(timestamp: int) -> int:
    """The first whole millisecond that is not before `timestamp`: until then a clock without a counter has to wait."""
    return -(-timestamp >> LOGICAL_BITS)


# Constants that columns default to: a type for each that Python has none for, and which values are legal
# (docs/design/catalogs.md#primitives).

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


class DurationValue(NamedTuple):
    """Seconds, and nanoseconds after them."""

    second: int
    nano: int


Value = None | bool | int | str | bytes | Decimal | Date | Time | DateTime | Timestamp | Uuid | Period | DurationValue


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
    """Return the reason for which no reader takes a constant, None for a legal one: its value is of another type than
    `Constant.type` has, or out of its range.
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
    """Return the reason for which a date is no day of the calendar, None for one that is."""
    days = 29 if date.month == 2 and calendar.isleap(date.year) else _DAYS[date.month] if 1 <= date.month <= 12 else 0
    legal = -MAX_YEAR <= date.year <= MAX_YEAR and 1 <= date.day <= days
    return None if legal else f"no day is {date.year}-{date.month}-{date.day}"


def _time_fault(time: Time) -> str | None:
    """Return the reason for which a time is no time of a day, None for one that is."""
    legal = 0 <= time.hour < 24 and 0 <= time.minute < 60 and 0 <= time.second < 60 and 0 <= time.nano < _NANOS
    return None if legal else f"no time of day is {time.hour}:{time.minute}:{time.second} and {time.nano} ns"


def _moment_fault(moment: Timestamp) -> str | None:
    legal = FIRST_SECOND <= moment.second <= LAST_SECOND and 0 <= moment.nano < _NANOS
    return None if legal else f"no moment is {moment.second} s and {moment.nano} ns after the epoch"


def _duration_fault(duration: DurationValue) -> str | None:
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
    ColumnType.DURATION: (DurationValue, _duration_fault),
}
"""The type of Python of each type of constants, and its range. Each limit is that of the reference's own types."""


@dataclass(frozen=True, slots=True)
class Function:
    """A default that is computed for each row by a function of this name."""

    name: str


Default = Constant | Function | None
"""None: the column has no default at all; the format knows it, commands never write it."""


# Descriptors: zones, schemas, tables, columns, indexes, system views (docs/design/catalogs.md#objects).
#
# All are immutable; a change is a new descriptor, and what it does not touch is shared. `update_timestamp` is the
# hybrid timestamp of the version that changed the object last, and the minimum before any version holds it.

UNASSIGNED = -1
"""Id of a column that no table version holds yet, and of columns of system views."""


@dataclass(frozen=True, slots=True)
class Zone:
    """The rules for the nodes that hold data, and for the number of replicas. `scale_up`, `scale_down`: seconds."""

    id: int
    name: str
    update_timestamp: int
    storage_profiles: tuple[str, ...]
    partitions: int
    replicas: int
    quorum_size: int
    auto_adjust: int
    scale_up: int
    scale_down: int
    filter: str
    consistency_mode: ConsistencyMode


@dataclass(frozen=True, slots=True)
class Schema:
    """A name space. Its tables, indexes and views are in the catalog, by id."""

    id: int
    name: str
    update_timestamp: int


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table version or of a system view."""

    id: int
    name: str
    type: ColumnType
    nullable: bool
    precision: int
    scale: int
    length: int
    default: Default


Columns = tuple[TableColumn, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with all versions of its columns, oldest first; the last is the current one.

    `colocation_column_ids`: None when they are the columns of the primary key, which is not the same as an equal list
    that was asked for. Ids of columns are never reused; `next_column_id` is the next to assign.
    """

    id: int
    schema_id: int
    name: str
    update_timestamp: int
    pk_index_id: int
    zone_id: int
    base: int
    versions: tuple[Columns, ...]
    next_column_id: int
    pk_column_ids: tuple[int, ...]
    colocation_column_ids: tuple[int, ...] | None
    storage_profile: str
    stale_rows_fraction: float
    min_stale_rows_count: int

    @property
    def columns(self) -> Columns:
        return self.versions[-1]

    @property
    def latest_version(self) -> int:
        """Number of the current version of the columns."""
        return self.base + len(self.versions) - 1

    @property
    def colocated_by(self) -> tuple[int, ...]:
        """Ids of the columns that place a row."""
        return self.pk_column_ids if self.colocation_column_ids is None else self.colocation_column_ids

    def column(self, name: str) -> TableColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    def column_by_id(self, id: int) -> TableColumn | None:
        return next((column for column in self.columns if column.id == id), None)


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table. `collations` has one for each column of a sorted index, none for a hash index.

    Serializers before version 3 name columns: `column_ids` is None then, `column_names` has the names, and `resolved`
    turns one into the other.
    """

    kind: IndexKind
    id: int
    name: str
    update_timestamp: int
    table_id: int
    unique: bool
    status: IndexStatus
    created_with_table: bool
    column_ids: tuple[int, ...] | None
    collations: tuple[Collation, ...] = ()
    column_names: tuple[str, ...] | None = None

    @property
    def alive(self) -> bool:
        return self.status is not IndexStatus.STOPPING


@dataclass(frozen=True, slots=True)
class SystemView:
    """A system view."""

    id: int
    schema_id: int
    name: str
    update_timestamp: int
    columns: Columns
    kind: ViewKind


@dataclass(frozen=True, slots=True)
class SchemaContents:
    """A schema with all that is in it, as entries and snapshots carry it."""

    schema: Schema
    tables: tuple[Table, ...] = ()
    indexes: tuple[Index, ...] = ()
    views: tuple[SystemView, ...] = ()


# Descriptors with other values in some fields.

T = TypeVar("T")
_new: Final = object.__new__


class _Shape(NamedTuple):
    """The accessors of a class: one that reads all fields, the place of each field, and one setter for each."""

    get: Callable[[Any], tuple[Any, ...]]
    places: dict[str, int]
    setters: tuple[Callable[[Any, Any], None], ...]


_SHAPES: Final[dict[type, _Shape]] = {}
"""Filled as classes come."""


def _shape(kind: type) -> _Shape:
    names = [field.name for field in fields(kind)]
    found = _Shape(
        attrgetter(*names),
        {name: at for at, name in enumerate(names)},
        # The constructor of a frozen class asks `object.__setattr__`, which takes three times as long as its slots do.
        tuple(vars(kind)[name].__set__ for name in names),
    )
    _SHAPES[kind] = found
    return found


def made(kind: type[T], values: Iterable[Any]) -> T:
    """An instance of a frozen class with slots, of all its values in order; `__post_init__` does not run."""
    shape = _SHAPES.get(kind) or _shape(kind)
    made = _new(kind)
    for put, value in zip(shape.setters, values, strict=True):
        put(made, value)
    return made


def changed(item: T, **changes: object) -> T:
    """As `dataclasses.replace`, for frozen classes with slots whose checks hold for the changes: `__post_init__` does
    not run. A fraction of its time: each version of a catalog takes several. KeyError for a field that does not exist.
    """
    kind = type(item)
    shape = _SHAPES.get(kind) or _shape(kind)
    values = list(shape.get(item))
    for name, value in changes.items():
        values[shape.places[name]] = value
    copy = _new(kind)
    for put, value in zip(shape.setters, values, strict=True):
        put(copy, value)
    return copy
