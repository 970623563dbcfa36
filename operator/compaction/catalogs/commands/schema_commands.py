"""Commands of schemas, system views, and indexes with their life (docs/design/catalogs.md#indexes)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from compaction.catalogs.commands.command import (
    SYSTEM,
    SYSTEM_SCHEMAS,
    CheckedCommand,
    ColumnSpec,
    Context,
    InSchema,
    NamedCommand,
    OnExisting,
    index_by_id,
    index_of,
    require_free,
    require_once,
    schema_of,
    table_of,
)
from compaction.catalogs.errors import CatalogValidationError, IndexStatusError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import (
    MINIMUM,
    Collation,
    Index,
    IndexKind,
    IndexStatus,
    Schema,
    SchemaContents,
    SystemView,
    ViewKind,
)
from compaction.catalogs.model.entries import AdvanceIdsEntry, Entry, NewSchemaEntry

# Commands of schemas.


def _created(context: Context, name: str, if_not_exists: bool) -> tuple[Entry, ...]:
    catalog = context.catalog
    if catalog.schema(name) is not None:
        if if_not_exists:
            return ()
        raise CatalogValidationError(f"schema {name} already exists")
    return NewSchemaEntry(SchemaContents(Schema(catalog.last_id, name, MINIMUM))), AdvanceIdsEntry(1)


@dataclass(frozen=True, slots=True)
class CreateSchema(NamedCommand):
    """A schema of a user."""

    _kind = "schema"
    if_not_exists: bool = False

    def _require_legal(self) -> None:
        if self.name in SYSTEM_SCHEMAS:
            raise CatalogValidationError(f"the name {self.name} is reserved for a system schema")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        return _created(context, self.name, self.if_not_exists)


@dataclass(frozen=True, slots=True)
class CreateSystemSchema(NamedCommand):
    """One of the schemas that belong to the system."""

    _kind = "schema"

    def _require_legal(self) -> None:
        if self.name not in SYSTEM_SCHEMAS:
            raise CatalogValidationError(f"{self.name} is not the name of a system schema")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        return _created(context, self.name, False)


@dataclass(frozen=True, slots=True)
class DropSchema(NamedCommand):
    """A schema, with all that is in it when `cascade` says so. PUBLIC is a schema like others."""

    _kind = "schema"
    cascade: bool = False
    if_exists: bool = False

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        if self.name in SYSTEM_SCHEMAS:
            raise CatalogValidationError(f"schema {self.name} belongs to the system and cannot be dropped")
        if self.if_exists and catalog.schema(self.name) is None:
            return ()
        schema = schema_of(catalog, self.name)
        tables = catalog.tables_of(schema)
        indexes = sorted(id for id, home in catalog.index_schemas.items() if home == schema.id)
        if not self.cascade and (tables or indexes):
            raise CatalogValidationError(f"schema {self.name} is not empty; drop what is in it, or ask for a cascade")
        removed = [model.RemoveIndexEntry(id) for id in indexes]
        return (*removed, *(model.DropTableEntry(table.id) for table in tables), model.DropSchemaEntry(schema.id))


# The command of system views.


@dataclass(frozen=True, slots=True)
class CreateSystemView(NamedCommand):
    """A system view; another one of its name is replaced, an equal one is left as it is."""

    _kind = "system view"
    columns: tuple[ColumnSpec, ...]
    kind: ViewKind

    def _require_legal(self) -> None:
        if not self.columns:
            raise CatalogValidationError(f"system view {self.name} has no columns")
        require_once(column.name for column in self.columns)

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        schema = schema_of(catalog, SYSTEM)
        columns = tuple(spec.column() for spec in self.columns)
        view = SystemView(catalog.last_id, schema.id, self.name, MINIMUM, columns, self.kind)
        before = catalog.view(schema, self.name)
        if before is None:
            require_free(catalog, schema, self.name)
        elif replace(before, id=view.id, update_timestamp=MINIMUM) == view:
            return ()
        return model.NewSystemViewEntry(view), AdvanceIdsEntry(1)


# Commands of indexes, and of their life: registered, building, available, stopping, removed
# (docs/design/catalogs.md#indexes).


@dataclass(frozen=True, slots=True)
class CreateIndex(InSchema):
    """An index of a table. It is registered and has to be built, unless its table comes in the same batch."""

    _kind = "index"
    table: str
    columns: tuple[str, ...]
    kind: IndexKind = IndexKind.HASH
    collations: tuple[Collation, ...] = ()
    unique: bool = False
    if_not_exists: bool = False

    def _require_legal(self) -> None:
        if not self.columns:
            raise CatalogValidationError(f"index {self.name} has no columns")
        require_once(self.columns)
        if self.kind is IndexKind.SORTED and len(self.collations) != len(self.columns):
            raise CatalogValidationError(f"index {self.name}: each column of a sorted index needs a collation")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        catalog = context.catalog
        schema = schema_of(catalog, self.schema)
        if self.if_not_exists and catalog.index(schema, self.name) is not None:
            return ()
        require_free(catalog, schema, self.name)
        _, table = table_of(catalog, self.schema, self.table)
        ids: list[int] = []
        for name in self.columns:
            column = table.column(name)
            if column is None:
                raise CatalogValidationError(f"table {self.table} has no column {name}")
            ids.append(column.id)
        if self.unique and not set(ids).issuperset(table.colocated_by):
            raise CatalogValidationError(f"unique index {self.name} lacks columns that place the rows of {self.table}")
        together = table.id not in context.base.tables
        index = Index(
            self.kind,
            catalog.last_id,
            self.name,
            MINIMUM,
            table.id,
            self.unique,
            IndexStatus.AVAILABLE if together else IndexStatus.REGISTERED,
            together,
            tuple(ids),
            self.collations if self.kind is IndexKind.SORTED else (),
        )
        return model.NewIndexEntry(index), AdvanceIdsEntry(1)


def _require_status(index: Index, expected: IndexStatus, to: IndexStatus) -> None:
    if index.status is not expected:
        raise IndexStatusError(
            f"index {index.id} is {index.status.name} and cannot become {to.name}: it has to be {expected.name}"
        )


@dataclass(frozen=True, slots=True)
class _IndexLife(CheckedCommand):
    """A command on an index by its id."""

    id: int


@dataclass(frozen=True, slots=True)
class StartBuildingIndex(_IndexLife):
    """REGISTERED becomes BUILDING, when no transaction is left that does not know the index."""

    def entries(self, context: Context) -> tuple[Entry, ...]:
        _require_status(index_by_id(context.catalog, self.id), IndexStatus.REGISTERED, IndexStatus.BUILDING)
        return (model.StartBuildingIndexEntry(self.id),)


@dataclass(frozen=True, slots=True)
class MakeIndexAvailable(_IndexLife):
    """BUILDING becomes AVAILABLE."""

    def entries(self, context: Context) -> tuple[Entry, ...]:
        _require_status(index_by_id(context.catalog, self.id), IndexStatus.BUILDING, IndexStatus.AVAILABLE)
        return (model.MakeIndexAvailableEntry(self.id),)


@dataclass(frozen=True, slots=True)
class RemoveIndex(_IndexLife):
    """A stopping index disappears."""

    def entries(self, context: Context) -> tuple[Entry, ...]:
        index = index_by_id(context.catalog, self.id)
        if index.status is not IndexStatus.STOPPING:
            raise CatalogValidationError(f"index {self.id} is {index.status.name} and cannot be removed: drop it first")
        return (model.RemoveIndexEntry(self.id),)


@dataclass(frozen=True, slots=True)
class _AliveIndex(InSchema, OnExisting[Index]):
    """A command on an index by its name."""

    _kind = "index"

    def _found(self, catalog: Catalog) -> Index:
        return index_of(catalog, self.schema, self.name)[1]


@dataclass(frozen=True, slots=True)
class DropIndex(_AliveIndex):
    """An available index stops, since transactions may use it; one that was never available disappears."""

    if_exists: bool = False

    def _changes(self, context: Context, index: Index, /) -> tuple[Entry, ...]:
        table = context.catalog.tables.get(index.table_id)
        if table is not None and table.pk_index_id == index.id:
            raise CatalogValidationError(f"index {self.name} belongs to the primary key of table {table.name}")
        if index.status is IndexStatus.AVAILABLE:
            return (model.DropIndexEntry(index.id),)
        return (model.RemoveIndexEntry(index.id),)


@dataclass(frozen=True, slots=True)
class RenameIndex(_AliveIndex):
    """Another name for an alive index."""

    new_name: str
    if_exists: bool = False

    def _changes(self, context: Context, index: Index, /) -> tuple[Entry, ...]:
        require_free(context.catalog, schema_of(context.catalog, self.schema), self.new_name)
        return (model.RenameIndexEntry(index.id, self.new_name),)
