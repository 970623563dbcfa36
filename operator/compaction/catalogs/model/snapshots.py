"""A catalog from a snapshot of the log."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from compaction.catalogs.errors import InapplicableEntryError
from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.descriptors import Index, Table, View
from compaction.catalogs.model.entries import Snapshot
from compaction.catalogs.model.maps import SharedMap


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
        inside: tuple[Table | View, ...] = (*contents.tables, *contents.views)
        for one in inside:
            if one.schema_id != contents.schema.id:
                reason = f"{one.id} is in schema {contents.schema.id} and names schema {one.schema_id}"
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
