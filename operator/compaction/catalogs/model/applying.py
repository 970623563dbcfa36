"""The next version of a catalog: entries applied one after the other (docs/design/catalogs.md#entries)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from compaction.catalogs.errors import InapplicableEntryError
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.changing import changed
from compaction.catalogs.model.descriptors import Columns, Table
from compaction.catalogs.model.draft import Draft
from compaction.catalogs.model.enums import IndexStatus
from compaction.catalogs.model.hybrid import later
from compaction.catalogs.model.snapshots import resolved


def applied(catalog: Catalog, update: model.VersionedUpdate, timestamp: int) -> Catalog:
    """The version that `update` leads to. `timestamp`: when the log stored it; it is active `update.delay` later.

    Raises InapplicableEntryError when the update does not follow `catalog`, or names what is not there.
    """
    if update.version != catalog.version + 1:
        raise InapplicableEntryError(update.version, "the update", f"version {catalog.version} is the one before it")
    draft = Draft(catalog, timestamp)
    _apply(draft, update.entries)
    try:
        return draft.finish(update.version, later(timestamp, update.delay))
    except ValueError as error:
        raise InapplicableEntryError(update.version, "the delay", str(error)) from error


def with_entries(catalog: Catalog, entries: Iterable[model.Entry], timestamp: int) -> Catalog:
    """`catalog` with its version and time kept, and entries applied. What they change gets `timestamp`."""
    draft = Draft(catalog, timestamp)
    _apply(draft, entries)
    return draft.finish(catalog.version, catalog.activation_time)


def _apply(draft: Draft, entries: Iterable[model.Entry]) -> None:
    for entry in entries:
        _APPLY[type(entry)](draft, entry)


def _new_zone(draft: Draft, entry: model.NewZone) -> None:
    zone = changed(entry.zone, update_timestamp=draft.timestamp)
    draft.require_new(draft.zones, zone.id, entry)
    draft.zones = draft.zones.put(zone.id, zone)
    draft.zone_names = draft.zone_names.put(zone.name, zone.id)


def _alter_zone(draft: Draft, entry: model.AlterZone) -> None:
    zone = changed(entry.zone, update_timestamp=draft.timestamp)
    before = draft.zones.get(zone.id)
    if before is None:
        draft.missing(entry, f"zone {zone.id}")
    if before.name != zone.name:
        draft.zone_names = draft.zone_names.without(before.name).put(zone.name, zone.id)
    draft.zones = draft.zones.put(zone.id, zone)


def _drop_zone(draft: Draft, entry: model.DropZone) -> None:
    zone = draft.zones.get(entry.id)
    if zone is None or entry.id == draft.default_zone_id:
        draft.missing(entry, f"zone {entry.id} that is not the default")
    draft.zones = draft.zones.without(zone.id)
    draft.zone_names = draft.zone_names.without(zone.name)


def _set_default_zone(draft: Draft, entry: model.SetDefaultZone) -> None:
    if entry.id not in draft.zones:
        draft.missing(entry, f"zone {entry.id}")
    draft.default_zone_id = entry.id


def _new_schema(draft: Draft, entry: model.NewSchema) -> None:
    contents = entry.contents
    draft.require_new(draft.schemas, contents.schema.id, entry)
    draft.schemas = draft.schemas.put(contents.schema.id, contents.schema)
    draft.schema_names = draft.schema_names.put(contents.schema.name, contents.schema.id)
    draft.touch(contents.schema.id, entry)
    _apply(draft, [model.NewTable(table) for table in contents.tables])
    for index in contents.indexes:
        draft.put_index(resolved(index, draft.tables.get(index.table_id), draft.version), contents.schema.id, entry)
    _apply(draft, [model.NewSystemView(view) for view in contents.views])


def _drop_schema(draft: Draft, entry: model.DropSchema) -> None:
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


def _new_table(draft: Draft, entry: model.NewTable) -> None:
    table = changed(entry.table, update_timestamp=draft.timestamp)
    draft.require_new(draft.tables, table.id, entry)
    draft.put_table(table, entry)
    draft.table_names = draft.table_names.put((table.schema_id, table.name), table.id)


def _drop_table(draft: Draft, entry: model.DropTable) -> None:
    table = draft.table(entry.id, entry)
    draft.touch(table.schema_id, entry)
    draft.tables = draft.tables.without(table.id)
    draft.table_names = draft.table_names.without((table.schema_id, table.name))


def _rename_table(draft: Draft, entry: model.RenameTable) -> None:
    table = draft.table(entry.id, entry)
    names = draft.table_names.without((table.schema_id, table.name))
    draft.table_names = names.put((table.schema_id, entry.name), table.id)
    draft.put_table(changed(table, name=entry.name, update_timestamp=draft.timestamp), entry)


def _alter_properties(draft: Draft, entry: model.AlterTableProperties) -> None:
    table = draft.table(entry.id, entry)
    fraction, count = entry.stale_rows_fraction, entry.min_stale_rows_count
    after = changed(
        table,
        stale_rows_fraction=table.stale_rows_fraction if fraction is None else fraction,
        min_stale_rows_count=table.min_stale_rows_count if count is None else count,
        update_timestamp=draft.timestamp,
    )
    draft.put_table(after, entry)


def _put_columns(draft: Draft, entry: object, table: Table, columns: Columns, following: int) -> None:
    """A further version of the table's columns."""
    after = changed(
        table, versions=(*table.versions, columns), next_column_id=following, update_timestamp=draft.timestamp
    )
    draft.put_table(after, entry)


