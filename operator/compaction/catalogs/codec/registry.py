"""The table of serializers: type, version, the release that introduced it, and its two functions
(docs/design/catalogs.md#serializers). A released serializer never changes; a new form is a new version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from compaction.catalogs.codec import columns, events, indexes, schemas, tables, zones
from compaction.catalogs.codec.entries import ENTRIES, Form
from compaction.catalogs.codec.nesting import ObjectReader, ObjectWriter, Read, Write
from compaction.catalogs.codec.types import TypeId
from compaction.catalogs.errors import SerializerTableError


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
            kind.value: (_no_reader, *(row.read for row in rows)) for kind, rows in versions.items()
        }
        self.writers: Final[Mapping[int, Sequence[Write]]] = {
            kind.value: (_no_writer, *(row.write for row in rows)) for kind, rows in versions.items()
        }

    def latest(self, kind: TypeId) -> int:
        """The newest version of a type. KeyError when there is none."""
        return len(self.readers[kind]) - 1


def _no_reader(reader: ObjectReader) -> NoReturn:
    raise AssertionError("versions begin with 1")


def _no_writer(writer: ObjectWriter, one: object) -> NoReturn:
    raise AssertionError("versions begin with 1")


RELEASES: Final = ("3.0.0", "3.1.0", "3.2.0")
"""Releases that introduced versions 1, 2 and 3."""

_OBJECTS: Final[dict[TypeId, tuple[Form, ...]]] = {
    TypeId.SNAPSHOT: (
        Form(events.read_snapshot_1, events.write_snapshot_1),
        Form(events.read_snapshot_2, events.write_snapshot_2),
    ),
    TypeId.VERSIONED_UPDATE: (
        Form(events.read_update_1, events.write_update_1),
        Form(events.read_update_2, events.write_update_2),
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
