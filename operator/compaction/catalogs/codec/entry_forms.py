"""Entries of updates (types 0 to 15, 18 to 21, 33): pairs of functions for each version of their serializers."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from compaction.catalogs.codec import columns, indexes, schemas, tables, zones
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, Read, TypeId, Write, text_order
from compaction.catalogs.model import entries as model


class Form(NamedTuple):
    """The functions that read and write one version of one type."""

    read: Read
    write: Write


def _number(entry: Callable[[int], Any], field: str) -> Form:
    """One id or delta."""
    get = attrgetter(field)

    def read(reader: NestedReader) -> Any:
        return entry(reader.number())

    def write(writer: ObjectWriter, item: Any) -> None:
        writer.number(get(item))

    return Form(read, write)


def _name(entry: Callable[[int, str], Any]) -> Form:
    """An id and a new name."""

    def read(reader: NestedReader) -> Any:
        return entry(reader.number(), reader.text())

    def write(writer: ObjectWriter, item: Any) -> None:
        writer.number(item.id)
        writer.text(item.name)

    return Form(read, write)


def _plain(entry: Callable[[Any], Any], field: str, inner: Form) -> Form:
    """Version 1: the payload of a descriptor."""
    get = attrgetter(field)

    def read(reader: NestedReader) -> Any:
        return entry(inner.read(reader))

    def write(writer: ObjectWriter, item: Any) -> None:
        inner.write(writer, get(item))

    return Form(read, write)


def _nested(entry: Callable[[Any], Any], field: str, types: frozenset[int], kind: Callable[[Any], TypeId]) -> Form:
    """Version 2: a descriptor with its header."""
    get = attrgetter(field)

    def read(reader: NestedReader) -> Any:
        return entry(reader.object(types))

    def write(writer: ObjectWriter, item: Any) -> None:
        inner = get(item)
        writer.object(kind(inner), inner)

    return Form(read, write)


def _always(kind: TypeId) -> Callable[[Any], TypeId]:
    return lambda _: kind


def _in_table(entry: Callable[[Any, int], Any], field: str, inner: Form) -> Form:
    """A column or several of them, and the id of their table."""
    get = attrgetter(field)

    def read(reader: NestedReader) -> Any:
        return entry(inner.read(reader), reader.number())

    def write(writer: ObjectWriter, item: Any) -> None:
        inner.write(writer, get(item))
        writer.number(item.table_id)

    return Form(read, write)


def _read_drop_columns(reader: NestedReader) -> model.DropColumnsEntry:
    table, names = reader.number(), reader.texts()
    reader.residue.append(names)
    return model.DropColumnsEntry(table, tuple(sorted(set(names), key=text_order)))


def _write_drop_columns(writer: ObjectWriter, entry: model.DropColumnsEntry) -> None:
    writer.number(entry.table_id)
    writer.texts(writer.instead(entry.names))


def _read_properties(reader: NestedReader) -> model.AlterTablePropertiesEntry:
    return model.AlterTablePropertiesEntry(
        reader.number(),
        reader.double() if reader.boolean() else None,
        reader.int64() if reader.boolean() else None,
    )


def _write_properties(writer: ObjectWriter, entry: model.AlterTablePropertiesEntry) -> None:
    writer.number(entry.id)
    for form, value in (("d", entry.stale_rows_fraction), ("q", entry.min_stale_rows_count)):
        writer.boolean(value is not None)
        if value is not None:
            writer.packed(form, value)


def _twice(form: Form) -> tuple[Form, Form]:
    """Versions 1 and 2 of a type without children: the same bytes."""
    return form, form


_ZONE_1: Final = Form(zones.read_zone_1, zones.write_zone_1)
_ZONE: Final = _always(TypeId.ZONE)
_COLUMN_2: Final = Form(
    lambda reader: reader.object(columns.COLUMN), lambda writer, column: writer.object(TypeId.TABLE_COLUMN, column)
)

ENTRIES: Final[dict[TypeId, tuple[type, tuple[Form, ...]]]] = {
    TypeId.ALTER_COLUMN: (
        model.AlterColumnEntry,
        (
            _in_table(model.AlterColumnEntry, "column", Form(columns.read_column_1, columns.write_column_1)),
            _in_table(model.AlterColumnEntry, "column", _COLUMN_2),
        ),
    ),
    TypeId.ALTER_ZONE: (
        model.AlterZoneEntry,
        (_plain(model.AlterZoneEntry, "zone", _ZONE_1), _nested(model.AlterZoneEntry, "zone", zones.ZONE, _ZONE)),
    ),
    TypeId.NEW_ZONE: (
        model.NewZoneEntry,
        (_plain(model.NewZoneEntry, "zone", _ZONE_1), _nested(model.NewZoneEntry, "zone", zones.ZONE, _ZONE)),
    ),
    TypeId.DROP_COLUMN: (model.DropColumnsEntry, _twice(Form(_read_drop_columns, _write_drop_columns))),
    TypeId.DROP_INDEX: (model.DropIndexEntry, _twice(_number(model.DropIndexEntry, "id"))),
    TypeId.DROP_TABLE: (model.DropTableEntry, _twice(_number(model.DropTableEntry, "id"))),
    TypeId.DROP_ZONE: (model.DropZoneEntry, _twice(_number(model.DropZoneEntry, "id"))),
    TypeId.MAKE_INDEX_AVAILABLE: (model.MakeIndexAvailableEntry, _twice(_number(model.MakeIndexAvailableEntry, "id"))),
    TypeId.REMOVE_INDEX: (model.RemoveIndexEntry, _twice(_number(model.RemoveIndexEntry, "id"))),
    TypeId.START_BUILDING_INDEX: (model.StartBuildingIndexEntry, _twice(_number(model.StartBuildingIndexEntry, "id"))),
    TypeId.NEW_COLUMN: (
        model.NewColumnsEntry,
        (
            _in_table(model.NewColumnsEntry, "columns", Form(columns.read_columns_1, columns.write_columns_1)),
            _in_table(model.NewColumnsEntry, "columns", Form(columns.read_columns_2, columns.write_columns_2)),
        ),
    ),
    TypeId.NEW_INDEX: (
        model.NewIndexEntry,
        (
            _plain(model.NewIndexEntry, "index", Form(indexes.read_either_1, indexes.write_either_1)),
            _nested(model.NewIndexEntry, "index", indexes.INDEX, indexes.type_of),
        ),
    ),
    TypeId.NEW_SYS_VIEW: (
        model.NewSystemViewEntry,
        (
            _plain(model.NewSystemViewEntry, "view", Form(schemas.read_view_1, schemas.write_view_1)),
            _nested(model.NewSystemViewEntry, "view", schemas.VIEW, _always(TypeId.SYSTEM_VIEW)),
        ),
    ),
    TypeId.NEW_TABLE: (
        model.NewTableEntry,
        (
            _plain(model.NewTableEntry, "table", Form(tables.read_table_1, tables.write_table_1)),
            _nested(model.NewTableEntry, "table", schemas.TABLE, _always(TypeId.TABLE)),
        ),
    ),
    TypeId.RENAME_TABLE: (model.RenameTableEntry, _twice(_name(model.RenameTableEntry))),
    TypeId.ID_GENERATOR: (model.AdvanceIdsEntry, _twice(_number(model.AdvanceIdsEntry, "delta"))),
    TypeId.RENAME_INDEX: (model.RenameIndexEntry, _twice(_name(model.RenameIndexEntry))),
    TypeId.SET_DEFAULT_ZONE: (model.SetDefaultZoneEntry, _twice(_number(model.SetDefaultZoneEntry, "id"))),
    TypeId.NEW_SCHEMA: (
        model.NewSchemaEntry,
        (
            _plain(model.NewSchemaEntry, "contents", Form(schemas.read_schema_1, schemas.write_schema_1)),
            _nested(model.NewSchemaEntry, "contents", schemas.SCHEMA, _always(TypeId.SCHEMA)),
        ),
    ),
    TypeId.DROP_SCHEMA: (model.DropSchemaEntry, _twice(_number(model.DropSchemaEntry, "id"))),
    TypeId.ALTER_TABLE_PROPERTIES: (model.AlterTablePropertiesEntry, (Form(_read_properties, _write_properties),)),
}
"""For each type of an entry: its class, and the forms of its versions from 1."""

TYPE_OF_ENTRY: Final = {entry: kind for kind, (entry, _) in ENTRIES.items()}
UPDATE: Final = frozenset(kind.value for kind in ENTRIES)
UPDATE_1: Final = UPDATE - {TypeId.ALTER_TABLE_PROPERTIES.value}
"""What protocol 1 knows."""
