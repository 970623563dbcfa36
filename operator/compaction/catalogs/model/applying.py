"""The next version of a catalog: entries applied one after the other (docs/design/catalogs.md#entries)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NoReturn

from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Columns, Index, Table
from compaction.catalogs.model.enums import IndexStatus
from compaction.catalogs.model.hybrid import later
from compaction.catalogs.model.snapshots import resolved
from compaction.exceptions import InapplicableEntryError


def applied(catalog: Catalog, update: model.VersionedUpdate, timestamp: int) -> Catalog:
    """The version that `update` leads to. `timestamp`: when the log stored it; it is active `update.delay` later.

    Raises InapplicableEntryError when the update does not follow `catalog`, or names what is not there.
    """
    if update.version != catalog.version + 1:
        raise InapplicableEntryError(update.version, "the update", f"version {catalog.version} is the one before it")
    changed = with_entries(catalog, update.entries, timestamp)
    return replace(changed, version=update.version, activation_time=later(timestamp, update.delay))


def with_entries(catalog: Catalog, entries: Iterable[model.Entry], timestamp: int) -> Catalog:
    """`catalog` with its version and time kept, and entries applied. What they change gets `timestamp`."""
    for entry in entries:
        catalog = _APPLY[type(entry)](catalog, entry, timestamp)
    return catalog


def _missing(catalog: Catalog, entry: object, what: str) -> NoReturn:
    raise InapplicableEntryError(catalog.version + 1, type(entry).__name__, f"there is no {what}")


def _touched(catalog: Catalog, entry: object, schema_id: int, timestamp: int, **changes: Any) -> Catalog:
    """With changes and the schema's timestamp."""
    schema = catalog.schemas.get(schema_id)
    if schema is None:
        _missing(catalog, entry, f"schema {schema_id}")
    schemas = catalog.schemas.put(schema_id, replace(schema, update_timestamp=timestamp))
    return replace(catalog, schemas=schemas, **changes)


def _new_zone(catalog: Catalog, entry: model.NewZone, timestamp: int) -> Catalog:
    zone = replace(entry.zone, update_timestamp=timestamp)
    return replace(
        catalog, zones=catalog.zones.put(zone.id, zone), zone_names=catalog.zone_names.put(zone.name, zone.id)
    )


def _alter_zone(catalog: Catalog, entry: model.AlterZone, timestamp: int) -> Catalog:
    zone = replace(entry.zone, update_timestamp=timestamp)
    before = catalog.zones.get(zone.id)
    if before is None:
        _missing(catalog, entry, f"zone {zone.id}")
    names = catalog.zone_names
    if before.name != zone.name:
        names = names.without(before.name).put(zone.name, zone.id)
    return replace(catalog, zones=catalog.zones.put(zone.id, zone), zone_names=names)


def _drop_zone(catalog: Catalog, entry: model.DropZone, timestamp: int) -> Catalog:
    zone = catalog.zones.get(entry.id)
    if zone is None or entry.id == catalog.default_zone_id:
        _missing(catalog, entry, f"zone {entry.id} that is not the default")
    return replace(catalog, zones=catalog.zones.without(zone.id), zone_names=catalog.zone_names.without(zone.name))


def _set_default_zone(catalog: Catalog, entry: model.SetDefaultZone, timestamp: int) -> Catalog:
    if entry.id not in catalog.zones:
        _missing(catalog, entry, f"zone {entry.id}")
    return replace(catalog, default_zone_id=entry.id)


def _new_schema(catalog: Catalog, entry: model.NewSchema, timestamp: int) -> Catalog:
    contents = entry.contents
    schema = replace(contents.schema, update_timestamp=timestamp)
    catalog = replace(
        catalog,
        schemas=catalog.schemas.put(schema.id, schema),
        schema_names=catalog.schema_names.put(schema.name, schema.id),
    )
    inside: list[model.Entry] = [model.NewTable(table) for table in contents.tables]
    catalog = with_entries(catalog, inside, timestamp)
    for index in contents.indexes:
        catalog = _with_index(catalog, entry, index, schema.id, timestamp)
    return with_entries(catalog, [model.NewSystemView(view) for view in contents.views], timestamp)


