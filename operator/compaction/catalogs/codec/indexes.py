"""Hash and sorted indexes (types 22 and 23). Versions 1 and 2 name columns, version 3 has their ids."""

from __future__ import annotations

from typing import Final

from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId
from compaction.catalogs.model.descriptors import Collation, Index, IndexKind, IndexStatus

INDEX: Final = frozenset({TypeId.HASH_INDEX.value, TypeId.SORTED_INDEX.value})
_STATUS: Final = tuple(IndexStatus)
_COLLATION: Final = tuple(Collation)


def type_of(index: Index) -> TypeId:
    return TypeId.HASH_INDEX if index.kind is IndexKind.HASH else TypeId.SORTED_INDEX


def _read(reader: NestedReader, kind: IndexKind, version: int) -> Index:
    id, name = reader.number(), reader.text()
    updated = reader.discarded_timestamp() if version == 1 else reader.timestamp()
    table, unique = reader.number(), reader.boolean()
    status = reader.byte()
    if status >= len(_STATUS):
        reader.corrupt(f"{status} is no status of an index", reader.at - 1)
    with_table = reader.boolean()
    ids: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    collations: tuple[Collation, ...] = ()
    if kind is IndexKind.HASH:
        if version == 3:
            ids = reader.int32s()
        else:
            names = reader.texts()
    elif version == 3:
        pairs = [(reader.number(), _collation(reader)) for _ in range(reader.count())]
        ids, collations = tuple([id for id, _ in pairs]), tuple([order for _, order in pairs])
    else:
        named = [(reader.text(), _collation(reader)) for _ in range(reader.count())]
        names, collations = tuple([name for name, _ in named]), tuple([order for _, order in named])
    return Index(kind, id, name, updated, table, unique, _STATUS[status], with_table, ids, collations, names)


def _collation(reader: NestedReader) -> Collation:
    number = reader.byte()
    if number >= len(_COLLATION):
        reader.corrupt(f"{number} is no collation", reader.at - 1)
    return _COLLATION[number]


def _write(writer: ObjectWriter, index: Index, version: int) -> None:
    writer.number(index.id)
    writer.text(index.name)
    writer.timestamp(index.update_timestamp)
    writer.number(index.table_id)
    writer.boolean(index.unique)
    writer.byte(index.status)
    writer.boolean(index.created_with_table)
    if version == 3:
        if index.column_ids is None:
            raise ValueError(f"index {index.id} names its columns; resolve the names against its table first")
        if index.kind is IndexKind.HASH:
            writer.int32s(index.column_ids)
            return
        writer.varint(len(index.column_ids))
        for id, collation in zip(index.column_ids, index.collations, strict=True):
            writer.number(id)
            writer.byte(collation)
        return
    if index.column_names is None:
        raise ValueError(f"index {index.id} has ids of columns, which serializer version {version} does not write")
    if index.kind is IndexKind.HASH:
        writer.texts(index.column_names)
        return
    writer.varint(len(index.column_names))
    for name, collation in zip(index.column_names, index.collations, strict=True):
        writer.text(name)
        writer.byte(collation)


def read_hash_1(reader: NestedReader) -> Index:
    return _read(reader, IndexKind.HASH, 1)


def read_hash_2(reader: NestedReader) -> Index:
    return _read(reader, IndexKind.HASH, 2)


def read_hash_3(reader: NestedReader) -> Index:
    return _read(reader, IndexKind.HASH, 3)


def read_sorted_1(reader: NestedReader) -> Index:
    return _read(reader, IndexKind.SORTED, 1)


def read_sorted_2(reader: NestedReader) -> Index:
    return _read(reader, IndexKind.SORTED, 2)


def read_sorted_3(reader: NestedReader) -> Index:
    return _read(reader, IndexKind.SORTED, 3)


def write_named(writer: ObjectWriter, index: Index) -> None:
    """Versions 1 and 2 of both kinds."""
    _write(writer, index, 2)


def write_ids(writer: ObjectWriter, index: Index) -> None:
    """Version 3 of both kinds."""
    _write(writer, index, 3)


def read_either_1(reader: NestedReader) -> Index:
    """As version 1 nests an index: a byte for the kind, then the payload."""
    kind = reader.byte()
    if kind > IndexKind.SORTED:
        reader.corrupt(f"{kind} is no kind of an index", reader.at - 1)
    return _read(reader, IndexKind(kind), 1)


def write_either_1(writer: ObjectWriter, index: Index) -> None:
    writer.byte(index.kind)
    write_named(writer, index)