def _new_columns(draft: Draft, entry: model.NewColumns) -> None:
    table = draft.table(entry.table_id, entry)
    following = table.next_column_id
    added = [changed(column, id=id) for id, column in enumerate(entry.columns, following)]
    _put_columns(draft, entry, table, (*table.columns, *added), following + len(added))


def _alter_column(draft: Draft, entry: model.AlterColumn) -> None:
    table = draft.table(entry.table_id, entry)
    before = table.column(entry.column.name)
    if before is None:
        draft.missing(entry, f"column {entry.column.name[:80]!a} of table {table.id}")
    after = changed(entry.column, id=before.id)
    columns = tuple(after if column.id == before.id else column for column in table.columns)
    _put_columns(draft, entry, table, columns, table.next_column_id)


def _drop_columns(draft: Draft, entry: model.DropColumns) -> None:
    table = draft.table(entry.table_id, entry)
    columns = tuple(column for column in table.columns if column.name not in entry.names)
    kept = {column.id for column in columns}
    if not columns or not kept.issuperset((*table.pk_column_ids, *table.colocated_by)):
        draft.missing(entry, f"table {table.id} without columns of its key")
    _put_columns(draft, entry, table, columns, table.next_column_id)


def _new_index(draft: Draft, entry: model.NewIndex) -> None:
    table = draft.table(entry.index.table_id, entry)
    draft.put_index(resolved(entry.index, table, draft.version), table.schema_id, entry)


def _index_status(status: IndexStatus) -> Callable[[Draft, Any], None]:
    def apply(draft: Draft, entry: Any) -> None:
        draft.change_index(changed(draft.index(entry.id, entry), status=status), entry)

    return apply


def _rename_index(draft: Draft, entry: model.RenameIndex) -> None:
    draft.change_index(changed(draft.index(entry.id, entry), name=entry.name), entry)


def _remove_index(draft: Draft, entry: model.RemoveIndex) -> None:
    draft.remove_index(entry.id, entry)


def _new_view(draft: Draft, entry: model.NewSystemView) -> None:
    view = changed(entry.view, update_timestamp=draft.timestamp)
    key = (view.schema_id, view.name)
    before = draft.view_names.get(key)
    views = draft.views if before is None else draft.views.without(before)
    draft.require_new(views, view.id, entry)
    draft.touch(view.schema_id, entry)
    draft.views = views.put(view.id, view)
    draft.view_names = draft.view_names.put(key, view.id)


def _advance_ids(draft: Draft, entry: model.AdvanceIds) -> None:
    draft.last_id += entry.delta


_APPLY: Final[dict[type, Callable[[Draft, Any], None]]] = {
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
    model.StartBuildingIndex: _index_status(IndexStatus.BUILDING),
    model.MakeIndexAvailable: _index_status(IndexStatus.AVAILABLE),
    model.DropIndex: _index_status(IndexStatus.STOPPING),
    model.RemoveIndex: _remove_index,
    model.RenameIndex: _rename_index,
    model.NewSystemView: _new_view,
    model.AdvanceIds: _advance_ids,
}
