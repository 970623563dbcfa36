"""Descriptors: zones, schemas, tables, columns, indexes, system views (docs/design/catalogs.md#objects).

All are immutable; a change is a new descriptor, and what it does not touch is shared. `update_timestamp` is the hybrid
timestamp of the version that changed the object last, and the minimum before any version holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.catalogs.model.enums import Collation, ColumnType, ConsistencyMode, IndexKind, IndexStatus, ViewKind
from compaction.catalogs.model.values import Default

UNASSIGNED = -1
"""Id of a column that no table version holds yet, and of columns of system views."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Where and how often data is kept. `scale_up`, `scale_down`: seconds."""

    id: int
    name: str
    update_timestamp: int
    storage_profiles: tuple[str, ...]
    partitions: int
    replicas: int
    quorum_size: int
    auto_adjust: int
    scale_up: int
    scale_down: int
    filter: str
    consistency_mode: ConsistencyMode


@dataclass(frozen=True, slots=True)
class Schema:
    """A name space. Its tables, indexes and views are in the catalog, by id."""

    id: int
    name: str
    update_timestamp: int


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table version or of a system view."""

    id: int
    name: str
    type: ColumnType
    nullable: bool
    precision: int
    scale: int
    length: int
    default: Default


Columns = tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with all versions of its columns, oldest first; the last is the current one.

    `colocation_column_ids`: None when they are the columns of the primary key, which is not the same as an equal list
    that was asked for. Ids of columns are never reused; `next_column_id` is the next to assign.
    """

    id: int
    schema_id: int
    name: str
    update_timestamp: int
    pk_index_id: int
    zone_id: int
    base: int
    versions: tuple[Columns, ...]
    next_column_id: int
    pk_column_ids: tuple[int, ...]
    colocation_column_ids: tuple[int, ...] | None
    storage_profile: str
    stale_rows_fraction: float
    min_stale_rows_count: int

    @property
    def columns(self) -> Columns:
        return self.versions[-1]

    @property
    def latest_version(self) -> int:
        """Number of the current version of the columns."""
        return self.base + len(self.versions) - 1

    @property
    def colocated_by(self) -> tuple[int, ...]:
        """Ids of the columns that place a row."""
        return self.pk_column_ids if self.colocation_column_ids is None else self.colocation_column_ids

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    def column_by_id(self, id: int) -> Column | None:
        return next((column for column in self.columns if column.id == id), None)


@dataclass(frozen=True, slots=True)
class Index:
    """An index of a table. `collations` has one for each column of a sorted index, none for a hash index.

    Serializers before version 3 name columns: `column_ids` is None then, `column_names` has the names, and `resolved`
    turns one into the other.
    """

    kind: IndexKind
    id: int
    name: str
    update_timestamp: int
    table_id: int
    unique: bool
    status: IndexStatus
    created_with_table: bool
    column_ids: tuple[int, ...] | None
    collations: tuple[Collation, ...] = ()
    column_names: tuple[str, ...] | None = None

    @property
    def alive(self) -> bool:
        return self.status is not IndexStatus.STOPPING


@dataclass(frozen=True, slots=True)
class View:
    """A system view."""

    id: int
    schema_id: int
    name: str
    update_timestamp: int
    columns: Columns
    kind: ViewKind


@dataclass(frozen=True, slots=True)
class SchemaContents:
    """A schema with all that is in it, as entries and snapshots carry it."""

    schema: Schema
    tables: tuple[Table, ...] = ()
    indexes: tuple[Index, ...] = ()
    views: tuple[View, ...] = ()
