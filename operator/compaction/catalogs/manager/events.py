"""Events of a version for its listeners, and the versions with which all listeners are done."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from threading import Lock
from typing import Any, ClassVar, Final

from compaction.catalogs.manager import futures
from compaction.catalogs.model import entries as model
from compaction.catalogs.model.descriptors import Columns, Index, SystemView, Table, TableColumn, Zone, changed

# Changes of a version, for listeners (docs/design/catalogs.md#events).


class EventKind(StrEnum):
    """The kinds of events that listeners ask for. The names are those of the reference; it has no VERSIONS_SKIPPED."""

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
    column: TableColumn


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
    view: SystemView


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
    model.NewTableEntry: lambda entry, time, at: TableCreated(*at, _stamped(entry.table, time)),
    model.DropTableEntry: lambda entry, _, at: TableDropped(*at, entry.id),
    model.RenameTableEntry: lambda entry, _, at: TableRenamed(*at, entry.id, entry.name),
    model.AlterTablePropertiesEntry: lambda entry, _, at: TablePropertiesAltered(
        *at, entry.id, entry.stale_rows_fraction, entry.min_stale_rows_count
    ),
    model.NewColumnsEntry: lambda entry, _, at: ColumnsAdded(*at, entry.table_id, entry.columns),
    model.AlterColumnEntry: lambda entry, _, at: ColumnAltered(*at, entry.table_id, entry.column),
    model.DropColumnsEntry: lambda entry, _, at: ColumnsDropped(*at, entry.table_id, entry.names),
    model.NewIndexEntry: lambda entry, time, at: IndexCreated(*at, _stamped(entry.index, time)),
    model.StartBuildingIndexEntry: lambda entry, _, at: IndexBuilding(*at, entry.id),
    model.MakeIndexAvailableEntry: lambda entry, _, at: IndexAvailable(*at, entry.id),
    model.DropIndexEntry: lambda entry, _, at: IndexStopping(*at, entry.id),
    model.RemoveIndexEntry: lambda entry, _, at: IndexRemoved(*at, entry.id),
    model.NewZoneEntry: lambda entry, time, at: ZoneCreated(*at, _stamped(entry.zone, time)),
    model.AlterZoneEntry: lambda entry, time, at: ZoneAltered(*at, _stamped(entry.zone, time)),
    model.DropZoneEntry: lambda entry, _, at: ZoneDropped(*at, entry.id),
    model.SetDefaultZoneEntry: lambda entry, _, at: DefaultZoneSet(*at, entry.id),
    model.NewSystemViewEntry: lambda entry, time, at: SystemViewCreated(*at, _stamped(entry.view, time)),
}


# Listeners of events, and the wait for all of them (docs/design/catalogs.md#events).

Answer = bool | None
Listener = Callable[[CatalogEvent], Answer | Future[Answer]]
"""Answers at once or by a future; the version is not ready before. True: the listener is unsubscribed."""


class Listeners:
    """The listeners of each kind of event. A listener that fails is reported and stays subscribed."""

    def __init__(self, report: Callable[[BaseException], None]) -> None:
        self._report = report
        self._by_kind: dict[EventKind, tuple[Listener, ...]] = {}
        self._lock = Lock()

    def add(self, kind: EventKind, listener: Listener) -> None:
        with self._lock:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), listener)

    def remove(self, kind: EventKind, listener: Listener) -> None:
        """Nothing happens when it does not listen."""
        with self._lock:
            self._by_kind[kind] = tuple(item for item in self._by_kind.get(kind, ()) if item is not listener)

    def fire(self, events: Iterable[CatalogEvent]) -> Future[None]:
        """Call all listeners of all events; the future is done when every answer is there, failed ones included."""
        called = [(event, listener) for event in events for listener in self._by_kind.get(event.kind, ())]
        finished: Future[None] = futures.pending()
        left = len(called)
        lock = Lock()

        def answered() -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                finished.set_result(None)

        if not called:
            finished.set_result(None)
        for event, listener in called:
            self._call(event, listener, answered)
        return finished

    def _call(self, event: CatalogEvent, listener: Listener, answered: Callable[[], None]) -> None:
        def finish(answer: Future[Answer]) -> None:
            error = answer.exception()
            if error is not None:
                self._report(error)
            elif answer.result() is True:
                self.remove(event.kind, listener)
            answered()

        def answer() -> Future[Answer]:
            found = listener(event)
            return found if isinstance(found, Future) else futures.done(found)

        futures.started(answer).add_done_callback(finish)


# Versions that are ready: all listeners have finished with their events.


class Readiness:
    """The last version that is ready, and futures of those that are not yet."""

    def __init__(self) -> None:
        self._version = 0
        self._waiting: list[tuple[int, int, Future[None]]] = []
        self._order = count()
        self._error: Exception | None = None
        self._lock = Lock()

    @property
    def version(self) -> int:
        return self._version

    def until(self, version: int) -> Future[None]:
        """Done when `version` or a later one is ready."""
        future: Future[None] = futures.pending()
        with self._lock:
            error = self._error
            reached = version <= self._version
            if not reached and error is None:
                heapq.heappush(self._waiting, (version, next(self._order), future))
                return future
        if reached:
            future.set_result(None)
        else:
            future.set_exception(error)
        return future

    def reach(self, version: int) -> None:
        """`version` and all before it are ready."""
        ready = []
        with self._lock:
            self._version = max(version, self._version)
            while self._waiting and self._waiting[0][0] <= self._version:
                ready.append(heapq.heappop(self._waiting)[2])
        for future in ready:
            future.set_result(None)

    def stop(self, error: Exception) -> None:
        """No further version becomes ready: futures fail with `error`, now and from now on. The first error counts."""
        with self._lock:
            if self._error is None:
                self._error = error
            waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            future.set_exception(error)