def _drop_schema(catalog: Catalog, entry: model.DropSchema, timestamp: int) -> Catalog:
    """With the stopping indexes that are left in it."""
    schema = catalog.schemas.get(entry.id)
    if schema is None:
        _missing(catalog, entry, f"schema {entry.id}")
    for id in [id for id, home in catalog.index_schemas.items() if home == entry.id]:
        catalog = _remove_index(catalog, model.RemoveIndex(id), timestamp)
    return replace(
        catalog,
        schemas=catalog.schemas.without(schema.id),
        schema_names=catalog.schema_names.without(schema.name),
    )


def _table(catalog: Catalog, entry: object, id: int) -> Table:
    table = catalog.tables.get(id)
    if table is None:
        _missing(catalog, entry, f"table {id}")
    return table


def _with_table(catalog: Catalog, entry: object, table: Table, timestamp: int) -> Catalog:
    table = replace(table, update_timestamp=timestamp)
    return _touched(catalog, entry, table.schema_id, timestamp, tables=catalog.tables.put(table.id, table))


def _new_table(catalog: Catalog, entry: model.NewTable, timestamp: int) -> Catalog:
    table = entry.table
    catalog = _with_table(catalog, entry, table, timestamp)
    return replace(catalog, table_names=catalog.table_names.put((table.schema_id, table.name), table.id))


def _drop_table(catalog: Catalog, entry: model.DropTable, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.id)
    return _touched(
        catalog,
        entry,
        table.schema_id,
        timestamp,
        tables=catalog.tables.without(table.id),
        table_names=catalog.table_names.without((table.schema_id, table.name)),
    )


def _rename_table(catalog: Catalog, entry: model.RenameTable, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.id)
    names = catalog.table_names.without((table.schema_id, table.name)).put((table.schema_id, entry.name), table.id)
    catalog = _with_table(catalog, entry, replace(table, name=entry.name), timestamp)
    return replace(catalog, table_names=names)


def _alter_properties(catalog: Catalog, entry: model.AlterTableProperties, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.id)
    fraction, count = entry.stale_rows_fraction, entry.min_stale_rows_count
    changed = replace(
        table,
        stale_rows_fraction=table.stale_rows_fraction if fraction is None else fraction,
        min_stale_rows_count=table.min_stale_rows_count if count is None else count,
    )
    return _with_table(catalog, entry, changed, timestamp)


def _with_columns(catalog: Catalog, entry: object, table: Table, columns: Columns, timestamp: int) -> Catalog:
    """A further version of the table's columns."""
    following = max([table.next_column_id, *(column.id + 1 for column in columns)])
    changed = replace(table, versions=(*table.versions, columns), next_column_id=following)
    return _with_table(catalog, entry, changed, timestamp)


def _new_columns(catalog: Catalog, entry: model.NewColumns, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.table_id)
    added = tuple(replace(column, id=id) for id, column in enumerate(entry.columns, table.next_column_id))
    return _with_columns(catalog, entry, table, (*table.columns, *added), timestamp)


def _alter_column(catalog: Catalog, entry: model.AlterColumn, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.table_id)
    before = table.column(entry.column.name)
    if before is None:
        _missing(catalog, entry, f"column {entry.column.name[:80]!a} of table {table.id}")
    after = replace(entry.column, id=before.id)
    columns = tuple(after if column.id == before.id else column for column in table.columns)
    return _with_columns(catalog, entry, table, columns, timestamp)


def _drop_columns(catalog: Catalog, entry: model.DropColumns, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.table_id)
    columns = tuple(column for column in table.columns if column.name not in entry.names)
    kept = {column.id for column in columns}
    if not columns or not kept.issuperset((*table.pk_column_ids, *table.colocated_by)):
        _missing(catalog, entry, f"table {table.id} without columns of its key")
    return _with_columns(catalog, entry, table, columns, timestamp)


def _new_index(catalog: Catalog, entry: model.NewIndex, timestamp: int) -> Catalog:
    table = _table(catalog, entry, entry.index.table_id)
    index = resolved(entry.index, table, catalog.version + 1)
    return _with_index(catalog, entry, index, table.schema_id, timestamp)


def _with_index(catalog: Catalog, entry: object, index: Index, schema_id: int, timestamp: int) -> Catalog:
    index = replace(index, update_timestamp=timestamp)
    names = catalog.index_names.put((schema_id, index.name), index.id) if index.alive else catalog.index_names
    others = catalog.table_indexes.get(index.table_id) or ()
    return _touched(
        catalog,
        entry,
        schema_id,
        timestamp,
        indexes=catalog.indexes.put(index.id, index),
        index_names=names,
        index_schemas=catalog.index_schemas.put(index.id, schema_id),
        table_indexes=catalog.table_indexes.put(index.table_id, tuple(sorted({*others, index.id}))),
    )


