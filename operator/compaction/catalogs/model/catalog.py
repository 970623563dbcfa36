"""One version of a catalog. What a version did not change is the object of the version before
(docs/design/catalogs.md#versions).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from compaction.catalogs.errors import CatalogArgumentError
from compaction.catalogs.model.descriptors import Index, Schema, SchemaContents, Table, View, Zone
from compaction.catalogs.model.entries import Snapshot
from compaction.catalogs.model.hybrid import MINIMUM
from compaction.catalogs.model.maps import SharedMap

Names = SharedMap[tuple[int, str], int]
"""(id of the schema, name) -> id of the object."""
_ID = attrgetter("id")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Zones, schemas, tables, indexes and system views by id; names lead to ids.

    `activation_time`: the hybrid timestamp from which on this version is the one to use. `last_id`: the next id to
    assign. `index_names` has alive indexes only; `index_schemas` knows where an index is when its table is gone.
    """

    version: int
    activation_time: int
    last_id: int
    default_zone_id: int | None = None
    zones: SharedMap[int, Zone] = field(default_factory=SharedMap)
    schemas: SharedMap[int, Schema] = field(default_factory=SharedMap)
    tables: SharedMap[int, Table] = field(default_factory=SharedMap)
    indexes: SharedMap[int, Index] = field(default_factory=SharedMap)
    views: SharedMap[int, View] = field(default_factory=SharedMap)
    zone_names: SharedMap[str, int] = field(default_factory=SharedMap)
    schema_names: SharedMap[str, int] = field(default_factory=SharedMap)
    table_names: Names = field(default_factory=SharedMap)
    index_names: Names = field(default_factory=SharedMap)
    view_names: Names = field(default_factory=SharedMap)
    index_schemas: SharedMap[int, int] = field(default_factory=SharedMap)
    table_indexes: SharedMap[int, tuple[int, ...]] = field(default_factory=SharedMap)

    def __post_init__(self) -> None:
        if self.default_zone_id is not None and self.default_zone_id not in self.zones:
            raise ValueError(f"the default zone {self.default_zone_id} of version {self.version} does not exist")

    @property
    def default_zone(self) -> Zone | None:
        return None if self.default_zone_id is None else self.zones[self.default_zone_id]

    def zone(self, name: str) -> Zone | None:
        id = self.zone_names.get(name)
        return None if id is None else self.zones[id]

    def schema(self, name: str) -> Schema | None:
        id = self.schema_names.get(name)
        return None if id is None else self.schemas[id]

    def table(self, schema: Schema, name: str) -> Table | None:
        _require_schema(schema)
        id = self.table_names.get((schema.id, name))
        return None if id is None else self.tables[id]

    def index(self, schema: Schema, name: str) -> Index | None:
        """The alive index of this name."""
        _require_schema(schema)
        id = self.index_names.get((schema.id, name))
        return None if id is None else self.indexes[id]

    def view(self, schema: Schema, name: str) -> View | None:
        _require_schema(schema)
        id = self.view_names.get((schema.id, name))
        return None if id is None else self.views[id]

    def indexes_of(self, table_id: int) -> Iterator[Index]:
        """All indexes of a table, stopping ones too, by ascending id."""
        for id in self.table_indexes.get(table_id) or ():
            yield self.indexes[id]

    def tables_in_zone(self, zone_id: int) -> list[Table]:
        """By ascending id."""
        return sorted((table for table in self.tables.values() if table.zone_id == zone_id), key=_ID)

    def tables_of(self, schema: Schema) -> list[Table]:
        """By ascending id."""
        _require_schema(schema)
        return sorted((table for table in self.tables.values() if table.schema_id == schema.id), key=_ID)

    def contents(self) -> tuple[SchemaContents, ...]:
        """Schemas with all that is in them, everything by ascending id."""
        tables: dict[int, list[Table]] = {id: [] for id in self.schemas}
        indexes: dict[int, list[Index]] = {id: [] for id in self.schemas}
        views: dict[int, list[View]] = {id: [] for id in self.schemas}
        for table in self.tables.values():
            tables[table.schema_id].append(table)
        for index in self.indexes.values():
            indexes[self.index_schemas[index.id]].append(index)
        for view in self.views.values():
            views[view.schema_id].append(view)
        return tuple(
            SchemaContents(
                schema,
                tuple(sorted(tables[schema.id], key=_ID)),
                tuple(sorted(indexes[schema.id], key=_ID)),
                tuple(sorted(views[schema.id], key=_ID)),
            )
            for schema in sorted(self.schemas.values(), key=_ID)
        )

    def snapshot(self) -> Snapshot:
        """The version as one value of the log, in canonical order: equal catalogs have equal bytes."""
        return Snapshot(
            self.version,
            self.activation_time,
            self.last_id,
            tuple(sorted(self.zones.values(), key=_ID)),
            self.contents(),
            self.default_zone_id,
        )


def _require_schema(schema: Schema) -> None:
    if not isinstance(schema, Schema):
        raise CatalogArgumentError(f"{schema!r:.80} is no schema: name one with catalog.schema(NAME)")


EMPTY = Catalog(0, MINIMUM, 0)
"""Version 0, which no log stores."""
