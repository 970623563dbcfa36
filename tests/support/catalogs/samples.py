"""One small object of every type of the format, made by hand: what the frozen bytes are the bytes of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from compaction.catalogs.codec.primitives import TypeId
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import (
    NULL,
    Collation,
    ColumnType,
    ConsistencyMode,
    Constant,
    Decimal,
    Function,
    Index,
    IndexKind,
    IndexStatus,
    Schema,
    SchemaContents,
    SystemView,
    Table,
    TableColumn,
    ViewKind,
    Zone,
)

ZONE = Zone(5, "Zone", 1, ("p1", "p2"), 25, 3, 2, 0, 7, 300, "$..*", ConsistencyMode.HIGH_AVAILABILITY)
COLUMNS = (
    TableColumn(0, "K", ColumnType.INT64, False, 19, 0, 0, Function("rand")),
    TableColumn(1, "€", ColumnType.DECIMAL, True, 20, 5, 0, Constant(ColumnType.DECIMAL, Decimal(5, -129))),
    TableColumn(2, "V", ColumnType.STRING, True, 0, 0, 65536, NULL),
    TableColumn(3, "N", ColumnType.DATE, True, 0, 0, 0, None),
)
TABLE = Table(10, 2, "T", 1, 11, 5, 1, (COLUMNS[:2], COLUMNS), 4, (0,), (0,), "p1", 0.25, 500)
HASH = Index(IndexKind.HASH, 11, "T_PK", 1, 10, True, IndexStatus.AVAILABLE, True, (0,))
SORTED = Index(
    IndexKind.SORTED,
    12,
    "I",
    1,
    10,
    False,
    IndexStatus.BUILDING,
    False,
    (2, 1),
    (Collation.ASC_NULLS_FIRST, Collation.DESC_NULLS_LAST),
)
VIEW = SystemView(13, 2, "NODES", 1, tuple(replace(column, id=-1) for column in COLUMNS[:1]), ViewKind.CLUSTER)
SCHEMA = SchemaContents(Schema(2, "S", 1), (TABLE,), (HASH, SORTED), (VIEW,))


def named(index: Index) -> Index:
    """As serializers before version 3 have it."""
    return replace(index, column_ids=None, column_names=tuple(COLUMNS[id].name for id in index.column_ids or ()))


def unassigned(column: TableColumn) -> TableColumn:
    return replace(column, id=-1)


OLD_TABLE = replace(TABLE, stale_rows_fraction=0.0, min_stale_rows_count=0)
OLD_SCHEMA = SchemaContents(SCHEMA.schema, (OLD_TABLE,), (named(HASH), named(SORTED)), (VIEW,))
VERSIONS = (TABLE.versions, 1, 4)
UPDATE = model.VersionedUpdate(7, 500, (model.DropTableEntry(10), model.AdvanceIdsEntry(2)))

SAMPLES: dict[TypeId, Any] = {
    TypeId.ALTER_COLUMN: model.AlterColumnEntry(COLUMNS[1], 10),
    TypeId.ALTER_ZONE: model.AlterZoneEntry(ZONE),
    TypeId.NEW_ZONE: model.NewZoneEntry(ZONE),
    TypeId.DROP_COLUMN: model.DropColumnsEntry(10, ("K", "€")),
    TypeId.DROP_INDEX: model.DropIndexEntry(300),
    TypeId.DROP_TABLE: model.DropTableEntry(300),
    TypeId.DROP_ZONE: model.DropZoneEntry(300),
    TypeId.MAKE_INDEX_AVAILABLE: model.MakeIndexAvailableEntry(300),
    TypeId.REMOVE_INDEX: model.RemoveIndexEntry(300),
    TypeId.START_BUILDING_INDEX: model.StartBuildingIndexEntry(300),
    TypeId.NEW_COLUMN: model.NewColumnsEntry(COLUMNS, 10),
    TypeId.NEW_INDEX: model.NewIndexEntry(SORTED),
    TypeId.NEW_SYS_VIEW: model.NewSystemViewEntry(VIEW),
    TypeId.NEW_TABLE: model.NewTableEntry(TABLE),
    TypeId.RENAME_TABLE: model.RenameTableEntry(300, "€"),
    TypeId.ID_GENERATOR: model.AdvanceIdsEntry(3),
    TypeId.SNAPSHOT: model.Snapshot(7, 1 << 40, 14, (ZONE,), (SCHEMA,), 5),
    TypeId.VERSIONED_UPDATE: UPDATE,
    TypeId.RENAME_INDEX: model.RenameIndexEntry(300, "€"),
    TypeId.SET_DEFAULT_ZONE: model.SetDefaultZoneEntry(300),
    TypeId.NEW_SCHEMA: model.NewSchemaEntry(SCHEMA),
    TypeId.DROP_SCHEMA: model.DropSchemaEntry(300),
    TypeId.HASH_INDEX: HASH,
    TypeId.SORTED_INDEX: SORTED,
    TypeId.SCHEMA: SCHEMA,
    TypeId.STORAGE_PROFILE: "p1",
    TypeId.STORAGE_PROFILES: ("p1", "p2"),
    TypeId.SYSTEM_VIEW: VIEW,
    TypeId.TABLE: TABLE,
    TypeId.TABLE_COLUMN: COLUMNS[1],
    TypeId.TABLE_VERSION: COLUMNS,
    TypeId.TABLE_SCHEMA_VERSIONS: VERSIONS,
    TypeId.ZONE: ZONE,
    TypeId.ALTER_TABLE_PROPERTIES: model.AlterTablePropertiesEntry(10, 0.5, None),
}
"""As the newest serializers hold them."""

_COLUMN = unassigned(COLUMNS[1])
_WITHOUT_IDS = tuple(map(unassigned, COLUMNS))
_OLD: dict[TypeId, Any] = {
    TypeId.NEW_INDEX: model.NewIndexEntry(named(SORTED)),
    TypeId.NEW_TABLE: model.NewTableEntry(OLD_TABLE),
    TypeId.NEW_SCHEMA: model.NewSchemaEntry(OLD_SCHEMA),
    TypeId.SNAPSHOT: model.Snapshot(7, 1 << 40, 14, (ZONE,), (OLD_SCHEMA,), 5),
    TypeId.HASH_INDEX: named(HASH),
    TypeId.SORTED_INDEX: named(SORTED),
    TypeId.SCHEMA: OLD_SCHEMA,
    TypeId.TABLE: OLD_TABLE,
    TypeId.ALTER_COLUMN: model.AlterColumnEntry(_COLUMN, 10),
    TypeId.NEW_COLUMN: model.NewColumnsEntry(_WITHOUT_IDS, 10),
    TypeId.TABLE_COLUMN: _COLUMN,
    TypeId.TABLE_VERSION: _WITHOUT_IDS,
}
"""As releases before 3.2.0 held them, where that is less."""


RELEASES: dict[str, dict[TypeId, Any]] = {
    "3.0.0": {**SAMPLES, **_OLD},
    "3.1.0": {**SAMPLES, **_OLD},
    "3.2.0": SAMPLES,
}
"""What a release wrote of each type."""
