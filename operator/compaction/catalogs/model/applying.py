"""The next version of a catalog: entries applied one after the other, to a version or to a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NoReturn

from compaction.catalogs.errors import InapplicableEntryError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog, Names, SharedMap
from compaction.catalogs.model.descriptors import Columns, Index, IndexStatus, SystemView, Table, changed, later, made
from compaction.catalogs.model.entries import Snapshot

# A version in the making: changes one after the other, then one new catalog.


def _name_of(entry: object) -> str:
    """The name of an entry as messages have it, such as DropTable."""
    return type(entry).__name__.removesuffix("Entry")


class CatalogDraft:
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
        raise InapplicableEntryError(self.version, _name_of(entry), f"there is no {what}")

    def require_new(self, objects: SharedMap[int, Any], id: int, entry: object) -> None:
        if id in objects:
            raise InapplicableEntryError(self.version, _name_of(entry), f"the id {id} is taken")

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
        left = tuple(item for item in self.table_indexes[index.table_id] if item != id)
        others = self.table_indexes
        self.table_indexes = others.put(index.table_id, left) if left else others.without(index.table_id)

    def _without_name(self, index: Index, schema_id: int) -> Names:
        key = (schema_id, index.name)
        return self.index_names.without(key) if self.index_names.get(key) == index.id else self.index_names


# A catalog from a snapshot of the log.


def restored(snapshot: Snapshot) -> Catalog:
    """The version that a snapshot holds; indexes that name columns get their ids from the table's current columns.

    Raises InapplicableEntryError when the snapshot contradicts itself.
    """
    _require_sound(snapshot)
    tables = {table.id: table for contents in snapshot.schemas for table in contents.tables}
    indexes: dict[int, Index] = {}
    homes: dict[int, int] = {}
    by_table: defaultdict[int, list[int]] = defaultdict(list)
    for contents in snapshot.schemas:
        for index in contents.indexes:
            indexes[index.id] = resolved(index, tables.get(index.table_id), snapshot.version)
            homes[index.id] = contents.schema.id
            by_table[index.table_id].append(index.id)
    views = [view for contents in snapshot.schemas for view in contents.views]
    try:
        return Catalog(
            snapshot.version,
            snapshot.activation_time,
            snapshot.last_id,
            snapshot.default_zone_id,
            SharedMap((zone.id, zone) for zone in snapshot.zones),
            SharedMap((contents.schema.id, contents.schema) for contents in snapshot.schemas),
            SharedMap(tables.items()),
            SharedMap(indexes.items()),
            SharedMap((view.id, view) for view in views),
            SharedMap((zone.name, zone.id) for zone in snapshot.zones),
            SharedMap((contents.schema.name, contents.schema.id) for contents in snapshot.schemas),
            SharedMap(((table.schema_id, table.name), table.id) for table in tables.values()),
            SharedMap(((homes[index.id], index.name), index.id) for index in indexes.values() if index.alive),
            SharedMap(((view.schema_id, view.name), view.id) for view in views),
            SharedMap(homes.items()),
            SharedMap((table, tuple(sorted(ids))) for table, ids in by_table.items()),
        )
    except ValueError as error:
        raise InapplicableEntryError(snapshot.version, "the snapshot", str(error)) from error


def _require_sound(snapshot: Snapshot) -> None:
    """Ids are taken once, and what is in a schema says so."""
    ids: dict[str, list[int]] = {
        "zone": [zone.id for zone in snapshot.zones],
        "schema": [contents.schema.id for contents in snapshot.schemas],
        "table": [table.id for contents in snapshot.schemas for table in contents.tables],
        "index": [index.id for contents in snapshot.schemas for index in contents.indexes],
        "system view": [view.id for contents in snapshot.schemas for view in contents.views],
    }
    for what, found in ids.items():
        if len(set(found)) != len(found):
            raise InapplicableEntryError(snapshot.version, "the snapshot", f"an id of a {what} is taken twice")
    for contents in snapshot.schemas:
        inside: tuple[Table | SystemView, ...] = (*contents.tables, *contents.views)
        for item in inside:
            if item.schema_id != contents.schema.id:
                reason = f"{item.id} is in schema {contents.schema.id} and names schema {item.schema_id}"
                raise InapplicableEntryError(snapshot.version, "the snapshot", reason)


def resolved(index: Index, table: Table | None, version: int) -> Index:
    """The index with ids of columns, itself when it has them."""
    if index.column_ids is not None:
        return index
    ids: list[int] = []
    for name in index.column_names or ():
        column = None if table is None else table.column(name)
        if column is None:
            raise InapplicableEntryError(
                version, f"index {index.id}", f"table {index.table_id} has no column {name[:80]!a}"
            )
        ids.append(column.id)
    return replace(index, column_ids=tuple(ids), column_names=None)


# The next version of a catalog: entries applied one after the other (docs/design/catalogs.md#entries).


def applied(catalog: Catalog, update: model.VersionedUpdate, timestamp: int) -> Catalog:
    """The version that `update` leads to. `timestamp`: when the log stored it; it is active `update.delay` later.

    Raises InapplicableEntryError when the update does not follow `catalog`, or names what is not there.
    """
    if update.version != catalog.version + 1:
        raise InapplicableEntryError(update.version, "the update", f"version {catalog.version} is the one before it")
    draft = CatalogDraft(catalog, timestamp)
    _apply(draft, update.entries)
    try:
        return draft.finish(update.version, later(timestamp, update.delay))
    except ValueError as error:
        raise InapplicableEntryError(update.version, "the delay", str(error)) from error


def with_entries(catalog: Catalog, entries: Iterable[model.Entry], timestamp: int) -> Catalog:
    """`catalog` with its version and time kept, and entries applied. What they change gets `timestamp`."""
    draft = CatalogDraft(catalog, timestamp)
    _apply(draft, entries)
    return draft.finish(catalog.version, catalog.activation_time)


def _apply(draft: CatalogDraft, entries: Iterable[model.Entry]) -> None:
    for entry in entries:
        _APPLY[type(entry)](draft, entry)


def _new_zone(draft: CatalogDraft, entry: model.NewZoneEntry) -> None:
    zone = changed(entry.zone, update_timestamp=draft.timestamp)
    draft.require_new(draft.zones, zone.id, entry)
    draft.zones = draft.zones.put(zone.id, zone)
    draft.zone_names = draft.zone_names.put(zone.name, zone.id)


def _alter_zone(draft: CatalogDraft, entry: model.AlterZoneEntry) -> None:
    zone = changed(entry.zone, update_timestamp=draft.timestamp)
    before = draft.zones.get(zone.id)
    if before is None:
        draft.missing(entry, f"zone {zone.id}")
    if before.name != zone.name:
        draft.zone_names = draft.zone_names.without(before.name).put(zone.name, zone.id)
    draft.zones = draft.zones.put(zone.id, zone)


def _drop_zone(draft: CatalogDraft, entry: model.DropZoneEntry) -> None:
    zone = draft.zones.get(entry.id)
    if zone is None or entry.id == draft.default_zone_id:
        draft.missing(entry, f"zone {entry.id} that is not the default")
    draft.zones = draft.zones.without(zone.id)
    draft.zone_names = draft.zone_names.without(zone.name)


def _set_default_zone(draft: CatalogDraft, entry: model.SetDefaultZoneEntry) -> None:
    if entry.id not in draft.zones:
        draft.missing(entry, f"zone {entry.id}")
    draft.default_zone_id = entry.id


def _new_schema(draft: CatalogDraft, entry: model.NewSchemaEntry) -> None:
    contents = entry.contents
    draft.require_new(draft.schemas, contents.schema.id, entry)
    draft.schemas = draft.schemas.put(contents.schema.id, contents.schema)
    draft.schema_names = draft.schema_names.put(contents.schema.name, contents.schema.id)
    draft.touch(contents.schema.id, entry)
    _apply(draft, [model.NewTableEntry(table) for table in contents.tables])
    for index in contents.indexes:
        draft.put_index(resolved(index, draft.tables.get(index.table_id), draft.version), contents.schema.id, entry)
    _apply(draft, [model.NewSystemViewEntry(view) for view in contents.views])


def _drop_schema(draft: CatalogDraft, entry: model.DropSchemaEntry) -> None:
    """With the stopping indexes that are left in it."""
    schema = draft.schemas.get(entry.id)
    if schema is None:
        draft.missing(entry, f"schema {entry.id}")
    for id in [id for id, home in draft.index_schemas.items() if home == entry.id]:
        draft.remove_index(id, entry)
    if any(table.schema_id == entry.id for table in draft.tables.values()):
        draft.missing(entry, f"schema {entry.id} without tables")
    for view in [view for view in draft.views.values() if view.schema_id == entry.id]:
        draft.views = draft.views.without(view.id)
        draft.view_names = draft.view_names.without((entry.id, view.name))
    draft.touched.discard(entry.id)
    draft.schemas = draft.schemas.without(schema.id)
    draft.schema_names = draft.schema_names.without(schema.name)


def _new_table(draft: CatalogDraft, entry: model.NewTableEntry) -> None:
    table = changed(entry.table, update_timestamp=draft.timestamp)
    draft.require_new(draft.tables, table.id, entry)
    draft.put_table(table, entry)
    draft.table_names = draft.table_names.put((table.schema_id, table.name), table.id)


def _drop_table(draft: CatalogDraft, entry: model.DropTableEntry) -> None:
    table = draft.table(entry.id, entry)
    draft.touch(table.schema_id, entry)
    draft.tables = draft.tables.without(table.id)
    draft.table_names = draft.table_names.without((table.schema_id, table.name))


def _rename_table(draft: CatalogDraft, entry: model.RenameTableEntry) -> None:
    table = draft.table(entry.id, entry)
    names = draft.table_names.without((table.schema_id, table.name))
    draft.table_names = names.put((table.schema_id, entry.name), table.id)
    draft.put_table(changed(table, name=entry.name, update_timestamp=draft.timestamp), entry)


def _alter_properties(draft: CatalogDraft, entry: model.AlterTablePropertiesEntry) -> None:
    table = draft.table(entry.id, entry)
    fraction, count = entry.stale_rows_fraction, entry.min_stale_rows_count
    after = changed(
        table,
        stale_rows_fraction=table.stale_rows_fraction if fraction is None else fraction,
        min_stale_rows_count=table.min_stale_rows_count if count is None else count,
        update_timestamp=draft.timestamp,
    )
    draft.put_table(after, entry)


def _put_columns(draft: CatalogDraft, entry: object, table: Table, columns: Columns, following: int) -> None:
    """A further version of the table's columns."""
    after = changed(
        table, versions=(*table.versions, columns), next_column_id=following, update_timestamp=draft.timestamp
    )
    draft.put_table(after, entry)


