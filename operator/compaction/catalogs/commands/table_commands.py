"""Commands of tables and of their columns (docs/design/catalogs.md#tables)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from compaction.catalogs.codec.primitives import text_order
from compaction.catalogs.commands.command import (
    CheckedCommand,
    ColumnSpec,
    Context,
    InSchema,
    OnExisting,
    require_constant,
    require_free,
    require_known_function,
    require_legal_default,
    require_name,
    require_once,
    require_possible_change,
    require_stored,
    require_types,
    schema_of,
    table_of,
    zone_of,
)
from compaction.catalogs.commands.zone_commands import lazy_default_zone
from compaction.catalogs.errors import CatalogValidationError, NoStorageProfileError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import (
    MINIMUM,
    NULL,
    Collation,
    ColumnType,
    Default,
    Index,
    IndexKind,
    IndexStatus,
    Table,
    TableColumn,
    Zone,
)
from compaction.catalogs.model.entries import AdvanceIdsEntry, Entry

# Commands of tables (docs/design/catalogs.md#tables).

STALE_ROWS_FRACTION: Final = 0.2
MIN_STALE_ROWS_COUNT: Final = 500


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """Columns of a key; with collations its index is sorted. `name` of the index: None for `<table>_PK`."""

    columns: tuple[str, ...]
    kind: IndexKind = IndexKind.HASH
    collations: tuple[Collation, ...] = ()
    name: str | None = None

    def __post_init__(self) -> None:
        require_types(self)


def _require_properties(fraction: float | None, count: int | None) -> None:
    if fraction is not None and not (math.isfinite(fraction) and 0 <= fraction <= 1):
        raise CatalogValidationError(f"the fraction of stale rows {fraction} is out of range 0-1")
    if count is not None and count < 0:
        raise CatalogValidationError(f"the least count of stale rows {count} is negative")


@dataclass(frozen=True, slots=True)
class CreateTable(InSchema):
    """A table with the index of its primary key. Without a zone it is in the default zone, which the first such table
    creates.
    """

    _kind = "table"
    columns: tuple[ColumnSpec, ...]
    key: PrimaryKey
    colocation: tuple[str, ...] | None = None
    zone: str | None = None
    storage_profile: str | None = None
    if_not_exists: bool = False
    stale_rows_fraction: float | None = None
    min_stale_rows_count: int | None = None

    def _require_legal(self) -> None:
        if not self.columns:
            raise CatalogValidationError(f"table {self.name} has no columns")
        require_once(column.name for column in self.columns)
        require_stored(self.columns)
        self._require_key()
        _require_properties(self.stale_rows_fraction, self.min_stale_rows_count)

    def _require_key(self) -> None:
        key = self.key
        if not key.columns:
            raise CatalogValidationError(f"table {self.name} has no primary key")
        require_once(key.columns)
        if key.kind is IndexKind.SORTED and len(key.collations) != len(key.columns):
            raise CatalogValidationError(f"table {self.name}: each column of a sorted primary key needs a collation")
        columns = {column.name: column for column in self.columns}
        for name in key.columns:
            if name not in columns:
                raise CatalogValidationError(f"column {name} of the primary key is no column of table {self.name}")
            if columns[name].nullable:
                raise CatalogValidationError(f"column {name} of the primary key of table {self.name} is nullable")
        for column in self.columns:
            if column.name in key.columns:
                require_known_function(column.name, column.type, column.default)
            else:
                require_constant(column.name, column.default)
        if self.colocation is not None:
            if not self.colocation:
                raise CatalogValidationError(f"table {self.name} is colocated by no column")
            require_once(self.colocation)
            for name in self.colocation:
                if name not in key.columns:
                    raise CatalogValidationError(f"column {name} that places rows is not part of the primary key")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        schema = schema_of(catalog, self.schema)
        if self.if_not_exists and catalog.table(schema, self.name) is not None:
            return ()
        require_free(catalog, schema, self.name)
        id = catalog.last_id
        zone, lazy = self._zone(context, id + 2)
        profile = self._profile(zone)
        index_name = self.key.name or f"{self.name}_PK"
        require_free(catalog, schema, index_name)
        columns = tuple(replace(spec.column(), id=number) for number, spec in enumerate(self.columns))
        ids = {column.name: column.id for column in columns}
        key = tuple(ids[name] for name in self.key.columns)
        fraction, count = self.stale_rows_fraction, self.min_stale_rows_count
        table = Table(
            id,
            schema.id,
            self.name,
            MINIMUM,
            id + 1,
            zone.id,
            1,
            (columns,),
            len(columns),
            key,
            key if self.colocation is None else tuple(ids[name] for name in self.colocation),
            profile,
            STALE_ROWS_FRACTION if fraction is None else fraction,
            MIN_STALE_ROWS_COUNT if count is None else count,
        )
        kind, order = self.key.kind, self.key.collations if self.key.kind is IndexKind.SORTED else ()
        index = Index(kind, id + 1, index_name, MINIMUM, id, True, IndexStatus.AVAILABLE, True, key, order)
        return *lazy, model.NewTableEntry(table), model.NewIndexEntry(index), AdvanceIdsEntry(3 if lazy else 2)

    def _zone(self, context: Context, next_id: int) -> tuple[Zone, tuple[Entry, ...]]:
        """The zone, and the entries that make it when it is the first one."""
        if self.zone is not None:
            return zone_of(context.catalog, self.zone), ()
        zone = context.catalog.default_zone
        if zone is not None:
            return zone, ()
        zone = lazy_default_zone(context, next_id)
        return zone, (model.NewZoneEntry(zone), model.SetDefaultZoneEntry(zone.id))

    def _profile(self, zone: Zone) -> str:
        if self.storage_profile is None:
            if not zone.storage_profiles:
                raise NoStorageProfileError(f"zone {zone.name} has no storage profile")
            return zone.storage_profiles[0]
        if self.storage_profile not in zone.storage_profiles:
            raise CatalogValidationError(f"zone {zone.name} has no storage profile {self.storage_profile}")
        return self.storage_profile


@dataclass(frozen=True, slots=True)
class _ExistingTable(InSchema, OnExisting[Table]):
    """A command on a table."""

    _kind = "table"

    def _found(self, catalog: Catalog) -> Table:
        return table_of(catalog, self.schema, self.name)[1]


@dataclass(frozen=True, slots=True)
class DropTable(_ExistingTable):
    """A table with its indexes. Those that are stopping already are removed when no transaction needs them."""

    if_exists: bool = False

    def _changes(self, context: Context, table: Table, /) -> tuple[Entry, ...]:
        indexes = [index for index in context.catalog.indexes_of(table.id) if index.alive]
        return (*(model.RemoveIndexEntry(index.id) for index in indexes), model.DropTableEntry(table.id))


@dataclass(frozen=True, slots=True)
class RenameTable(_ExistingTable):
    """Another name for a table; the index of its primary key follows. The new names have to be free, even when there
    is no such table.
    """

    new_name: str
    if_exists: bool = False

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        schema = catalog.schema(self.schema)
        if schema is not None:
            require_free(catalog, schema, self.new_name)
        return _ExistingTable.entries(self, context)

    def _changes(self, context: Context, table: Table, /) -> tuple[Entry, ...]:
        catalog = context.catalog
        require_free(catalog, schema_of(catalog, self.schema), f"{self.new_name}_PK")
        return (
            model.RenameTableEntry(table.id, self.new_name),
            model.RenameIndexEntry(table.pk_index_id, f"{self.new_name}_PK"),
        )


@dataclass(frozen=True, slots=True)
class SetTableProperties(_ExistingTable):
    """A change of the thresholds from which statistics of a table are stale; None leaves a property as it is."""

    stale_rows_fraction: float | None = None
    min_stale_rows_count: int | None = None
    if_exists: bool = False

    def _require_legal(self) -> None:
        _require_properties(self.stale_rows_fraction, self.min_stale_rows_count)

    def _changes(self, context: Context, table: Table, /) -> tuple[Entry, ...]:
        if self.stale_rows_fraction is None and self.min_stale_rows_count is None:
            return ()
        return (model.AlterTablePropertiesEntry(table.id, self.stale_rows_fraction, self.min_stale_rows_count),)


# Commands that change the columns of a table (docs/design/catalogs.md#columns).


@dataclass(frozen=True, slots=True)
class _ColumnsOfTable(CheckedCommand, OnExisting[Table]):
    """A command on columns of a table."""

    _lenient = "if_table_exists"
    schema: str
    table: str

    def _found(self, catalog: Catalog) -> Table:
        return table_of(catalog, self.schema, self.table)[1]


@dataclass(frozen=True, slots=True)
class AddColumns(_ColumnsOfTable):
    """Columns after the others. One that is not nullable needs a default for the rows that are there."""

    columns: tuple[ColumnSpec, ...]
    if_table_exists: bool = False
    if_not_exists: bool = False

    def _require_legal(self) -> None:
        if not self.columns:
            raise CatalogValidationError(f"table {self.table}: no columns are named")
        require_once(column.name for column in self.columns)
        require_stored(self.columns)
        for column in self.columns:
            require_constant(column.name, column.default)
            if not column.nullable and column.default in (None, NULL):
                raise CatalogValidationError(f"column {column.name} is not nullable and has no default")

    def _changes(self, context: Context, table: Table, /) -> tuple[Entry, ...]:
        added: list[TableColumn] = []
        for column in self.columns:
            if table.column(column.name) is None:
                added.append(column.column())
            elif not self.if_not_exists:
                raise CatalogValidationError(f"table {self.table} has a column {column.name} already")
        return (model.NewColumnsEntry(tuple(added), table.id),) if added else ()


@dataclass(frozen=True, slots=True)
class DropColumns(_ColumnsOfTable):
    """Columns that neither the primary key nor an alive index needs."""

    columns: tuple[str, ...]
    if_table_exists: bool = False
    if_exists: bool = False

    def _require_legal(self) -> None:
        if not self.columns:
            raise CatalogValidationError(f"table {self.table}: no columns are named")
        for column in self.columns:
            require_name(column, "column")

    def _changes(self, context: Context, table: Table, /) -> tuple[Entry, ...]:
        dropped: set[str] = set()
        for name in self.columns:
            column = table.column(name)
            if column is None:
                if self.if_exists:
                    continue
                raise CatalogValidationError(f"table {self.table} has no column {name}")
            if column.id in table.pk_column_ids:
                raise CatalogValidationError(f"column {name} belongs to the primary key and cannot be dropped")
            users = [
                index.name
                for index in context.catalog.indexes_of(table.id)
                if index.alive and column.id in (index.column_ids or ())
            ]
            if users:
                raise CatalogValidationError(f"column {name} cannot be dropped: {', '.join(users)} indexes it")
            dropped.add(name)
        return (model.DropColumnsEntry(table.id, tuple(sorted(dropped, key=text_order))),) if dropped else ()


@dataclass(frozen=True, slots=True)
class AlterColumn(_ColumnsOfTable):
    """Another type, default or nullability of a column; None leaves each as it is. `default` NULL drops the default."""

    column: str
    type: ColumnType | None = None
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    nullable: bool | None = None
    default: Default = None
    if_table_exists: bool = False

    def _changes(self, context: Context, table: Table, /) -> tuple[Entry, ...]:
        before = table.column(self.column)
        if before is None:
            raise CatalogValidationError(f"table {self.table} has no column {self.column}")
        self._require_possible(table, before)
        require_legal_default(self.column, before.type if self.type is None else self.type, self.default)
        after = replace(
            before,
            type=before.type if self.type is None else self.type,
            precision=before.precision if self.precision is None else self.precision,
            scale=before.scale if self.scale is None else self.scale,
            length=before.length if self.length is None else self.length,
            nullable=before.nullable if self.nullable is None else self.nullable,
            default=before.default if self.default is None else self.default,
        )
        return () if after == before else (model.AlterColumnEntry(after, table.id),)

    def _require_possible(self, table: Table, before: TableColumn) -> None:
        if before.id in table.pk_column_ids:
            for of, value, current in (
                ("type", self.type, before.type),
                ("precision", self.precision, before.precision),
                ("scale", self.scale, before.scale),
            ):
                if value is not None and value != current:
                    raise CatalogValidationError(f"column {self.column} belongs to the primary key: its {of} is fixed")
            if self.nullable:
                raise CatalogValidationError(f"column {self.column} belongs to the primary key: it is never null")
            require_known_function(self.column, before.type, self.default)
        else:
            require_constant(self.column, self.default)
        require_possible_change(before, self.type, self.precision, self.scale, self.length)
        if self.nullable is False and before.nullable:
            raise CatalogValidationError(f"column {self.column} may hold nulls and cannot become not nullable")
