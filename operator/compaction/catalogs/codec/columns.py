"""Columns, and the versions of a table's columns (types 29 to 31)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from compaction.catalogs.codec.constants import COLUMN_TYPES, column_type, read_default, write_default
from compaction.catalogs.codec.nesting import ObjectReader, ObjectWriter
from compaction.catalogs.codec.types import TypeId
from compaction.catalogs.model.descriptors import UNASSIGNED, Column, Columns
from compaction.catalogs.model.values import NULL

COLUMN: Final = frozenset({TypeId.TABLE_COLUMN.value})
VERSION: Final = frozenset({TypeId.TABLE_VERSION.value})

WriteColumns = Callable[[ObjectWriter, Columns], None]

Versions = tuple[tuple[Columns, ...], int, int]
"""Versions of columns, oldest first; the number of the first; the next id to assign."""


def read_column_3(reader: ObjectReader) -> Column:
    return _read_column(reader, reader.number())


def read_column_1(reader: ObjectReader) -> Column:
    """Versions 1 and 2: without an id."""
    return _read_column(reader, UNASSIGNED)


def _read_column(reader: ObjectReader, id: int) -> Column:
    name = reader.text()
    at = reader.at
    # As nearly all columns are: seven bytes for five small numbers and the beginning of the default.
    head = reader.data[at : at + 7]
    if len(head) == 7 and head.isascii() and head[1] < 2:
        kind = COLUMN_TYPES.get(head[0] - 1)
        if kind is not None:
            null = not head[5] and not head[6]
            reader.at = at + 7 if null else at + 5
            default = NULL if null else read_default(reader)
            return Column(id, name, kind, head[1] == 1, head[2] - 1, head[3] - 1, head[4] - 1, default)
    number = reader.number()
    return Column(
        id,
        name,
        COLUMN_TYPES.get(number) or column_type(reader, number, at),
        reader.boolean(),
        reader.number(),
        reader.number(),
        reader.number(),
        read_default(reader),
    )


def write_column_3(writer: ObjectWriter, column: Column) -> None:
    writer.number(column.id)
    write_column_1(writer, column)


def write_column_1(writer: ObjectWriter, column: Column) -> None:
    writer.text(column.name)
    writer.varint(column.type)
    writer.boolean(column.nullable)
    writer.number(column.precision)
    writer.number(column.scale)
    writer.number(column.length)
    write_default(writer, column.default)


def read_columns_1(reader: ObjectReader) -> Columns:
    return tuple([read_column_1(reader) for _ in range(reader.count())])


def write_columns_1(writer: ObjectWriter, columns: Columns) -> None:
    writer.varint(len(columns))
    for column in columns:
        write_column_1(writer, column)


def read_columns_2(reader: ObjectReader) -> Columns:
    return reader.objects(COLUMN)


def write_columns_2(writer: ObjectWriter, columns: Columns) -> None:
    writer.objects(TypeId.TABLE_COLUMN, columns)


def read_versions_1(reader: ObjectReader) -> Versions:
    at = reader.at
    versions = tuple([read_columns_1(reader) for _ in range(reader.count())])
    return _with_ids(reader, versions, at)


def write_versions_1(writer: ObjectWriter, versions: Versions) -> None:
    writer.varint(len(versions[0]))
    for columns in versions[0]:
        write_columns_1(writer, columns)
    writer.number(versions[1])


def read_versions_2(reader: ObjectReader) -> Versions:
    at = reader.at
    return _with_ids(reader, reader.alike(VERSION), at)


def write_versions_2(writer: ObjectWriter, versions: Versions) -> None:
    writer.alike(TypeId.TABLE_VERSION, versions[0])
    writer.number(versions[1])


def read_versions_3(reader: ObjectReader) -> Versions:
    return reader.alike(VERSION), reader.number(), reader.number()


def write_versions_3(writer: ObjectWriter, versions: Versions) -> None:
    write_versions_2(writer, versions)
    writer.number(versions[2])


def _with_ids(reader: ObjectReader, versions: tuple[Columns, ...], at: int) -> Versions:
    """Ids as the reference assigns them where none are stored: a name keeps its id from one version to the next, and
    gets a new one when it comes or returns.
    """
    result: list[Columns] = []
    known: dict[str, int] = {}
    following = 0
    for columns in versions:
        ids: dict[str, int] = {}
        for column in columns:
            if column.id != UNASSIGNED:
                reader.corrupt("columns with ids in versions of a table that have none", at)
            ids[column.name] = known.get(column.name, following)
            following += ids[column.name] == following
        result.append(tuple([replace(column, id=ids[column.name]) for column in columns]))
        known = ids
    return tuple(result), reader.number(), following
