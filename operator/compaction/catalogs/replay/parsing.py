"""Commands and constants of a recorded history, from JSON (docs/design/catalogs.md#histories)."""

from __future__ import annotations

import decimal
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.commands import schema_commands, table_commands, zone_commands
from compaction.catalogs.commands.command import CatalogCommand, ColumnSpec
from compaction.catalogs.errors import (
    CatalogValidationError,
    IndexNotFoundError,
    IndexStatusError,
    NoStorageProfileError,
)
from compaction.catalogs.model.descriptors import (
    NULL,
    Collation,
    ColumnType,
    ConsistencyMode,
    Constant,
    Date,
    DateTime,
    Decimal,
    Default,
    DurationValue,
    Function,
    IndexKind,
    Period,
    Time,
    Timestamp,
    Uuid,
    Value,
    ViewKind,
)

# Constants and defaults of the canonical form, read back.

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
    ColumnType.DURATION: lambda shown: DurationValue(shown["seconds"], shown["nano"]),
}


# Commands of a history, from JSON (docs/design/catalogs.md#histories).

ERRORS: Final[Mapping[type[Exception], str]] = {
    CatalogValidationError: "CatalogValidationException",
    IndexNotFoundError: "IndexNotFoundValidationException",
    IndexStatusError: "ChangeIndexStatusValidationException",
    NoStorageProfileError: "NullPointerException",
}
"""What the reference calls our errors. It has no rule for a zone without storage profiles, and fails on it."""

_Shown = Mapping[str, Any]


def command_of(shown: _Shown) -> CatalogCommand:
    """One command. CatalogValidationError when its parameters are refused; KeyError or ValueError when it is none."""
    return _COMMANDS[shown["type"]](shown)


def _column(shown: _Shown) -> ColumnSpec:
    return ColumnSpec(
        shown["name"],
        ColumnType[shown["type"]],
        shown["nullable"],
        shown.get("precision"),
        shown.get("scale"),
        shown.get("length"),
        default_of(shown["default"]) if "default" in shown else NULL,
    )


def _columns(shown: _Shown) -> tuple[ColumnSpec, ...]:
    return tuple(_column(each) for each in shown.get("columns") or ())


def _collations(shown: _Shown) -> tuple[Collation, ...]:
    return tuple(Collation[each] for each in shown.get("collations") or ())


def _fraction(shown: _Shown) -> float | None:
    if shown.get("staleRowsFraction") is None:
        return None
    (number,) = struct.unpack("<d", struct.pack("<Q", bits(shown["staleRowsFraction"])))
    return float(number)


