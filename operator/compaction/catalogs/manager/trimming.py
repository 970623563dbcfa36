"""Column sets of tables that no retained version reaches (docs/design/catalogs.md#column-sets).

A table keeps every version of its columns, and each change of columns adds one. When history is cut, the sets before
the one that the earliest retained version uses have no reader left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compaction.catalogs.model.catalog import Catalog
from compaction.catalogs.model.changing import changed
from compaction.catalogs.model.descriptors import SchemaContents, Table
from compaction.catalogs.model.entries import Snapshot


def trimmed(snapshot: Snapshot, retained: Iterable[Catalog] = ()) -> Snapshot:
    """The snapshot without the column sets that neither it nor a version in `retained` uses for a table.

    Numbers of column sets stay: `Table.base` is that of the first one kept.
    """
    oldest = {table.id: table.latest_version for contents in snapshot.schemas for table in contents.tables}
    for catalog in retained:
        for table in catalog.tables.values():
            if table.id in oldest:
                oldest[table.id] = min(oldest[table.id], table.latest_version)
    return changed(snapshot, schemas=tuple(_trimmed_schema(contents, oldest) for contents in snapshot.schemas))


def _trimmed_schema(contents: SchemaContents, oldest: dict[int, int]) -> SchemaContents:
    return changed(contents, tables=tuple(from_column_set(table, oldest[table.id]) for table in contents.tables))


def from_column_set(table: Table, number: int) -> Table:
    """The table with its column sets from `number` on; itself when it begins there or later."""
    gone = number - table.base
    return table if gone <= 0 else changed(table, base=number, versions=table.versions[gone:])


def as_snapshot_has_them(snapshot: Catalog, before: Catalog, later: Sequence[Catalog]) -> list[Catalog]:
    """`later`, which follow `before`, as they would be had they followed `snapshot`, the same version with fewer column
    sets: a process that reads the log from the snapshot on and one that was there before it hold equal versions.
    """
    floors = {
        table.id: table.base
        for table in snapshot.tables.values()
        if (known := before.tables.get(table.id)) is not None and table.base > known.base
    }
    if not floors:
        return list(later)
    tables, known_tables = snapshot.tables, before.tables
    found = []
    for catalog in later:
        for id, table in catalog.tables.changes_since(known_tables):
            kept = None if table is None else from_column_set(table, floors.get(id, table.base))
            tables = tables.without(id) if kept is None else tables.put(id, kept)
        known_tables = catalog.tables
        found.append(changed(catalog, tables=tables))
    return found
