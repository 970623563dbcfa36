"""Commands of schemas."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.catalogs.commands.command import (
    SYSTEM_SCHEMAS,
    Context,
    require_name,
    require_types,
    schema_of,
)
from compaction.catalogs.errors import CatalogValidationError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import Schema, SchemaContents
from compaction.catalogs.model.entries import AdvanceIds, Entry, NewSchema
from compaction.catalogs.model.hybrid import MINIMUM


def _created(context: Context, name: str, if_not_exists: bool) -> tuple[Entry, ...]:
    catalog = context.catalog
    if catalog.schema(name) is not None:
        if if_not_exists:
            return ()
        raise CatalogValidationError(f"schema {name} already exists")
    return NewSchema(SchemaContents(Schema(catalog.last_id, name, MINIMUM))), AdvanceIds(1)


@dataclass(frozen=True, slots=True)
class CreateSchema:
    """A schema of a user."""

    name: str
    if_not_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_name(self.name, "schema")
        if self.name in SYSTEM_SCHEMAS:
            raise CatalogValidationError(f"the name {self.name} is reserved for a system schema")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        return _created(context, self.name, self.if_not_exists)


@dataclass(frozen=True, slots=True)
class CreateSystemSchema:
    """One of the schemas that belong to the system."""

    name: str

    def __post_init__(self) -> None:
        require_types(self)
        require_name(self.name, "schema")
        if self.name not in SYSTEM_SCHEMAS:
            raise CatalogValidationError(f"{self.name} is not the name of a system schema")

    def entries(self, context: Context) -> tuple[Entry, ...]:
        return _created(context, self.name, False)


@dataclass(frozen=True, slots=True)
class DropSchema:
    """A schema, with all that is in it when `cascade` says so. PUBLIC is a schema like others."""

    name: str
    cascade: bool = False
    if_exists: bool = False

    def __post_init__(self) -> None:
        require_types(self)
        require_name(self.name, "schema")

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
        removed = [model.RemoveIndex(id) for id in indexes]
        return (*removed, *(model.DropTable(table.id) for table in tables), model.DropSchema(schema.id))
