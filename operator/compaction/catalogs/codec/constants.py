"""Defaults and numbers with a point in the canonical form, and back (docs/design/catalogs.md#canonical-form)."""

from __future__ import annotations

import decimal
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.model.descriptors import (
    ColumnType,
    Constant,
    Date,
    DateTime,
    Decimal,
    Default,
    DurationValue,
    Function,
    Period,
    Time,
    Timestamp,
    Uuid,
    Value,
)

Json = dict[str, Any]
_Form = tuple[Callable[[Any], object], Callable[[Any], Value]]
"""A value of one type as it is shown, and as it is read back."""

_DATE: Final = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)")
_TIME: Final = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{9})")


def show_default(default: Default) -> Json | None:
    if default is None:
        return None
    if isinstance(default, Function):
        return {"func": default.name}
    form = _FORMS.get(default.type)
    return {"const": default.type.name, "value": default.value if form is None else form[0](default.value)}


def default_of(shown: Mapping[str, Any] | None) -> Default:
    """A default that `show_default` shows. KeyError or ValueError when it is none."""
    if shown is None:
        return None
    if "func" in shown:
        return Function(str(shown["func"]))
    kind = ColumnType[shown["const"]]
    form = _FORMS.get(kind)
    value = shown["value"]
    return Constant(kind, value if form is None else form[1](value))


def show_double(number: float) -> Json:
    return {"bits": struct.pack(">d", number).hex()}


def double_of(shown: Mapping[str, str]) -> float:
    (number,) = struct.unpack("<d", struct.pack("<Q", _bits(shown)))
    return float(number)


def _bits(shown: Mapping[str, str]) -> int:
    return int(shown["bits"], 16)


def _show_decimal(value: Decimal) -> Json:
    return {"scale": value.scale, "unscaled": format(decimal.Decimal(value.unscaled), "f")}


def _decimal(shown: Mapping[str, Any]) -> Decimal:
    return Decimal(int(shown["scale"]), int(decimal.Decimal(shown["unscaled"])))


def _show_date(value: Date) -> str:
    """The year as it is, without a sign of its own or leading zeros."""
    return f"{value.year}-{value.month:02}-{value.day:02}"


def _date(shown: str) -> Date:
    found = _DATE.fullmatch(shown)
    if found is None:
        raise ValueError(f"{shown} is no date")
    return Date(int(found[1]), int(found[2]), int(found[3]))


def _show_time(value: Time) -> str:
    return f"{value.hour:02}:{value.minute:02}:{value.second:02}.{value.nano:09}"


def _time(shown: str) -> Time:
    found = _TIME.fullmatch(shown)
    if found is None:
        raise ValueError(f"{shown} is no time")
    return Time(int(found[1]), int(found[2]), int(found[3]), int(found[4]))


def _show_date_time(value: DateTime) -> str:
    return f"{_show_date(value.date)}T{_show_time(value.time)}"


def _date_time(shown: str) -> DateTime:
    date, _, time = shown.partition("T")
    return DateTime(_date(date), _time(time))


def _show_uuid(value: Uuid) -> str:
    return f"{value.high & 0xFFFFFFFFFFFFFFFF:016x}-{value.low & 0xFFFFFFFFFFFFFFFF:016x}"


def _uuid(shown: str) -> Uuid:
    high, _, low = shown.partition("-")
    return Uuid(_signed(high), _signed(low))


def _signed(half: str) -> int:
    return int.from_bytes(bytes.fromhex(half), "big", signed=True)


def _members(kind: Callable[..., Value], *names: str) -> _Form:
    """A mapping of the members of a tuple, by names in their order."""
    return (
        lambda value: dict(sorted(zip(names, value, strict=True))),
        lambda shown: kind(*(shown[name] for name in names)),
    )


_FORMS: Final[Mapping[ColumnType, _Form]] = {
    ColumnType.FLOAT: (lambda value: {"bits": f"{value:08x}"}, _bits),
    ColumnType.DOUBLE: (lambda value: {"bits": f"{value:016x}"}, _bits),
    ColumnType.DECIMAL: (_show_decimal, _decimal),
    ColumnType.DATE: (_show_date, _date),
    ColumnType.TIME: (_show_time, _time),
    ColumnType.DATETIME: (_show_date_time, _date_time),
    ColumnType.TIMESTAMP: _members(Timestamp, "epochSecond", "nano"),
    ColumnType.UUID: (_show_uuid, _uuid),
    ColumnType.BYTE_ARRAY: (bytes.hex, bytes.fromhex),
    ColumnType.PERIOD: _members(Period, "years", "months", "days"),
    ColumnType.DURATION: _members(DurationValue, "seconds", "nano"),
}
"""Types whose values are not those of JSON already."""
