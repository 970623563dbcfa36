"""Versioned catalogs: immutable descriptors, the binary form of their update log, and the changes between versions.

A library of its own: neither Kubernetes nor Spark. Formats and rules: docs/design/catalogs.md. Programs that use it
import from here (docs/catalog-library.md); what is named below is imported when it is asked for, so that a program
which needs the descriptors alone loads no client of etcd.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from compaction.catalogs.commands.command import ColumnSpec
    from compaction.catalogs.commands.schema_commands import (
        CreateIndex,
        CreateSchema,
        DropIndex,
        DropSchema,
        MakeIndexAvailable,
        RemoveIndex,
        RenameIndex,
        StartBuildingIndex,
    )
    from compaction.catalogs.commands.table_commands import (
        AddColumns,
        AlterColumn,
        CreateTable,
        DropColumns,
        DropTable,
        PrimaryKey,
        RenameTable,
        SetTableProperties,
    )
    from compaction.catalogs.commands.zone_commands import AlterZone, CreateZone, DropZone, RenameZone, SetDefaultZone
    from compaction.catalogs.errors import CatalogError
    from compaction.catalogs.manager.events import CatalogEvent, EventKind
    from compaction.catalogs.manager.history import Settings
    from compaction.catalogs.manager.manager import Executed
    from compaction.catalogs.model.catalog import Catalog
    from compaction.catalogs.model.descriptors import Collation, ColumnType, Constant, Function, IndexKind
    from compaction.catalogs.opening import OpenCatalog, open_catalog

__all__ = [
    "AddColumns",
    "AlterColumn",
    "AlterZone",
    "Catalog",
    "CatalogError",
    "CatalogEvent",
    "Collation",
    "ColumnSpec",
    "ColumnType",
    "Constant",
    "CreateIndex",
    "CreateSchema",
    "CreateTable",
    "CreateZone",
    "DropColumns",
    "DropIndex",
    "DropSchema",
    "DropTable",
    "DropZone",
    "EventKind",
    "Executed",
    "Function",
    "IndexKind",
    "MakeIndexAvailable",
    "OpenCatalog",
    "PrimaryKey",
    "RemoveIndex",
    "RenameIndex",
    "RenameTable",
    "RenameZone",
    "SetDefaultZone",
    "SetTableProperties",
    "Settings",
    "StartBuildingIndex",
    "open_catalog",
]

_HOMES: Final = {
    "catalogs.commands.command": ("ColumnSpec",),
    "catalogs.commands.schema_commands": (
        "CreateIndex",
        "CreateSchema",
        "DropIndex",
        "DropSchema",
        "MakeIndexAvailable",
        "RemoveIndex",
        "RenameIndex",
        "StartBuildingIndex",
    ),
    "catalogs.commands.table_commands": (
        "AddColumns",
        "AlterColumn",
        "CreateTable",
        "DropColumns",
        "DropTable",
        "PrimaryKey",
        "RenameTable",
        "SetTableProperties",
    ),
    "catalogs.commands.zone_commands": ("AlterZone", "CreateZone", "DropZone", "RenameZone", "SetDefaultZone"),
    "catalogs.manager.events": ("CatalogEvent", "EventKind"),
    "catalogs.manager.history": ("Settings",),
    "catalogs.manager.manager": ("Executed",),
    "catalogs.model.catalog": ("Catalog",),
    "catalogs.model.descriptors": ("Collation", "ColumnType", "Constant", "Function", "IndexKind"),
    "catalogs.opening": ("OpenCatalog", "open_catalog"),
    "catalogs.errors": ("CatalogError",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"compaction.{home}"), name)
