"""A version in the making: changes one after the other, then one new catalog."""

from __future__ import annotations

from typing import Any, NoReturn

from compaction.catalogs.errors import InapplicableEntryError
from compaction.catalogs.model.catalog import Catalog, Names
from compaction.catalogs.model.changing import changed, made
from compaction.catalogs.model.descriptors import Index, Table
from compaction.catalogs.model.maps import SharedMap


class Draft:
    """All fields of a catalog, to be replaced. Schemas in `touched` get the timestamp in the end, once.

    Methods raise InapplicableEntryError, which names `entry`, for what is not there.
    """

    __slots__ = (
        "_before",
        "default_zone_id",
        "index_names",
        "index_schemas",
        "indexes",
        "last_id",
        "schema_names",
        "schemas",
        "table_indexes",
        "table_names",
        "tables",
        "timestamp",
        "touched",
        "view_names",
        "views",
        "zone_names",
        "zones",
    )

    def __init__(self, catalog: Catalog, timestamp: int) -> None:
        self._before = catalog
        self.timestamp = timestamp
        self.touched: set[int] = set()
        self.last_id = catalog.last_id
        self.default_zone_id = catalog.default_zone_id
        self.zones = catalog.zones
        self.schemas = catalog.schemas
        self.tables = catalog.tables
        self.indexes = catalog.indexes
        self.views = catalog.views
        self.zone_names = catalog.zone_names
        self.schema_names = catalog.schema_names
        self.table_names = catalog.table_names
        self.index_names = catalog.index_names
        self.view_names = catalog.view_names
        self.index_schemas = catalog.index_schemas
        self.table_indexes = catalog.table_indexes

    @property
    def version(self) -> int:
        """The version that this becomes, for errors."""
        return self._before.version + 1

    def finish(self, version: int, activation_time: int) -> Catalog:
        for id in self.touched:
            self.schemas = self.schemas.put(id, changed(self.schemas[id], update_timestamp=self.timestamp))
        values = (
            version,
            activation_time,
            self.last_id,
            self.default_zone_id,
            self.zones,
            self.schemas,
            self.tables,
            self.indexes,
            self.views,
            self.zone_names,
            self.schema_names,
            self.table_names,
            self.index_names,
            self.view_names,
            self.index_schemas,
            self.table_indexes,
        )
        catalog = made(Catalog, values)
        catalog.__post_init__()
        return catalog

    def missing(self, entry: object, what: str) -> NoReturn:
        raise InapplicableEntryError(self.version, type(entry).__name__, f"there is no {what}")

    def require_new(self, objects: SharedMap[int, Any], id: int, entry: object) -> None:
        if id in objects:
            raise InapplicableEntryError(self.version, type(entry).__name__, f"the id {id} is taken")

    def touch(self, schema_id: int, entry: object) -> None:
        """Something in the schema changed."""
        if schema_id not in self.schemas:
            self.missing(entry, f"schema {schema_id}")
        self.touched.add(schema_id)

    def table(self, id: int, entry: object) -> Table:
        table = self.tables.get(id)
        if table is None:
            self.missing(entry, f"table {id}")
        return table

    def put_table(self, table: Table, entry: object) -> None:
        self.touch(table.schema_id, entry)
        self.tables = self.tables.put(table.id, table)

    def index(self, id: int, entry: object) -> Index:
        index = self.indexes.get(id)
        if index is None:
            self.missing(entry, f"index {id}")
        return index

    def put_index(self, index: Index, schema_id: int, entry: object) -> None:
        """A new index."""
        self.require_new(self.indexes, index.id, entry)
        self.touch(schema_id, entry)
        index = changed(index, update_timestamp=self.timestamp)
        others = self.table_indexes.get(index.table_id) or ()
        self.indexes = self.indexes.put(index.id, index)
        self.index_schemas = self.index_schemas.put(index.id, schema_id)
        self.table_indexes = self.table_indexes.put(index.table_id, tuple(sorted({*others, index.id})))
        if index.alive:
            self.index_names = self.index_names.put((schema_id, index.name), index.id)

    def change_index(self, index: Index, entry: object) -> None:
        """`index` in the place of the one of its id, whose name may be another, or free now."""
        before = self.indexes[index.id]
        schema_id = self.index_schemas[index.id]
        if before.name != index.name or not index.alive:
            self.index_names = self._without_name(before, schema_id)
        if index.alive:
            self.index_names = self.index_names.put((schema_id, index.name), index.id)
        self.touch(schema_id, entry)
        self.indexes = self.indexes.put(index.id, changed(index, update_timestamp=self.timestamp))

    def remove_index(self, id: int, entry: object) -> None:
        index = self.index(id, entry)
        schema_id = self.index_schemas[id]
        self.touch(schema_id, entry)
        self.index_names = self._without_name(index, schema_id)
        self.indexes = self.indexes.without(id)
        self.index_schemas = self.index_schemas.without(id)
        left = tuple(one for one in self.table_indexes[index.table_id] if one != id)
        others = self.table_indexes
        self.table_indexes = others.put(index.table_id, left) if left else others.without(index.table_id)

    def _without_name(self, index: Index, schema_id: int) -> Names:
        key = (schema_id, index.name)
        return self.index_names.without(key) if self.index_names.get(key) == index.id else self.index_names
