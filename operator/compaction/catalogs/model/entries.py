"""Entries of the update log: each changes one thing; a version is a list of them (docs/design/catalogs.md#entries)."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.catalogs.model.descriptors import Columns, Index, SchemaContents, SystemView, Table, TableColumn, Zone


@dataclass(frozen=True, slots=True)
class NewZoneEntry:
    """A zone appears."""

    zone: Zone


@dataclass(frozen=True, slots=True)
class AlterZoneEntry:
    """A zone is replaced by another with its id."""

    zone: Zone


@dataclass(frozen=True, slots=True)
class DropZoneEntry:
    """A zone disappears."""

    id: int


@dataclass(frozen=True, slots=True)
class SetDefaultZoneEntry:
    """Tables that name no zone are in this one from now on."""

    id: int


@dataclass(frozen=True, slots=True)
class NewSchemaEntry:
    """A schema appears, as a rule empty."""

    contents: SchemaContents


@dataclass(frozen=True, slots=True)
class DropSchemaEntry:
    """A schema disappears; entries before it drop what it holds."""

    id: int


@dataclass(frozen=True, slots=True)
class NewTableEntry:
    """A table appears; its primary key index is an entry of its own."""

    table: Table


@dataclass(frozen=True, slots=True)
class DropTableEntry:
    """A table disappears; entries before it remove its indexes."""

    id: int


@dataclass(frozen=True, slots=True)
class RenameTableEntry:
    """A table gets another name."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class AlterTablePropertiesEntry:
    """Properties of a table that are not None replace its own."""

    id: int
    stale_rows_fraction: float | None
    min_stale_rows_count: int | None


@dataclass(frozen=True, slots=True)
class NewColumnsEntry:
    """A version of the table's columns with these after the others; their ids are assigned when it is applied."""

    columns: Columns
    table_id: int


@dataclass(frozen=True, slots=True)
class AlterColumnEntry:
    """A version of the table's columns with this in the place of the one of its name, whose id it gets."""

    column: TableColumn
    table_id: int


@dataclass(frozen=True, slots=True)
class DropColumnsEntry:
    """A version of the table's columns without these names. `names`: sorted, each once."""

    table_id: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NewIndexEntry:
    """An index appears."""

    index: Index


@dataclass(frozen=True, slots=True)
class StartBuildingIndexEntry:
    """REGISTERED becomes BUILDING."""

    id: int


@dataclass(frozen=True, slots=True)
class MakeIndexAvailableEntry:
    """BUILDING becomes AVAILABLE."""

    id: int


@dataclass(frozen=True, slots=True)
class DropIndexEntry:
    """AVAILABLE becomes STOPPING: the index is still in the catalog, its name is free."""

    id: int


@dataclass(frozen=True, slots=True)
class RemoveIndexEntry:
    """An index disappears."""

    id: int


@dataclass(frozen=True, slots=True)
class RenameIndexEntry:
    """An index gets another name."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class NewSystemViewEntry:
    """A system view appears, or takes the place of the one of its name."""

    view: SystemView


@dataclass(frozen=True, slots=True)
class AdvanceIdsEntry:
    """The generator of object ids moves by `delta`."""

    delta: int


Entry = (
    NewZoneEntry
    | AlterZoneEntry
    | DropZoneEntry
    | SetDefaultZoneEntry
    | NewSchemaEntry
    | DropSchemaEntry
    | NewTableEntry
    | DropTableEntry
    | RenameTableEntry
    | AlterTablePropertiesEntry
    | NewColumnsEntry
    | AlterColumnEntry
    | DropColumnsEntry
    | NewIndexEntry
    | StartBuildingIndexEntry
    | MakeIndexAvailableEntry
    | DropIndexEntry
    | RemoveIndexEntry
    | RenameIndexEntry
    | NewSystemViewEntry
    | AdvanceIdsEntry
)


@dataclass(frozen=True, slots=True)
class VersionedUpdate:
    """One version of the log: the entries that lead to it. It is active `delay` milliseconds after its timestamp."""

    version: int
    delay: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole version, in place of its update: nothing before it is kept. Lists are in the order of the value;
    `Catalog.snapshot` sorts them by id.
    """

    version: int
    activation_time: int
    last_id: int
    zones: tuple[Zone, ...]
    schemas: tuple[SchemaContents, ...]
    default_zone_id: int | None


Event = VersionedUpdate | Snapshot
