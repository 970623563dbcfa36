"""The retained versions of a catalog, by number and by activation time, and what is trimmed from them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from compaction.catalogs.errors import CatalogArgumentError, CatalogNotFoundError, InapplicableEntryError
from compaction.catalogs.log.port import LogEvent
from compaction.catalogs.model.applying import applied, restored
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.descriptors import Table, changed
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate

# Settings that all processes of one catalog must agree on.


@dataclass(frozen=True, slots=True)
class Settings:
    """`delay`: milliseconds from an update's timestamp to its activation, in which it reaches every process.
    `max_skew`: most milliseconds that the clocks of two processes are apart. `partitions`: of a zone that names no
    number. `slowest_append`: most milliseconds from reading the clock to the log's answer (`wait_complete`).

    ValueError for a negative time or no partition.
    """

    delay: int = 500
    max_skew: int = 500
    partitions: int = 25
    slowest_append: int = 1_000

    def __post_init__(self) -> None:
        if min(self.delay, self.max_skew, self.slowest_append) < 0 or self.partitions < 1:
            raise ValueError(f"a catalog needs times from 0 and a partition at least: {self}")


# Column sets of tables that no retained version reaches (docs/design/catalogs.md#column-sets).
#
# A table keeps every version of its columns, and each change of columns adds one. When history is cut, the sets
# before the one that the earliest retained version uses have no reader left.


def trimmed(snapshot: Snapshot, retained: Iterable[Catalog] = ()) -> Snapshot:
    """The snapshot without the column sets that neither it nor a version in `retained` uses for a table.

    Numbers of column sets stay: `Table.base` is that of the first one kept.
    """
    oldest = {table.id: table.latest_version for contents in snapshot.schemas for table in contents.tables}
    for catalog in retained:
        for table in catalog.tables.values():
            if table.id in oldest:
                oldest[table.id] = min(oldest[table.id], table.latest_version)
    return changed(
        snapshot,
        schemas=tuple(
            changed(contents, tables=tuple(from_column_set(table, oldest[table.id]) for table in contents.tables))
            for contents in snapshot.schemas
        ),
    )


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


# The retained versions of a catalog, by number and by activation time (docs/design/catalogs.md#history).

_ACTIVATION = attrgetter("activation_time")


class CatalogHistory:
    """Immutable: consecutive versions, their activation times ascending, at least one.

    Histories that grow from one another share a list and differ in where they end, so that an append costs the same
    after ten versions and after a hundred thousand. An append to a history that has grown already copies it.
    """

    __slots__ = ("_catalogs", "_end")

    def __init__(self, catalogs: Sequence[Catalog]) -> None:
        """`catalogs`: ascending. InapplicableEntryError when they do not follow each other."""
        for before, after in pairwise(catalogs):
            _require_following(before, after)
        self._catalogs = list(catalogs)
        self._end = len(self._catalogs)

    @property
    def earliest(self) -> Catalog:
        return self._catalogs[0]

    @property
    def latest(self) -> Catalog:
        """The last one, whether it is active or not."""
        return self._catalogs[self._end - 1]

    def __len__(self) -> int:
        return self._end

    def __iter__(self) -> Iterator[Catalog]:
        """By ascending version."""
        return iter(self._catalogs[: self._end])

    def find(self, version: int) -> Catalog | None:
        """The version of this number, None when it is not retained."""
        _require_number(version, "the number of a version")
        at = version - self.earliest.version
        return self._catalogs[at] if 0 <= at < self._end else None

    def catalog(self, version: int) -> Catalog:
        """The version of this number; CatalogNotFoundError when it is not retained."""
        found = self.find(version)
        if found is None:
            raise CatalogNotFoundError.of_version(version, self.earliest.version, self.latest.version)
        return found

    def active(self, at: int) -> Catalog:
        """The last version whose activation time is not after `at`; CatalogNotFoundError before the earliest."""
        found = self.find_active(at)
        if found is None:
            raise CatalogNotFoundError.at_time(at, self.earliest.version, self.earliest.activation_time)
        return found

    def find_active(self, at: int) -> Catalog | None:
        """As `active`; None when that version is not retained."""
        _require_number(at, "a time, which is a hybrid timestamp (model.hybrid)")
        index = bisect_right(self._catalogs, at, 0, self._end, key=_ACTIVATION)
        return self._catalogs[index - 1] if index else None

    def appended(self, catalog: Catalog) -> CatalogHistory:
        """With the version after the latest. InapplicableEntryError when it is another, or is not active later."""
        _require_following(self.latest, catalog)
        if self._end == len(self._catalogs):
            self._catalogs.append(catalog)
            grown: CatalogHistory = CatalogHistory.__new__(CatalogHistory)
            grown._catalogs = self._catalogs
            grown._end = self._end + 1
            return grown
        return CatalogHistory([*self, catalog])

    def followed_by(self, event: LogEvent) -> CatalogHistory:
        """With what the log delivered next; errors as `appended`, and those of a snapshot that contradicts itself."""
        if isinstance(event.event, Snapshot):
            return self.snapshotted(restored(event.event))
        return self.with_update(event.event, event.timestamp)

    def with_update(self, update: VersionedUpdate, timestamp: int) -> CatalogHistory:
        """With the version that an update of the log, stored at `timestamp`, leads to; errors as `appended`."""
        return self.appended(applied(self.latest, update, timestamp))

    def snapshotted(self, catalog: Catalog) -> CatalogHistory:
        """Return the history after the log replaced everything up to a version by a snapshot of it: it begins with that
        version, or holds that one alone when it is later than the latest. Return the history itself when it begins
        later already.

        Column sets that the snapshot dropped are dropped from later versions too, as if they had been read after it.
        """
        if catalog.version < self.earliest.version:
            return self
        before = self.find(catalog.version)
        if before is None:
            return CatalogHistory([catalog])
        later = self._catalogs[catalog.version - self.earliest.version + 1 : self._end]
        return CatalogHistory([catalog, *as_snapshot_has_them(catalog, before, later)])


def _require_number(value: int, of: str) -> None:
    """A float would compare with timestamps as well, and has too few digits for them."""
    if type(value) is not int:
        raise CatalogArgumentError(f"{value!r:.80} is not {of}: a whole number is needed")


def _require_following(before: Catalog, after: Catalog) -> None:
    if after.version != before.version + 1:
        raise InapplicableEntryError(after.version, "the version", f"version {before.version} is the one before it")
    if after.activation_time <= before.activation_time:
        reason = f"{after.activation_time} is not after {before.activation_time}, that of version {before.version}"
        raise InapplicableEntryError(after.version, "the activation time", reason)


START = CatalogHistory([EMPTY])
"""Of an empty log: version 0."""


def recovered(events: Iterable[LogEvent]) -> CatalogHistory:
    """Of a log that was read from its beginning; version 0 is there until history is cut. Errors as `followed_by`."""
    history = START
    for event in events:
        history = history.followed_by(event)
    return history
