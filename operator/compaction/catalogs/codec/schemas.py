"""Schemas with their contents, and system views (types 24 and 27)."""

from __future__ import annotations

from typing import Final

from compaction.catalogs.codec import columns, indexes, tables
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId
from compaction.catalogs.model.descriptors import Schema, SchemaContents, SystemView, ViewKind

SCHEMA: Final = frozenset({TypeId.SCHEMA.value})
VIEW: Final = frozenset({TypeId.SYSTEM_VIEW.value})
TABLE: Final = frozenset({TypeId.TABLE.value})
_KIND: Final = tuple(ViewKind)


def read_schema_1(reader: NestedReader) -> SchemaContents:
    return SchemaContents(
        Schema(reader.number(), reader.text(), reader.discarded_timestamp()),
        tuple([tables.read_table_1(reader) for _ in range(reader.count())]),
        tuple([indexes.read_either_1(reader) for _ in range(reader.count())]),
        tuple([read_view_1(reader) for _ in range(reader.count())]),
    )


def read_schema_2(reader: NestedReader) -> SchemaContents:
    return SchemaContents(
        Schema(reader.number(), reader.text(), reader.timestamp()),
        reader.alike(TABLE),
        reader.objects(indexes.INDEX),
        reader.alike(VIEW),
    )


def write_schema_1(writer: ObjectWriter, contents: SchemaContents) -> None:
    _write_head(writer, contents.schema)
    writer.varint(len(contents.tables))
    for table in contents.tables:
        tables.write_table_1(writer, table)
    writer.varint(len(contents.indexes))
    for index in contents.indexes:
        indexes.write_either_1(writer, index)
    writer.varint(len(contents.views))
    for view in contents.views:
        write_view_1(writer, view)


def write_schema_2(writer: ObjectWriter, contents: SchemaContents) -> None:
    _write_head(writer, contents.schema)
    writer.alike(TypeId.TABLE, contents.tables)
    writer.varint(len(contents.indexes))
    for index in contents.indexes:
        writer.object(indexes.type_of(index), index)
    writer.alike(TypeId.SYSTEM_VIEW, contents.views)


def _write_head(writer: ObjectWriter, schema: Schema) -> None:
    writer.number(schema.id)
    writer.text(schema.name)
    writer.timestamp(schema.update_timestamp)


def read_view_1(reader: NestedReader) -> SystemView:
    id, schema, name = reader.number(), reader.number(), reader.text()
    return SystemView(id, schema, name, reader.discarded_timestamp(), columns.read_columns_1(reader), _kind(reader))


def read_view_2(reader: NestedReader) -> SystemView:
    id, schema, name = reader.number(), reader.number(), reader.text()
    return SystemView(id, schema, name, reader.timestamp(), columns.read_columns_2(reader), _kind(reader))


def _kind(reader: NestedReader) -> ViewKind:
    kind = reader.byte()
    if kind >= len(_KIND):
        reader.corrupt(f"{kind} is no kind of a system view", reader.at - 1)
    return _KIND[kind]


def write_view_1(writer: ObjectWriter, view: SystemView) -> None:
    _write_view(writer, view, columns.write_columns_1)


def write_view_2(writer: ObjectWriter, view: SystemView) -> None:
    _write_view(writer, view, columns.write_columns_2)


def _write_view(writer: ObjectWriter, view: SystemView, write_columns: columns.WriteColumns) -> None:
    writer.number(view.id)
    writer.number(view.schema_id)
    writer.text(view.name)
    writer.timestamp(view.update_timestamp)
    write_columns(writer, view.columns)
    writer.byte(view.kind)
