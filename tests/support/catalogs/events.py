"""Events that a log may hold, for properties: every type, extremes of every field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from compaction.catalogs.codec.primitives import TypeId, text_order
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import (
    MAXIMUM,
    MINIMUM,
    NULL,
    Collation,
    ColumnType,
    ConsistencyMode,
    Constant,
    Date,
    DateTime,
    Decimal,
    DurationValue,
    Function,
    Index,
    IndexKind,
    IndexStatus,
    Period,
    Schema,
    SchemaContents,
    SystemView,
    Table,
    TableColumn,
    Time,
    Timestamp,
    Uuid,
    ViewKind,
    Zone,
)
from compaction.catalogs.model.entries import Snapshot


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


ids = integers(32)


def _joined(text: str) -> str:
    """Two surrogates that stand together are one character, in the model as in the format."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


texts = st.text(st.characters(exclude_categories=()), max_size=6).map(_joined) | st.sampled_from(
    ["", "\ud800", "a\udfff", "\x00", "\U0001f600\x00é", "C1"]
)
updated = st.integers(MINIMUM, MAXIMUM) | st.just(MINIMUM)
nanos = st.integers(0, 999_999_999)
dates = st.builds(Date, st.integers(-999_999_999, 999_999_999), st.integers(1, 12), st.integers(1, 28))
times = st.builds(Time, st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), nanos)
VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.BOOLEAN: st.booleans(),
    ColumnType.INT8: integers(8),
    ColumnType.INT16: integers(16),
    ColumnType.INT32: integers(32),
    ColumnType.INT64: integers(64),
    ColumnType.FLOAT: st.integers(0, 2**32 - 1),
    ColumnType.DOUBLE: st.integers(0, 2**64 - 1),
    ColumnType.DECIMAL: st.builds(Decimal, integers(16), integers(300)),
    ColumnType.DATE: dates,
    ColumnType.TIME: times,
    ColumnType.DATETIME: st.builds(DateTime, dates, times),
    ColumnType.TIMESTAMP: st.builds(Timestamp, st.integers(-31_557_014_167_219_200, 31_556_889_864_403_199), nanos),
    ColumnType.UUID: st.builds(Uuid, integers(64), integers(64)),
    ColumnType.STRING: texts,
    ColumnType.BYTE_ARRAY: st.binary(max_size=20),
    ColumnType.PERIOD: st.builds(Period, ids, ids, ids),
    ColumnType.DURATION: st.builds(DurationValue, integers(64), nanos),
}
constants = st.sampled_from(list(VALUES)).flatmap(lambda kind: st.builds(Constant, st.just(kind), VALUES[kind]))
defaults = st.none() | st.just(NULL) | st.builds(Function, texts) | constants
columns = st.builds(TableColumn, ids, texts, st.sampled_from(ColumnType), st.booleans(), ids, ids, ids, defaults)
column_lists = st.lists(columns, max_size=3).map(tuple)
zones = st.builds(
    Zone,
    ids,
    texts,
    updated,
    st.lists(texts, max_size=3).map(tuple),
    ids,
    ids,
    ids,
    st.just(0),
    ids,
    ids,
    texts,
    st.sampled_from(ConsistencyMode),
)
views = st.builds(SystemView, ids, ids, texts, updated, column_lists, st.sampled_from(ViewKind))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    current = tuple(
        draw(
            st.lists(columns, min_size=1, max_size=4, unique_by=(lambda column: column.id, lambda column: column.name))
        )
    )
    keys = st.lists(st.sampled_from([column.id for column in current]), max_size=3).map(tuple)
    return Table(
        draw(ids),
        draw(ids),
        draw(texts),
        draw(updated),
        draw(ids),
        draw(ids),
        1,
        (*draw(st.lists(column_lists, max_size=2)), current),
        draw(ids),
        draw(keys),
        draw(st.none() | keys),
        draw(texts),
        draw(st.floats(allow_nan=False)),
        draw(integers(64)),
    )


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    kind = draw(st.sampled_from(IndexKind))
    keys = tuple(draw(st.lists(ids, max_size=3)))
    order = tuple(draw(st.sampled_from(Collation)) for _ in keys) if kind is IndexKind.SORTED else ()
    status = draw(st.sampled_from(IndexStatus))
    return Index(
        kind,
        draw(ids),
        draw(texts),
        draw(updated),
        draw(ids),
        draw(st.booleans()),
        status,
        draw(st.booleans()),
        keys,
        order,
    )


contents = st.builds(
    SchemaContents,
    st.builds(Schema, ids, texts, updated),
    st.lists(tables(), max_size=2).map(tuple),
    st.lists(indexes(), max_size=2).map(tuple),
    st.lists(views, max_size=2).map(tuple),
)
names = st.lists(texts, max_size=3, unique=True).map(lambda found: tuple(sorted(found, key=text_order)))
entries: st.SearchStrategy[model.Entry] = st.one_of(
    st.builds(model.NewZoneEntry, zones),
    st.builds(model.AlterZoneEntry, zones),
    st.builds(model.NewSchemaEntry, contents),
    st.builds(model.NewTableEntry, tables()),
    st.builds(model.NewIndexEntry, indexes()),
    st.builds(model.NewSystemViewEntry, views),
    st.builds(model.NewColumnsEntry, column_lists, ids),
    st.builds(model.AlterColumnEntry, columns, ids),
    st.builds(model.DropColumnsEntry, ids, names),
    st.builds(model.RenameTableEntry, ids, texts),
    st.builds(model.RenameIndexEntry, ids, texts),
    st.builds(model.AlterTablePropertiesEntry, ids, st.none() | st.floats(allow_nan=False), st.none() | integers(64)),
    *[
        st.builds(kind, ids)
        for kind in (
            model.DropZoneEntry,
            model.SetDefaultZoneEntry,
            model.DropSchemaEntry,
            model.DropTableEntry,
            model.StartBuildingIndexEntry,
            model.MakeIndexAvailableEntry,
            model.DropIndexEntry,
            model.RemoveIndexEntry,
            model.AdvanceIdsEntry,
        )
    ],
)
updates = st.builds(model.VersionedUpdate, ids, integers(64), st.lists(entries, max_size=4).map(tuple))
snapshots = st.builds(
    model.Snapshot,
    ids,
    integers(64),
    ids,
    st.lists(zones, max_size=2).map(tuple),
    st.lists(contents, max_size=2).map(tuple),
    st.none() | ids,
)
events = updates | snapshots


# A snapshot that no request takes.


def large_snapshot(base: Snapshot) -> Snapshot:
    """The same version with a schema whose name is two million characters long."""
    return replace(base, schemas=(SchemaContents(Schema(1, "X" * 2_000_000, 1), (), (), ()),))


# One small object of every type of the format, made by hand: what the frozen bytes are the bytes of.

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