def _new_columns(draft: CatalogDraft, entry: model.NewColumnsEntry) -> None:
    table = draft.table(entry.table_id, entry)
    following = table.next_column_id
    added = [changed(column, id=id) for id, column in enumerate(entry.columns, following)]
    _put_columns(draft, entry, table, (*table.columns, *added), following + len(added))


def _alter_column(draft: CatalogDraft, entry: model.AlterColumnEntry) -> None:
    table = draft.table(entry.table_id, entry)
    before = table.column(entry.column.name)
    if before is None:
        draft.missing(entry, f"column {entry.column.name[:80]!a} of table {table.id}")
    after = changed(entry.column, id=before.id)
    columns = tuple(after if column.id == before.id else column for column in table.columns)
    _put_columns(draft, entry, table, columns, table.next_column_id)


def _drop_columns(draft: CatalogDraft, entry: model.DropColumnsEntry) -> None:
    table = draft.table(entry.table_id, entry)
    columns = tuple(column for column in table.columns if column.name not in entry.names)
    kept = {column.id for column in columns}
    if not columns or not kept.issuperset((*table.pk_column_ids, *table.colocated_by)):
        draft.missing(entry, f"table {table.id} without columns of its key")
    _put_columns(draft, entry, table, columns, table.next_column_id)


