"""Columns, the versions of a table's columns, and their defaults (types 29 to 31)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Final, cast

from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId, ValueReader, ValueWriter
from compaction.catalogs.model.descriptors import (
    NULL,
    UNASSIGNED,
    Columns,
    ColumnType,
    Constant,
    Date,
    DateTime,
    Decimal,
    Default,
    DurationValue,
    Function,
    Period,
    TableColumn,
    Time,
    Timestamp,
    Uuid,
    Value,
    fault_of,
)

# Defaults of columns: constants of every type, and functions (docs/design/catalogs.md#primitives).

COLUMN_TYPES: Final = {kind.value: kind for kind in ColumnType}
_NO_DEFAULT: Final = 0xFF
_CONSTANT: Final = 0
_FUNCTION: Final = 1


def column_type(reader: ValueReader, number: int, at: int) -> ColumnType:
    kind = COLUMN_TYPES.get(number)
    if kind is None:
        reader.corrupt(f"{number} is no type of a column", at)
    return kind


def read_default(reader: ValueReader) -> Default:
    """A default: none, a constant, or a function."""
    at = reader.at
    tag = reader.byte()
    if tag == _CONSTANT:
        number = reader.byte()
        if number == 0:
            return NULL
        kind = column_type(reader, number, at + 1)
        read = _READ.get(kind)
        if read is None:
            reader.corrupt(f"a constant of the type {kind.name}", at + 1)
        start = reader.at
        constant = Constant(kind, read(reader))
        fault = fault_of(constant)
        if fault is not None:
            reader.corrupt(fault, start)
        return constant
    if tag == _NO_DEFAULT:
        return None
    if tag != _FUNCTION:
        reader.corrupt(f"{tag} is no kind of a default", at)
    return Function(reader.text())


def write_default(writer: ValueWriter, default: Default) -> None:
    if default is None:
        writer.byte(_NO_DEFAULT)
    elif isinstance(default, Function):
        writer.byte(_FUNCTION)
        writer.text(default.name)
    else:
        writer.byte(_CONSTANT)
        writer.byte(default.type)
        write = _WRITE.get(default.type)
        if write is not None:
            write(writer, default.value)
        elif default.type is not ColumnType.NULL:
            raise ValueError(f"no constant has the type {default.type.name}")


_Form = tuple[Callable[[ValueReader], Value], Callable[[ValueWriter, Value], None]]


def _fixed(form: str) -> _Form:
    """One fixed number."""
    unpack = struct.Struct("<" + form)

    def read(reader: ValueReader) -> Value:
        (value,) = unpack.unpack_from(reader.data, reader.at)
        reader.at += unpack.size
        return int(value)

    def write(writer: ValueWriter, value: Value) -> None:
        writer.raw(unpack.pack(value))

    return read, write


def _numbers(kind: Callable[..., Value], *forms: str) -> _Form:
    """A tuple of fixed numbers, in a form for each part that is read at once."""
    parts = [struct.Struct("<" + form) for form in forms]
    whole = "".join(forms)

    def read(reader: ValueReader) -> Value:
        values: list[int] = []
        for part in parts:
            values += part.unpack_from(reader.data, reader.at)
            reader.at += part.size
        return kind(*values)

    def write(writer: ValueWriter, value: Value) -> None:
        writer.packed(whole, *cast(tuple[int, ...], value))

    return read, write


_read_date, _write_date = _numbers(Date, "ihh")
_read_time, _write_time = _numbers(Time, "bbbi")


def _read_date_time(reader: ValueReader) -> DateTime:
    return DateTime(cast(Date, _read_date(reader)), cast(Time, _read_time(reader)))


def _write_date_time(writer: ValueWriter, value: Value) -> None:
    both = cast(DateTime, value)
    _write_date(writer, both.date)
    _write_time(writer, both.time)


def _read_decimal(reader: ValueReader) -> Decimal:
    (scale,) = struct.unpack_from("<h", reader.data, reader.at)
    at = reader.at
    reader.at += 2
    data = reader.raw(reader.int32())
    unscaled = int.from_bytes(data, "big", signed=True)
    if data != _big_endian(unscaled):
        reader.corrupt("a decimal in more or fewer bytes than it has to have", at)
    return Decimal(scale, unscaled)


def _big_endian(number: int) -> bytes:
    """Two's complement in as few bytes as possible, one at least."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _write_decimal(writer: ValueWriter, value: Value) -> None:
    decimal = cast(Decimal, value)
    data = _big_endian(decimal.unscaled)
    writer.packed("hi", decimal.scale, len(data))
    writer.raw(data)


def _write_boolean(writer: ValueWriter, value: Value) -> None:
    writer.boolean(bool(value))


def _write_text(writer: ValueWriter, value: Value) -> None:
    writer.text(cast(str, value))


