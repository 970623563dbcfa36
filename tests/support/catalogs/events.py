"""Events that a log may hold, for properties: every type, extremes of every field."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from compaction.catalogs.codec.primitives import text_order
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