def _new_index(draft: CatalogDraft, entry: model.NewIndexEntry) -> None:
    table = draft.table(entry.index.table_id, entry)
    draft.put_index(resolved(entry.index, table, draft.version), table.schema_id, entry)


def _index_status(status: IndexStatus) -> Callable[[CatalogDraft, Any], None]:
    def apply(draft: CatalogDraft, entry: Any) -> None:
        draft.change_index(changed(draft.index(entry.id, entry), status=status), entry)

    return apply


def _rename_index(draft: CatalogDraft, entry: model.RenameIndexEntry) -> None:
    draft.change_index(changed(draft.index(entry.id, entry), name=entry.name), entry)


def _remove_index(draft: CatalogDraft, entry: model.RemoveIndexEntry) -> None:
    draft.remove_index(entry.id, entry)


def _new_view(draft: CatalogDraft, entry: model.NewSystemViewEntry) -> None:
    view = changed(entry.view, update_timestamp=draft.timestamp)
    key = (view.schema_id, view.name)
    before = draft.view_names.get(key)
    views = draft.views if before is None else draft.views.without(before)
    draft.require_new(views, view.id, entry)
    draft.touch(view.schema_id, entry)
    draft.views = views.put(view.id, view)
    draft.view_names = draft.view_names.put(key, view.id)


def _advance_ids(draft: CatalogDraft, entry: model.AdvanceIdsEntry) -> None:
    draft.last_id += entry.delta


_APPLY: Final[dict[type, Callable[[CatalogDraft, Any], None]]] = {
    model.NewZoneEntry: _new_zone,
    model.AlterZoneEntry: _alter_zone,
    model.DropZoneEntry: _drop_zone,
    model.SetDefaultZoneEntry: _set_default_zone,
    model.NewSchemaEntry: _new_schema,
    model.DropSchemaEntry: _drop_schema,
    model.NewTableEntry: _new_table,
    model.DropTableEntry: _drop_table,
    model.RenameTableEntry: _rename_table,
    model.AlterTablePropertiesEntry: _alter_properties,
    model.NewColumnsEntry: _new_columns,
    model.AlterColumnEntry: _alter_column,
    model.DropColumnsEntry: _drop_columns,
    model.NewIndexEntry: _new_index,
    model.StartBuildingIndexEntry: _index_status(IndexStatus.BUILDING),
    model.MakeIndexAvailableEntry: _index_status(IndexStatus.AVAILABLE),
    model.DropIndexEntry: _index_status(IndexStatus.STOPPING),
    model.RemoveIndexEntry: _remove_index,
    model.RenameIndexEntry: _rename_index,
    model.NewSystemViewEntry: _new_view,
    model.AdvanceIdsEntry: _advance_ids,
}
