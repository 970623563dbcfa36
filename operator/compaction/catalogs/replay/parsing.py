"""Commands of a history, from JSON (docs/design/catalogs.md#histories)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from compaction.catalogs.commands import altering, indexes, schemas, tables, views, zones
from compaction.catalogs.commands.columns import ColumnSpec
from compaction.catalogs.commands.command import Command
from compaction.catalogs.errors import (
    CatalogValidationError,
    IndexNotFoundError,
    IndexStatusError,
    NoStorageProfileError,
)
from compaction.catalogs.model.enums import Collation, ColumnType, ConsistencyMode, IndexKind, ViewKind
from compaction.catalogs.model.values import NULL, Default
from compaction.catalogs.replay.values import bits, default_of

ERRORS: Final[Mapping[type[Exception], str]] = {
    CatalogValidationError: "CatalogValidationException",
    IndexNotFoundError: "IndexNotFoundValidationException",
    IndexStatusError: "ChangeIndexStatusValidationException",
    NoStorageProfileError: "NullPointerException",
}
"""What the reference calls our errors. It has no rule for a zone without storage profiles, and fails on it."""

_Shown = Mapping[str, Any]


def command_of(shown: _Shown) -> Command:
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


def _create_table(shown: _Shown) -> Command:
    key = shown.get("pk") or {}
    return tables.CreateTable(
        shown["schema"],
        shown["table"],
        _columns(shown),
        tables.PrimaryKey(
            tuple(key.get("columns") or ()), IndexKind[key.get("kind", "HASH")], _collations(key), key.get("name")
        ),
        _optional(shown.get("colocation")),
        shown.get("zone"),
        shown.get("storageProfile"),
        shown.get("ifTableExists", False),
        _fraction(shown),
        shown.get("minStaleRowsCount"),
    )


def _create_zone(shown: _Shown) -> Command:
    return zones.CreateZone(
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


def _alter_zone(shown: _Shown) -> Command:
    return zones.AlterZone(
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


def _alter_column(shown: _Shown) -> Command:
    default: Default = NULL if shown.get("dropDefault") else default_of(shown.get("default"))
    return altering.AlterColumn(
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


def _create_index(shown: _Shown) -> Command:
    return indexes.CreateIndex(
        shown["schema"],
        shown["index"],
        shown["table"],
        tuple(shown.get("columns") or ()),
        IndexKind[shown["kind"]],
        _collations(shown),
        shown.get("unique", False),
        shown.get("ifNotExists", False),
    )


_COMMANDS: Final[Mapping[str, Callable[[_Shown], Command]]] = {
    "CREATE_SCHEMA": lambda shown: schemas.CreateSchema(shown["schema"], shown.get("ifNotExists", False)),
    "DROP_SCHEMA": lambda shown: schemas.DropSchema(
        shown["schema"], shown.get("cascade", False), shown.get("ifExists", False)
    ),
    "CREATE_ZONE": _create_zone,
    "ALTER_ZONE": _alter_zone,
    "RENAME_ZONE": lambda shown: zones.RenameZone(shown["zone"], shown["newName"], shown.get("ifExists", False)),
    "SET_DEFAULT_ZONE": lambda shown: zones.SetDefaultZone(shown["zone"], shown.get("ifExists", False)),
    "DROP_ZONE": lambda shown: zones.DropZone(shown["zone"], shown.get("ifExists", False)),
    "CREATE_TABLE": _create_table,
    "DROP_TABLE": lambda shown: tables.DropTable(shown["schema"], shown["table"], shown.get("ifTableExists", False)),
    "RENAME_TABLE": lambda shown: tables.RenameTable(
        shown["schema"], shown["table"], shown["newName"], shown.get("ifTableExists", False)
    ),
    "SET_TABLE_PROPERTY": lambda shown: tables.SetTableProperties(
        shown["schema"],
        shown["table"],
        _fraction(shown),
        shown.get("minStaleRowsCount"),
        shown.get("ifTableExists", False),
    ),
    "ADD_COLUMN": lambda shown: altering.AddColumns(
        shown["schema"],
        shown["table"],
        _columns(shown),
        shown.get("ifTableExists", False),
        shown.get("ifColumnNotExists", False),
    ),
    "DROP_COLUMN": lambda shown: altering.DropColumns(
        shown["schema"],
        shown["table"],
        tuple(shown["columns"]),
        shown.get("ifTableExists", False),
        shown.get("ifColumnExists", False),
    ),
    "ALTER_COLUMN": _alter_column,
    "CREATE_INDEX": _create_index,
    "START_BUILDING_INDEX": lambda shown: indexes.StartBuildingIndex(shown["indexId"]),
    "MAKE_INDEX_AVAILABLE": lambda shown: indexes.MakeIndexAvailable(shown["indexId"]),
    "REMOVE_INDEX": lambda shown: indexes.RemoveIndex(shown["indexId"]),
    "DROP_INDEX": lambda shown: indexes.DropIndex(shown["schema"], shown["index"], shown.get("ifExists", False)),
    "RENAME_INDEX": lambda shown: indexes.RenameIndex(
        shown["schema"], shown["index"], shown["newName"], shown.get("ifIndexExists", False)
    ),
    "CREATE_SYSTEM_VIEW": lambda shown: views.CreateSystemView(
        shown["name"], _columns(shown), ViewKind[shown["viewType"]]
    ),
}
