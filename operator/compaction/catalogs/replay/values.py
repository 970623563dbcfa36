"""Constants and defaults of the canonical form, read back."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.model.enums import ColumnType
from compaction.catalogs.model.values import (
    Constant,
    Date,
    DateTime,
    Decimal,
    Default,
    Duration,
    Function,
    Period,
    Time,
    Timestamp,
    Uuid,
    Value,
)

_DATE: Final = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{9})")


def default_of(shown: Mapping[str, Any] | None) -> Default:
    """A default as `canonical` shows it. KeyError or ValueError when it is none."""
    if shown is None:
        return None
    if "func" in shown:
        return Function(str(shown["func"]))
    kind = ColumnType[shown["const"]]
    read = _READ.get(kind)
    value = shown["value"]
    return Constant(kind, value if read is None else read(value))


def bits(shown: Mapping[str, str]) -> int:
    """The bits of a number with a point."""
    return int(shown["bits"], 16)


def _decimal(shown: Mapping[str, Any]) -> Decimal:
    return Decimal(int(shown["scale"]), int(decimal.Decimal(shown["unscaled"])))


def _date(shown: str) -> Date:
    found = _DATE.fullmatch(shown)
    if found is None:
        raise ValueError(f"{shown} is no date")
    return Date(int(found[1]), int(found[2]), int(found[3]))


def _time(shown: str) -> Time:
    found = _TIME.fullmatch(shown)
    if found is None:
        raise ValueError(f"{shown} is no time")
    return Time(int(found[1]), int(found[2]), int(found[3]), int(found[4]))


def _date_time(shown: str) -> DateTime:
    date, _, time = shown.partition("T")
    return DateTime(_date(date), _time(time))


def _signed(half: str) -> int:
    return int.from_bytes(bytes.fromhex(half), "big", signed=True)


def _uuid(shown: str) -> Uuid:
    high, _, low = shown.partition("-")
    return Uuid(_signed(high), _signed(low))


_READ: Final[Mapping[ColumnType, Callable[[Any], Value]]] = {
    ColumnType.FLOAT: bits,
    ColumnType.DOUBLE: bits,
    ColumnType.DECIMAL: _decimal,
    ColumnType.DATE: _date,
    ColumnType.TIME: _time,
    ColumnType.DATETIME: _date_time,
    ColumnType.TIMESTAMP: lambda shown: Timestamp(shown["epochSecond"], shown["nano"]),
    ColumnType.UUID: _uuid,
    ColumnType.BYTE_ARRAY: bytes.fromhex,
    ColumnType.PERIOD: lambda shown: Period(shown["years"], shown["months"], shown["days"]),
    ColumnType.DURATION: lambda shown: Duration(shown["seconds"], shown["nano"]),
}