def _read_bytes(reader: ValueReader) -> bytes:
    return reader.raw(reader.int32())


def _write_bytes(writer: ValueWriter, value: Value) -> None:
    data = cast(bytes, value)
    writer.packed("i", len(data))
    writer.raw(data)


_FORMS: Final[dict[ColumnType, _Form]] = {
    ColumnType.BOOLEAN: (ValueReader.boolean, _write_boolean),
    ColumnType.INT8: _fixed("b"),
    ColumnType.INT16: _fixed("h"),
    ColumnType.INT32: _fixed("i"),
    ColumnType.INT64: _fixed("q"),
    ColumnType.FLOAT: _fixed("I"),
    ColumnType.DOUBLE: _fixed("Q"),
    ColumnType.DECIMAL: (_read_decimal, _write_decimal),
    ColumnType.DATE: (_read_date, _write_date),
    ColumnType.TIME: (_read_time, _write_time),
    ColumnType.DATETIME: (_read_date_time, _write_date_time),
    ColumnType.TIMESTAMP: _numbers(Timestamp, "q", "i"),
    ColumnType.UUID: _numbers(Uuid, "q", "q"),
    ColumnType.STRING: (ValueReader.text, _write_text),
    ColumnType.BYTE_ARRAY: (_read_bytes, _write_bytes),
    ColumnType.PERIOD: _numbers(Period, "i", "i", "i"),
    ColumnType.DURATION: _numbers(DurationValue, "q", "i"),
}
_READ: Final = {kind: read for kind, (read, _) in _FORMS.items()}
_WRITE: Final = {kind: write for kind, (_, write) in _FORMS.items()}


# Columns, and the versions of a table's columns (types 29 to 31).

COLUMN: Final = frozenset({TypeId.TABLE_COLUMN.value})
VERSION: Final = frozenset({TypeId.TABLE_VERSION.value})

WriteColumns = Callable[[ObjectWriter, Columns], None]

Versions = tuple[tuple[Columns, ...], int, int]
"""Versions of columns, oldest first; the number of the first; the next id to assign."""


def read_column_3(reader: NestedReader) -> TableColumn:
    return _read_column(reader, reader.number())


def read_column_1(reader: NestedReader) -> TableColumn:
    """Versions 1 and 2: without an id."""
    return _read_column(reader, UNASSIGNED)


def _read_column(reader: NestedReader, id: int) -> TableColumn:
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
            return TableColumn(id, name, kind, head[1] == 1, head[2] - 1, head[3] - 1, head[4] - 1, default)
    number = reader.number()
    return TableColumn(
        id,
        name,
        COLUMN_TYPES.get(number) or column_type(reader, number, at),
        reader.boolean(),
        reader.number(),
        reader.number(),
        reader.number(),
        read_default(reader),
    )


def write_column_3(writer: ObjectWriter, column: TableColumn) -> None:
    writer.number(column.id)
    write_column_1(writer, column)


def write_column_1(writer: ObjectWriter, column: TableColumn) -> None:
    writer.text(column.name)
    writer.varint(column.type)
    writer.boolean(column.nullable)
    writer.number(column.precision)
    writer.number(column.scale)
    writer.number(column.length)
    write_default(writer, column.default)


def read_columns_1(reader: NestedReader) -> Columns:
    return tuple([read_column_1(reader) for _ in range(reader.count())])


def write_columns_1(writer: ObjectWriter, columns: Columns) -> None:
    writer.varint(len(columns))
    for column in columns:
        write_column_1(writer, column)


def read_columns_2(reader: NestedReader) -> Columns:
    return reader.objects(COLUMN)


def write_columns_2(writer: ObjectWriter, columns: Columns) -> None:
    writer.objects(TypeId.TABLE_COLUMN, columns)


def read_versions_1(reader: NestedReader) -> Versions:
    at = reader.at
    versions = tuple([read_columns_1(reader) for _ in range(reader.count())])
    return _with_ids(reader, versions, at)


def write_versions_1(writer: ObjectWriter, versions: Versions) -> None:
    writer.varint(len(versions[0]))
    for columns in versions[0]:
        write_columns_1(writer, columns)
    writer.number(versions[1])


def read_versions_2(reader: NestedReader) -> Versions:
    at = reader.at
    return _with_ids(reader, reader.alike(VERSION), at)


def write_versions_2(writer: ObjectWriter, versions: Versions) -> None:
    writer.alike(TypeId.TABLE_VERSION, versions[0])
    writer.number(versions[1])


def read_versions_3(reader: NestedReader) -> Versions:
    return reader.alike(VERSION), reader.number(), reader.number()


def write_versions_3(writer: ObjectWriter, versions: Versions) -> None:
    write_versions_2(writer, versions)
    writer.number(versions[2])


def _with_ids(reader: NestedReader, versions: tuple[Columns, ...], at: int) -> Versions:
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
