"""Values of the update log, decoded in protocols 1 and 2 and encoded in either, by the table of serializers."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from compaction.catalogs.codec import columns, indexes, schemas, tables, zones
from compaction.catalogs.codec.entry_forms import ENTRIES, TYPE_OF_ENTRY, UPDATE, UPDATE_1, Form
from compaction.catalogs.codec.primitives import NestedReader, ObjectWriter, Read, Trace, TypeId, Write
from compaction.catalogs.errors import CatalogValueError, SerializerTableError
from compaction.catalogs.model.descriptors import SchemaContents, Zone
from compaction.catalogs.model.entries import Entry, Event, Snapshot, VersionedUpdate

# The two values of the log: an update and a snapshot (types 17 and 16).


def read_update_1(reader: NestedReader) -> VersionedUpdate:
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


def read_update_2(reader: NestedReader) -> VersionedUpdate:
    return VersionedUpdate(reader.number(), reader.varint(), reader.objects(UPDATE))


def write_update_2(writer: ObjectWriter, update: VersionedUpdate) -> None:
    writer.number(update.version)
    writer.varint(update.delay)
    writer.varint(len(update.entries))
    for entry in update.entries:
        writer.object(TYPE_OF_ENTRY[type(entry)], entry)


def read_snapshot_1(reader: NestedReader) -> Snapshot:
    version, activation, last_id = reader.number(), reader.int64(), reader.number()
    found = tuple([zones.read_zone_1(reader) for _ in range(reader.count())])
    contents = tuple([schemas.read_schema_1(reader) for _ in range(reader.count())])
    return _snapshot(reader, version, activation, last_id, found, contents)


def read_snapshot_2(reader: NestedReader) -> Snapshot:
    version, activation, last_id = reader.number(), reader.int64(), reader.number()
    found: tuple[Zone, ...] = reader.alike(zones.ZONE)
    contents: tuple[SchemaContents, ...] = reader.alike(schemas.SCHEMA)
    return _snapshot(reader, version, activation, last_id, found, contents)


def _snapshot(
    reader: NestedReader,
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


# The table of serializers: type, version, the release that introduced it, and its two functions
# (docs/design/catalogs.md#serializers). A released serializer never changes; a new form is a new version.


@dataclass(frozen=True, slots=True)
class Serializer:
    """One version of the form of one type. `since`: the release of the reference that wrote it first."""

    type: TypeId
    version: int
    since: str
    read: Read
    write: Write


class SerializerTable:
    """Serializers by type and version. SerializerTableError when versions of a type are not 1, 2, 3, each once."""

    def __init__(self, serializers: Iterable[Serializer]) -> None:
        self.rows: Final = tuple(serializers)
        versions: defaultdict[TypeId, list[Serializer]] = defaultdict(list)
        for row in self.rows:
            if not row.since.strip():
                raise SerializerTableError(f"{row.type.name} {row.version}: the release that introduced it is blank")
            if row.version < 1:
                raise SerializerTableError(f"{row.type.name}: version {row.version} is not positive")
            versions[row.type].append(row)
        for kind, rows in versions.items():
            rows.sort(key=lambda row: row.version)
            numbers = [row.version for row in rows]
            if len(set(numbers)) != len(numbers):
                raise SerializerTableError(f"{kind.name}: a version is there twice: {numbers}")
            if numbers != list(range(1, len(rows) + 1)):
                raise SerializerTableError(f"{kind.name}: versions have to be 1, 2, 3 and so on: {numbers}")
        self.readers: Final[Mapping[int, Sequence[Read]]] = {
            kind.value: (_no_version, *(row.read for row in rows)) for kind, rows in versions.items()
        }
        self.writers: Final[Mapping[int, Sequence[Write]]] = {
            kind.value: (_no_version, *(row.write for row in rows)) for kind, rows in versions.items()
        }

    def latest(self, kind: TypeId) -> int:
        """The newest version of a type. KeyError when there is none."""
        return len(self.readers[kind]) - 1


def _no_version(*_: object) -> NoReturn:
    raise AssertionError("versions begin with 1")


RELEASES: Final = ("3.0.0", "3.1.0", "3.2.0")
"""Releases that introduced versions 1, 2 and 3."""

_OBJECTS: Final[dict[TypeId, tuple[Form, ...]]] = {
    TypeId.SNAPSHOT: (
        Form(read_snapshot_1, write_snapshot_1),
        Form(read_snapshot_2, write_snapshot_2),
    ),
    TypeId.VERSIONED_UPDATE: (
        Form(read_update_1, write_update_1),
        Form(read_update_2, write_update_2),
    ),
    TypeId.HASH_INDEX: (
        Form(indexes.read_hash_1, indexes.write_named),
        Form(indexes.read_hash_2, indexes.write_named),
        Form(indexes.read_hash_3, indexes.write_ids),
    ),
    TypeId.SORTED_INDEX: (
        Form(indexes.read_sorted_1, indexes.write_named),
        Form(indexes.read_sorted_2, indexes.write_named),
        Form(indexes.read_sorted_3, indexes.write_ids),
    ),
    TypeId.SCHEMA: (
        Form(schemas.read_schema_1, schemas.write_schema_1),
        Form(schemas.read_schema_2, schemas.write_schema_2),
    ),
    TypeId.STORAGE_PROFILE: (
        Form(zones.read_profile, zones.write_profile),
        Form(zones.read_profile, zones.write_profile),
    ),
    TypeId.STORAGE_PROFILES: (
        Form(zones.read_profiles_1, zones.write_profiles_1),
        Form(zones.read_profiles_2, zones.write_profiles_2),
    ),
    TypeId.SYSTEM_VIEW: (
        Form(schemas.read_view_1, schemas.write_view_1),
        Form(schemas.read_view_2, schemas.write_view_2),
    ),
    TypeId.TABLE: (
        Form(tables.read_table_1, tables.write_table_1),
        Form(tables.read_table_2, tables.write_table_2),
        Form(tables.read_table_3, tables.write_table_3),
    ),
    TypeId.TABLE_COLUMN: (
        Form(columns.read_column_1, columns.write_column_1),
        Form(columns.read_column_1, columns.write_column_1),
        Form(columns.read_column_3, columns.write_column_3),
    ),
    TypeId.TABLE_VERSION: (
        Form(columns.read_columns_1, columns.write_columns_1),
        Form(columns.read_columns_2, columns.write_columns_2),
    ),
    TypeId.TABLE_SCHEMA_VERSIONS: (
        Form(columns.read_versions_1, columns.write_versions_1),
        Form(columns.read_versions_2, columns.write_versions_2),
        Form(columns.read_versions_3, columns.write_versions_3),
    ),
    TypeId.ZONE: (
        Form(zones.read_zone_1, zones.write_zone_1),
        Form(zones.read_zone_2, zones.write_zone_2),
    ),
}
_FORMS: Final = {**{kind: forms for kind, (_, forms) in ENTRIES.items()}, **_OBJECTS}
_SINCE: Final = {TypeId.ALTER_TABLE_PROPERTIES: RELEASES[2:]}
"""Types that the first release did not have."""

SERIALIZERS: Final = SerializerTable(
    Serializer(kind, version, since, form.read, form.write)
    for kind, forms in sorted(_FORMS.items())
    for version, (form, since) in enumerate(zip(forms, _SINCE.get(kind, RELEASES), strict=False), 1)
)
"""Everything that is read and written."""


# Values of the update log: decode protocols 1 and 2, encode either; and the exact bytes again of what was decoded.

PROTOCOL_1: Final = 1
PROTOCOL_2: Final = 2
_EVENTS: Final = frozenset({TypeId.SNAPSHOT.value, TypeId.VERSIONED_UPDATE.value})


@dataclass(frozen=True, slots=True)
class Decoded:
    """An event, and what else its bytes held: enough to write them again as they were."""

    event: Event
    protocol: int
    headers: tuple[int, ...]
    residue: tuple[object, ...]

    def encode(self) -> bytes:
        """The bytes that were decoded."""
        return _encode(self.event, self.protocol, Trace(self.headers, self.residue))


def decode(data: bytes, name: str) -> Event:
    """The update or snapshot of a value. `name` is the file or key, for errors.

    Raises CorruptCatalogValueError for a damaged, truncated or overlong value, UnsupportedCatalogValueError for one
    of a protocol, type or version that is not known. Memory is bounded by the size of the value.
    """
    event, _ = _decode(data, name)
    return event


def decode_exact(data: bytes, name: str) -> Decoded:
    """As `decode`, with what the event itself does not keep."""
    event, reader = _decode(data, name)
    return Decoded(event, data[0], tuple(reader.headers), tuple(reader.residue))


def _decode(data: bytes, name: str) -> tuple[Event, NestedReader]:
    reader = NestedReader(data, name, SERIALIZERS.readers)
    try:
        protocol = data[0] | data[1] << 8
        reader.at = 2
        if protocol == PROTOCOL_2:
            event: Event = reader.object(_EVENTS)
        elif protocol == PROTOCOL_1:
            number = data[2] | data[3] << 8
            if number not in _EVENTS:
                reader.unexpected(number, 2)
            reader.at = 4
            event = reader.serializers[number][1](reader)
        else:
            reader.unsupported(f"protocol {protocol}", 0)
    except (IndexError, struct.error):
        reader.corrupt(f"the value ends after {len(data)} bytes, in the middle of an object")
    if reader.at != len(data):
        reader.corrupt(f"{len(data) - reader.at} bytes follow the value")
    return event, reader


def encode(event: Event, protocol: int = PROTOCOL_2) -> bytes:
    """The value of an event, with the newest serializers of a protocol. Lists are written in the order they have.

    Raises CatalogValueError when the protocol cannot hold the event.
    """
    return _encode(event, protocol, None)


def _encode(event: Event, protocol: int, trace: Trace | None) -> bytes:
    writer = ObjectWriter(SERIALIZERS.writers, trace)
    kind = TypeId.SNAPSHOT if isinstance(event, Snapshot) else TypeId.VERSIONED_UPDATE
    try:
        writer.packed("h", protocol)
        if protocol == PROTOCOL_1:
            writer.packed("h", kind)
            writer.serializers[kind][1](writer, event)
        else:
            writer.object(kind, event)
    except (ValueError, OverflowError, struct.error) as error:
        raise CatalogValueError(str(error)) from error
    return bytes(writer.out)
