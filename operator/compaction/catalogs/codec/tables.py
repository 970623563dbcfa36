"""Tables (type 28). Positions of key columns count in the current list of columns; the model has their ids."""

from __future__ import annotations

from typing import Final

from compaction.catalogs.codec import columns
from compaction.catalogs.codec.columns import Versions
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, TypeId
from compaction.catalogs.model.descriptors import Columns, Table

_VERSIONS: Final = frozenset({TypeId.TABLE_SCHEMA_VERSIONS.value})
_SAME: Final = -1
"""Instead of a count: the table is colocated by its primary key."""


def read_table_1(reader: NestedReader) -> Table:
    id, name, updated = reader.number(), reader.text(), reader.discarded_timestamp()
    versions = columns.read_versions_1(reader)
    reader.residue.append(columns.read_columns_1(reader))
    return _read_rest(reader, id, name, updated, versions, properties=False)


def read_table_2(reader: NestedReader) -> Table:
    id, name, updated = reader.number(), reader.text(), reader.timestamp()
    versions: Versions = reader.object(_VERSIONS)
    reader.residue.append(columns.read_columns_2(reader))
    return _read_rest(reader, id, name, updated, versions, properties=False)


def read_table_3(reader: NestedReader) -> Table:
    id, name, updated = reader.number(), reader.text(), reader.timestamp()
    return _read_rest(reader, id, name, updated, reader.object(_VERSIONS), properties=True)


def _read_rest(
    reader: NestedReader, id: int, name: str, updated: int, versions: Versions, *, properties: bool
) -> Table:
    at = reader.at
    if not versions[0]:
        reader.corrupt(f"table {id} without columns", at)
    ids = [column.id for column in versions[0][-1]]
    if len(set(ids)) != len(ids):
        reader.corrupt(f"table {id} has columns of one id", at)
    profile, schema, index, zone = reader.text(), reader.number(), reader.number(), reader.number()
    key = _read_positions(reader, ids)
    if reader.data[reader.at]:
        colocation = _read_positions(reader, ids)
    else:
        reader.at += 1
        colocation = None
    return Table(
        id,
        schema,
        name,
        updated,
        index,
        zone,
        versions[1],
        versions[0],
        versions[2],
        key,
        colocation,
        profile,
        reader.double() if properties else 0.0,
        reader.varint() if properties else 0,
    )


def _read_positions(reader: NestedReader, ids: list[int]) -> tuple[int, ...]:
    at = reader.at
    positions = reader.int32s()
    if positions and not 0 <= min(positions) <= max(positions) < len(ids):
        reader.corrupt(f"a key of columns {positions[:8]} of {len(ids)}", at)
    return tuple([ids[position] for position in positions])


def write_table_1(writer: ObjectWriter, table: Table) -> None:
    _write_head(writer, table)
    columns.write_versions_1(writer, _versions(table))
    columns.write_columns_1(writer, _current(writer, table))
    _write_keys(writer, table)


def write_table_2(writer: ObjectWriter, table: Table) -> None:
    _write_head(writer, table)
    writer.object(TypeId.TABLE_SCHEMA_VERSIONS, _versions(table))
    columns.write_columns_2(writer, _current(writer, table))
    _write_keys(writer, table)


def write_table_3(writer: ObjectWriter, table: Table) -> None:
    _write_head(writer, table)
    writer.object(TypeId.TABLE_SCHEMA_VERSIONS, _versions(table))
    _write_keys(writer, table)
    writer.packed("d", table.stale_rows_fraction)
    writer.varint(table.min_stale_rows_count)


def _versions(table: Table) -> Versions:
    return table.versions, table.base, table.next_column_id


def _current(writer: ObjectWriter, table: Table) -> Columns:
    """The current columns once more, which versions 1 and 2 repeat; a foreign value may have others there."""
    return writer.instead(table.columns)


def _write_head(writer: ObjectWriter, table: Table) -> None:
    if not table.versions:
        raise ValueError(f"table {table.id} has no columns")
    writer.number(table.id)
    writer.text(table.name)
    writer.timestamp(table.update_timestamp)


def _write_keys(writer: ObjectWriter, table: Table) -> None:
    writer.text(table.storage_profile)
    writer.number(table.schema_id)
    writer.number(table.pk_index_id)
    writer.number(table.zone_id)
    positions = {column.id: position for position, column in enumerate(table.columns)}
    missing = {*table.pk_column_ids, *table.colocated_by} - positions.keys()
    if missing:
        raise ValueError(f"table {table.id} has keys of columns {sorted(missing)} that it does not have")
    writer.int32s([positions[id] for id in table.pk_column_ids])
    if table.colocation_column_ids is None:
        writer.varint(_SAME)
    else:
        writer.int32s([positions[id] for id in table.colocation_column_ids])
