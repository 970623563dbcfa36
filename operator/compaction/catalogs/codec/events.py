"""The two values of the log: an update and a snapshot (types 17 and 16)."""

from __future__ import annotations

from compaction.catalogs.codec import schemas, zones
from compaction.catalogs.codec.entries import TYPE_OF_ENTRY, UPDATE, UPDATE_1
from compaction.catalogs.codec.nesting import ObjectReader, ObjectWriter
from compaction.catalogs.codec.types import TypeId
from compaction.catalogs.model.descriptors import SchemaContents, Zone
from compaction.catalogs.model.entries import Entry, Snapshot, VersionedUpdate


def read_update_1(reader: ObjectReader) -> VersionedUpdate:
    """Types of entries are varints, and there are no versions."""
    version, delay = reader.number(), reader.varint()
    entries: list[Entry] = []
    for _ in range(reader.count()):
        at = reader.at
        number = reader.number()
        if number not in UPDATE_1:
            reader.unexpected(number, at)
        entries.append(reader.serializers[number][1](reader))
    return VersionedUpdate(version, delay, tuple(entries))


def write_update_1(writer: ObjectWriter, update: VersionedUpdate) -> None:
    writer.number(update.version)
    writer.varint(update.delay)
    writer.varint(len(update.entries))
    for entry in update.entries:
        kind = TYPE_OF_ENTRY[type(entry)]
        if kind not in UPDATE_1:
            raise ValueError(f"protocol 1 has no {kind.name}")
        writer.varint(kind)
        writer.serializers[kind][1](writer, entry)


def read_update_2(reader: ObjectReader) -> VersionedUpdate:
    return VersionedUpdate(reader.number(), reader.varint(), reader.objects(UPDATE))


def write_update_2(writer: ObjectWriter, update: VersionedUpdate) -> None:
    writer.number(update.version)
    writer.varint(update.delay)
    writer.varint(len(update.entries))
    for entry in update.entries:
        writer.object(TYPE_OF_ENTRY[type(entry)], entry)


def read_snapshot_1(reader: ObjectReader) -> Snapshot:
    version, activation, last_id = reader.number(), reader.int64(), reader.number()
    found = tuple([zones.read_zone_1(reader) for _ in range(reader.count())])
    contents = tuple([schemas.read_schema_1(reader) for _ in range(reader.count())])
    return _snapshot(reader, version, activation, last_id, found, contents)


def read_snapshot_2(reader: ObjectReader) -> Snapshot:
    version, activation, last_id = reader.number(), reader.int64(), reader.number()
    found: tuple[Zone, ...] = reader.alike(zones.ZONE)
    contents: tuple[SchemaContents, ...] = reader.alike(schemas.SCHEMA)
    return _snapshot(reader, version, activation, last_id, found, contents)


def _snapshot(
    reader: ObjectReader,
    version: int,
    activation: int,
    last_id: int,
    found: tuple[Zone, ...],
    contents: tuple[SchemaContents, ...],
) -> Snapshot:
    default = reader.number() if reader.boolean() else None
    return Snapshot(version, activation, last_id, found, contents, default)


def write_snapshot_1(writer: ObjectWriter, snapshot: Snapshot) -> None:
    _write_head(writer, snapshot)
    writer.varint(len(snapshot.zones))
    for zone in snapshot.zones:
        zones.write_zone_1(writer, zone)
    writer.varint(len(snapshot.schemas))
    for contents in snapshot.schemas:
        schemas.write_schema_1(writer, contents)
    _write_default(writer, snapshot)


def write_snapshot_2(writer: ObjectWriter, snapshot: Snapshot) -> None:
    _write_head(writer, snapshot)
    writer.alike(TypeId.ZONE, snapshot.zones)
    writer.alike(TypeId.SCHEMA, snapshot.schemas)
    _write_default(writer, snapshot)


def _write_head(writer: ObjectWriter, snapshot: Snapshot) -> None:
    writer.number(snapshot.version)
    writer.packed("q", snapshot.activation_time)
    writer.number(snapshot.last_id)


def _write_default(writer: ObjectWriter, snapshot: Snapshot) -> None:
    writer.boolean(snapshot.default_zone_id is not None)
    if snapshot.default_zone_id is not None:
        writer.number(snapshot.default_zone_id)
