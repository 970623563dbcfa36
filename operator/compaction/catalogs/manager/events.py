"""What a version changed, for listeners (docs/design/catalogs.md#events)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final

from compaction.catalogs.model import entries as model
from compaction.catalogs.model.changing import changed
from compaction.catalogs.model.descriptors import Column, Columns, Index, Table, View, Zone


class EventKind(StrEnum):
    """What a listener asks for. The names are those of the reference; it has no VERSIONS_SKIPPED."""

    TABLE_CREATE = "TABLE_CREATE"
    TABLE_DROP = "TABLE_DROP"
    TABLE_ALTER = "TABLE_ALTER"
    """A new name, added, dropped or altered columns, other properties."""
    INDEX_CREATE = "INDEX_CREATE"
    INDEX_BUILDING = "INDEX_BUILDING"
    INDEX_AVAILABLE = "INDEX_AVAILABLE"
    INDEX_STOPPING = "INDEX_STOPPING"
    INDEX_REMOVED = "INDEX_REMOVED"
    ZONE_CREATE = "ZONE_CREATE"
    ZONE_DROP = "ZONE_DROP"
    ZONE_ALTER = "ZONE_ALTER"
    SYSTEM_VIEW_CREATE = "SYSTEM_VIEW_CREATE"
    SET_DEFAULT_ZONE = "SET_DEFAULT_ZONE"
    VERSIONS_SKIPPED = "VERSIONS_SKIPPED"
    """The log cut versions before this process read them: there are no events of them."""


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """`revision`: of the log, where the version was written. `version`: of the catalog, which listeners may read."""

    kind: ClassVar[EventKind]
    revision: int
    version: int


@dataclass(frozen=True, slots=True)
class TableCreated(CatalogEvent):
    kind = EventKind.TABLE_CREATE
    table: Table


@dataclass(frozen=True, slots=True)
class TableDropped(CatalogEvent):
    kind = EventKind.TABLE_DROP
    table_id: int


@dataclass(frozen=True, slots=True)
class TableAltered(CatalogEvent):
    """Any change of a table; the classes below say which."""

    kind = EventKind.TABLE_ALTER
    table_id: int


@dataclass(frozen=True, slots=True)
class TableRenamed(TableAltered):
    name: str


@dataclass(frozen=True, slots=True)
class ColumnsAdded(TableAltered):
    columns: Columns


@dataclass(frozen=True, slots=True)
class ColumnsDropped(TableAltered):
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ColumnAltered(TableAltered):
    column: Column


@dataclass(frozen=True, slots=True)
class TablePropertiesAltered(TableAltered):
    """A property that is None was not changed."""

    stale_rows_fraction: float | None
    min_stale_rows_count: int | None


@dataclass(frozen=True, slots=True)
class IndexCreated(CatalogEvent):
    kind = EventKind.INDEX_CREATE
    index: Index


@dataclass(frozen=True, slots=True)
class IndexBuilding(CatalogEvent):
    kind = EventKind.INDEX_BUILDING
    index_id: int


@dataclass(frozen=True, slots=True)
class IndexAvailable(CatalogEvent):
    kind = EventKind.INDEX_AVAILABLE
    index_id: int


@dataclass(frozen=True, slots=True)
class IndexStopping(CatalogEvent):
    kind = EventKind.INDEX_STOPPING
    index_id: int


@dataclass(frozen=True, slots=True)
class IndexRemoved(CatalogEvent):
    kind = EventKind.INDEX_REMOVED
    index_id: int


@dataclass(frozen=True, slots=True)
class ZoneCreated(CatalogEvent):
    kind = EventKind.ZONE_CREATE
    zone: Zone


@dataclass(frozen=True, slots=True)
class ZoneDropped(CatalogEvent):
    kind = EventKind.ZONE_DROP
    zone_id: int


@dataclass(frozen=True, slots=True)
class ZoneAltered(CatalogEvent):
    kind = EventKind.ZONE_ALTER
    zone: Zone


@dataclass(frozen=True, slots=True)
class SystemViewCreated(CatalogEvent):
    kind = EventKind.SYSTEM_VIEW_CREATE
    view: View


@dataclass(frozen=True, slots=True)
class DefaultZoneSet(CatalogEvent):
    kind = EventKind.SET_DEFAULT_ZONE
    zone_id: int


@dataclass(frozen=True, slots=True)
class VersionsSkipped(CatalogEvent):
    """The catalog went from `after` to `version` at once."""

    kind = EventKind.VERSIONS_SKIPPED
    after: int


def events_of(update: model.VersionedUpdate, timestamp: int, revision: int) -> Iterator[CatalogEvent]:
    """One for each entry that has one, in the order of the entries. Descriptors bear the `timestamp` of the update.

    There is none for schemas, names of indexes and the generator of ids.
    """
    for entry in update.entries:
        make = _EVENTS.get(type(entry))
        if make is not None:
            yield make(entry, timestamp, (revision, update.version))


def _stamped(descriptor: Any, timestamp: int) -> Any:
    return changed(descriptor, update_timestamp=timestamp)


_At = tuple[int, int]
_EVENTS: Final[Mapping[type, Callable[[Any, int, _At], CatalogEvent]]] = {
    model.NewTable: lambda entry, time, at: TableCreated(*at, _stamped(entry.table, time)),
    model.DropTable: lambda entry, _, at: TableDropped(*at, entry.id),
    model.RenameTable: lambda entry, _, at: TableRenamed(*at, entry.id, entry.name),
    model.AlterTableProperties: lambda entry, _, at: TablePropertiesAltered(
        *at, entry.id, entry.stale_rows_fraction, entry.min_stale_rows_count
    ),
    model.NewColumns: lambda entry, _, at: ColumnsAdded(*at, entry.table_id, entry.columns),
    model.AlterColumn: lambda entry, _, at: ColumnAltered(*at, entry.table_id, entry.column),
    model.DropColumns: lambda entry, _, at: ColumnsDropped(*at, entry.table_id, entry.names),
    model.NewIndex: lambda entry, time, at: IndexCreated(*at, _stamped(entry.index, time)),
    model.StartBuildingIndex: lambda entry, _, at: IndexBuilding(*at, entry.id),
    model.MakeIndexAvailable: lambda entry, _, at: IndexAvailable(*at, entry.id),
    model.DropIndex: lambda entry, _, at: IndexStopping(*at, entry.id),
    model.RemoveIndex: lambda entry, _, at: IndexRemoved(*at, entry.id),
    model.NewZone: lambda entry, time, at: ZoneCreated(*at, _stamped(entry.zone, time)),
    model.AlterZone: lambda entry, time, at: ZoneAltered(*at, _stamped(entry.zone, time)),
    model.DropZone: lambda entry, _, at: ZoneDropped(*at, entry.id),
    model.SetDefaultZone: lambda entry, _, at: DefaultZoneSet(*at, entry.id),
    model.NewSystemView: lambda entry, time, at: SystemViewCreated(*at, _stamped(entry.view, time)),
}