def _optional(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _create_table(shown: _Shown) -> CatalogCommand:
    key = shown.get("pk") or {}
    return table_commands.CreateTable(
        shown["schema"],
        shown["table"],
        _columns(shown),
        table_commands.PrimaryKey(
            tuple(key.get("columns") or ()), IndexKind[key.get("kind", "HASH")], _collations(key), key.get("name")
        ),
        _optional(shown.get("colocation")),
        shown.get("zone"),
        shown.get("storageProfile"),
        shown.get("ifTableExists", False),
        _fraction(shown),
        shown.get("minStaleRowsCount"),
    )


def _create_zone(shown: _Shown) -> CatalogCommand:
    return zone_commands.CreateZone(
        shown["zone"],
        tuple(shown.get("storageProfiles") or ()),
        shown.get("ifNotExists", False),
        shown.get("partitions"),
        shown.get("replicas"),
        shown.get("quorumSize"),
        shown.get("scaleUp"),
        shown.get("scaleDown"),
        shown.get("filter"),
        ConsistencyMode[shown.get("consistencyMode", "STRONG_CONSISTENCY")],
    )


def _alter_zone(shown: _Shown) -> CatalogCommand:
    return zone_commands.AlterZone(
        shown["zone"],
        shown.get("ifExists", False),
        shown.get("partitions"),
        shown.get("replicas"),
        shown.get("quorumSize"),
        shown.get("scaleUp"),
        shown.get("scaleDown"),
        shown.get("filter"),
        _optional(shown.get("storageProfiles")),
    )


def _alter_column(shown: _Shown) -> CatalogCommand:
    default: Default = NULL if shown.get("dropDefault") else default_of(shown.get("default"))
    return table_commands.AlterColumn(
        shown["schema"],
        shown["table"],
        shown["column"],
        ColumnType[shown["dataType"]] if "dataType" in shown else None,
        shown.get("precision"),
        shown.get("scale"),
        shown.get("length"),
        shown.get("nullable"),
        default,
        shown.get("ifTableExists", False),
    )


def _create_index(shown: _Shown) -> CatalogCommand:
    return schema_commands.CreateIndex(
        shown["schema"],
        shown["index"],
        shown["table"],
        tuple(shown.get("columns") or ()),
        IndexKind[shown["kind"]],
        _collations(shown),
        shown.get("unique", False),
        shown.get("ifNotExists", False),
    )


_COMMANDS: Final[Mapping[str, Callable[[_Shown], CatalogCommand]]] = {
    "CREATE_SCHEMA": lambda shown: schema_commands.CreateSchema(shown["schema"], shown.get("ifNotExists", False)),
    "DROP_SCHEMA": lambda shown: schema_commands.DropSchema(
        shown["schema"], shown.get("cascade", False), shown.get("ifExists", False)
    ),
    "CREATE_ZONE": _create_zone,
    "ALTER_ZONE": _alter_zone,
    "RENAME_ZONE": lambda shown: zone_commands.RenameZone(
        shown["zone"], shown["newName"], shown.get("ifExists", False)
    ),
    "SET_DEFAULT_ZONE": lambda shown: zone_commands.SetDefaultZone(shown["zone"], shown.get("ifExists", False)),
    "DROP_ZONE": lambda shown: zone_commands.DropZone(shown["zone"], shown.get("ifExists", False)),
    "CREATE_TABLE": _create_table,
    "DROP_TABLE": lambda shown: table_commands.DropTable(
        shown["schema"], shown["table"], shown.get("ifTableExists", False)
    ),
    "RENAME_TABLE": lambda shown: table_commands.RenameTable(
        shown["schema"], shown["table"], shown["newName"], shown.get("ifTableExists", False)
    ),
    "SET_TABLE_PROPERTY": lambda shown: table_commands.SetTableProperties(
        shown["schema"],
        shown["table"],
        _fraction(shown),
        shown.get("minStaleRowsCount"),
        shown.get("ifTableExists", False),
    ),
    "ADD_COLUMN": lambda shown: table_commands.AddColumns(
        shown["schema"],
        shown["table"],
        _columns(shown),
        shown.get("ifTableExists", False),
        shown.get("ifColumnNotExists", False),
    ),
    "DROP_COLUMN": lambda shown: table_commands.DropColumns(
        shown["schema"],
        shown["table"],
        tuple(shown["columns"]),
        shown.get("ifTableExists", False),
        shown.get("ifColumnExists", False),
    ),
    "ALTER_COLUMN": _alter_column,
    "CREATE_INDEX": _create_index,
    "START_BUILDING_INDEX": lambda shown: schema_commands.StartBuildingIndex(shown["indexId"]),
    "MAKE_INDEX_AVAILABLE": lambda shown: schema_commands.MakeIndexAvailable(shown["indexId"]),
    "REMOVE_INDEX": lambda shown: schema_commands.RemoveIndex(shown["indexId"]),
    "DROP_INDEX": lambda shown: schema_commands.DropIndex(
        shown["schema"], shown["index"], shown.get("ifExists", False)
    ),
    "RENAME_INDEX": lambda shown: schema_commands.RenameIndex(
        shown["schema"], shown["index"], shown["newName"], shown.get("ifIndexExists", False)
    ),
    "CREATE_SYSTEM_VIEW": lambda shown: schema_commands.CreateSystemView(
        shown["name"], _columns(shown), ViewKind[shown["viewType"]]
    ),
}