def _index(catalog: Catalog, entry: object, id: int) -> Index:
    index = catalog.indexes.get(id)
    if index is None:
        _missing(catalog, entry, f"index {id}")
    return index


def _changed_index(catalog: Catalog, entry: object, index: Index, timestamp: int) -> Catalog:
    """`index` in the place of the one of its id, whose name may be another or free now."""
    before = catalog.indexes[index.id]
    schema_id = catalog.index_schemas[index.id]
    names = _without_name(catalog, before, schema_id)
    if index.alive:
        names = names.put((schema_id, index.name), index.id)
    index = replace(index, update_timestamp=timestamp)
    indexes = catalog.indexes.put(index.id, index)
    return _touched(catalog, entry, schema_id, timestamp, indexes=indexes, index_names=names)


def _without_name(catalog: Catalog, index: Index, schema_id: int) -> Any:
    key = (schema_id, index.name)
    return catalog.index_names.without(key) if catalog.index_names.get(key) == index.id else catalog.index_names


def _start_building(catalog: Catalog, entry: model.StartBuildingIndex, timestamp: int) -> Catalog:
    index = _index(catalog, entry, entry.id)
    return _changed_index(catalog, entry, replace(index, status=IndexStatus.BUILDING), timestamp)


def _make_available(catalog: Catalog, entry: model.MakeIndexAvailable, timestamp: int) -> Catalog:
    index = _index(catalog, entry, entry.id)
    return _changed_index(catalog, entry, replace(index, status=IndexStatus.AVAILABLE), timestamp)


def _drop_index(catalog: Catalog, entry: model.DropIndex, timestamp: int) -> Catalog:
    index = _index(catalog, entry, entry.id)
    return _changed_index(catalog, entry, replace(index, status=IndexStatus.STOPPING), timestamp)


def _rename_index(catalog: Catalog, entry: model.RenameIndex, timestamp: int) -> Catalog:
    return _changed_index(catalog, entry, replace(_index(catalog, entry, entry.id), name=entry.name), timestamp)


def _remove_index(catalog: Catalog, entry: model.RemoveIndex, timestamp: int) -> Catalog:
    index = _index(catalog, entry, entry.id)
    schema_id = catalog.index_schemas[index.id]
    left = tuple(id for id in catalog.table_indexes[index.table_id] if id != index.id)
    others = catalog.table_indexes
    return _touched(
        catalog,
        entry,
        schema_id,
        timestamp,
        indexes=catalog.indexes.without(index.id),
        index_names=_without_name(catalog, index, schema_id),
        index_schemas=catalog.index_schemas.without(index.id),
        table_indexes=others.put(index.table_id, left) if left else others.without(index.table_id),
    )


def _new_view(catalog: Catalog, entry: model.NewSystemView, timestamp: int) -> Catalog:
    view = replace(entry.view, update_timestamp=timestamp)
    key = (view.schema_id, view.name)
    before = catalog.view_names.get(key)
    views = catalog.views if before is None else catalog.views.without(before)
    return _touched(
        catalog,
        entry,
        view.schema_id,
        timestamp,
        views=views.put(view.id, view),
        view_names=catalog.view_names.put(key, view.id),
    )


def _advance_ids(catalog: Catalog, entry: model.AdvanceIds, timestamp: int) -> Catalog:
    return replace(catalog, last_id=catalog.last_id + entry.delta)


_APPLY: Final[dict[type, Callable[[Catalog, Any, int], Catalog]]] = {
    model.NewZone: _new_zone,
    model.AlterZone: _alter_zone,
    model.DropZone: _drop_zone,
    model.SetDefaultZone: _set_default_zone,
    model.NewSchema: _new_schema,
    model.DropSchema: _drop_schema,
    model.NewTable: _new_table,
    model.DropTable: _drop_table,
    model.RenameTable: _rename_table,
    model.AlterTableProperties: _alter_properties,
    model.NewColumns: _new_columns,
    model.AlterColumn: _alter_column,
    model.DropColumns: _drop_columns,
    model.NewIndex: _new_index,
    model.StartBuildingIndex: _start_building,
    model.MakeIndexAvailable: _make_available,
    model.DropIndex: _drop_index,
    model.RemoveIndex: _remove_index,
    model.RenameIndex: _rename_index,
    model.NewSystemView: _new_view,
    model.AdvanceIds: _advance_ids,
}
