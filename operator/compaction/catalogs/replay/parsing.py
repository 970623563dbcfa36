"""Commands of a recorded history, from JSON (docs/design/catalogs.md#histories)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.codec.constants import default_of, double_of
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
    Default,
    IndexKind,
    ViewKind,
)

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
    return None if shown.get("staleRowsFraction") is None else double_of(shown["staleRowsFraction"])


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
