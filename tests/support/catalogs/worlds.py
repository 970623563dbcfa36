"""A catalog that commands change, one version each, without a log."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.catalogs.commands.command import Batch, CatalogCommand, ColumnSpec, batch
from compaction.catalogs.commands.schema_commands import CreateSchema, CreateSystemSchema
from compaction.catalogs.commands.table_commands import CreateTable, PrimaryKey
from compaction.catalogs.model.applying import applied
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.descriptors import ColumnType, Index, Table, hybrid
from compaction.catalogs.model.entries import VersionedUpdate

INT = ColumnType.INT32


def column(name: str, nullable: bool = True) -> ColumnSpec:
    return ColumnSpec(name, INT, nullable)


def table(name: str, *columns: str, zone: str | None = None) -> CreateTable:
    """A table with the key ID and further columns."""
    return CreateTable("PUBLIC", name, (column("ID", False), *map(column, columns)), PrimaryKey(("ID",)), zone=zone)


@dataclass
class World:
    """The latest version; each batch that changes something makes one, a second later."""

    catalog: Catalog = EMPTY

    @classmethod
    def started(cls) -> World:
        world = cls()
        world.run(CreateSchema("PUBLIC"), CreateSystemSchema("SYSTEM"))
        return world

    def run(self, *commands: CatalogCommand) -> Batch:
        found = batch(self.catalog, commands)
        if found.entries:
            version = self.catalog.version + 1
            self.catalog = applied(self.catalog, VersionedUpdate(version, 5, found.entries), hybrid(version * 1000))
        return found

    def table(self, name: str) -> Table:
        schema = self.catalog.schema("PUBLIC")
        assert schema is not None
        found = self.catalog.table(schema, name)
        assert found is not None
        return found

    def index(self, name: str) -> Index | None:
        schema = self.catalog.schema("PUBLIC")
        assert schema is not None
        return self.catalog.index(schema, name)
