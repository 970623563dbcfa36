"""Commands of indexes, and of their life: registered, building, available, stopping, removed
(docs/design/catalogs.md#indexes).
"""

from __future__ import annotations

from dataclasses import dataclass

from compaction.catalogs.commands.command import (
    Context,
    index_by_id,
    index_of,
    require_free,
    require_name,
    require_once,
    require_types,
    require_user_schema,
    schema_of,
    table_of,
)
from compaction.catalogs.errors import CatalogValidationError, IndexStatusError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import Index, Schema
from compaction.catalogs.model.entries import AdvanceIds, Entry
from compaction.catalogs.model.enums import Collation, IndexKind, IndexStatus
from compaction.catalogs.model.hybrid import MINIMUM


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """An index of a table. It is registered and has to be built, unless its table comes in the same batch."""

    schema: str
    name: str
    table: str
    columns: tuple[str, ...]
    kind: IndexKind = IndexKind.HASH
    collations: tuple[Collation, ...] = ()
    unique: bool = False
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_user_schema(self.schema)
        require_name(self.name, "index")
        require_name(self.table, "table")
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
        return model.NewIndex(index), AdvanceIds(1)


def _require_status(index: Index, expected: IndexStatus, to: IndexStatus) -> None:
    if index.status is not expected:
        raise IndexStatusError(
            f"index {index.id} is {index.status.name} and cannot become {to.name}: it has to be {expected.name}"
        )


@dataclass(frozen=True, slots=True)
class StartBuildingIndex:
    """REGISTERED becomes BUILDING, when no transaction is left that does not know the index."""

    id: int

    def __post_init__(self) -> None:
        require_types(self)

    def entries(self, context: Context) -> tuple[Entry, ...]:
        _require_status(index_by_id(context.catalog, self.id), IndexStatus.REGISTERED, IndexStatus.BUILDING)
        return (model.StartBuildingIndex(self.id),)


@dataclass(frozen=True, slots=True)
class MakeIndexAvailable:
    """BUILDING becomes AVAILABLE."""

    id: int

    def __post_init__(self) -> None:
        require_types(self)

    def entries(self, context: Context) -> tuple[Entry, ...]:
        _require_status(index_by_id(context.catalog, self.id), IndexStatus.BUILDING, IndexStatus.AVAILABLE)
        return (model.MakeIndexAvailable(self.id),)


@dataclass(frozen=True, slots=True)
class RemoveIndex:
    """A stopping index disappears."""

    id: int

    def __post_init__(self) -> None:
        require_types(self)

    def entries(self, context: Context) -> tuple[Entry, ...]:
        index = index_by_id(context.catalog, self.id)
        if index.status is not IndexStatus.STOPPING:
            raise CatalogValidationError(f"index {self.id} is {index.status.name} and cannot be removed: drop it first")
        return (model.RemoveIndex(self.id),)


def _found(context: Context, schema_name: str, name: str, if_exists: bool) -> tuple[Schema, Index] | None:
    schema = context.catalog.schema(schema_name)
    if if_exists and (schema is None or context.catalog.index(schema, name) is None):
        return None
    return index_of(context.catalog, schema_name, name)


@dataclass(frozen=True, slots=True)
class DropIndex:
    """An available index stops, since transactions may use it; one that was never available disappears."""

    schema: str
    name: str
    if_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_user_schema(self.schema)
        require_name(self.name, "index")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        found = _found(context, self.schema, self.name, self.if_exists)
        if found is None:
            return ()
        index = found[1]
        table = context.catalog.tables.get(index.table_id)
        if table is not None and table.pk_index_id == index.id:
            raise CatalogValidationError(f"index {self.name} belongs to the primary key of table {table.name}")
        if index.status is IndexStatus.AVAILABLE:
            return (model.DropIndex(index.id),)
        return (model.RemoveIndex(index.id),)


@dataclass(frozen=True, slots=True)
class RenameIndex:
    """Another name for an alive index."""

    schema: str
    name: str
    new_name: str
    if_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_user_schema(self.schema)
        require_name(self.name, "index")
        require_name(self.new_name, "index")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        found = _found(context, self.schema, self.name, self.if_exists)
        if found is None:
            return ()
        require_free(context.catalog, found[0], self.new_name)
        return (model.RenameIndex(found[1].id, self.new_name),)
