"""One version of a catalog, which shares with the version before it whatever did not change."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

from compaction.catalogs.errors import CatalogArgumentError
from compaction.catalogs.model.descriptors import MINIMUM, Index, Schema, SchemaContents, SystemView, Table, Zone
from compaction.catalogs.model.entries import Snapshot

# A map that shares with the map it was made from whatever did not change.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_FULL = 16
"""Keys in a bucket, on average, before there are twice as many buckets."""
_PAGE = 5
"""Bits of a hash that choose a bucket within a page of buckets."""
_SLOTS = (1 << _PAGE) - 1
_new = object.__new__


class SharedMap(Generic[K, V]):
    """Immutable. `put` and `without` copy a bucket of about ten keys, a page of 32 buckets and the list of pages: 200
    keys cost less than 1 KB a version, where a copy of a dictionary takes 10, and 20,000 keys cost 2 KB.
    """

    __slots__ = ("_mask", "_pages", "_size")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        found = dict(items)
        self._size = len(found)
        count = 1
        while self._size > _FULL // 2 * count:
            count *= 2
        self._mask = count - 1
        buckets: list[dict[K, V]] = [{} for _ in range(count)]
        for key, value in found.items():
            buckets[hash(key) & self._mask][key] = value
        self._pages = tuple(tuple(buckets[at : at + _SLOTS + 1]) for at in range(0, count, _SLOTS + 1))

    def get(self, key: K) -> V | None:
        at = hash(key) & self._mask
        return self._pages[at >> _PAGE][at & _SLOTS].get(key)

    def __getitem__(self, key: K) -> V:
        at = hash(key) & self._mask
        return self._pages[at >> _PAGE][at & _SLOTS][key]

    def __contains__(self, key: K) -> bool:
        at = hash(key) & self._mask
        return key in self._pages[at >> _PAGE][at & _SLOTS]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for page in self._pages:
            for bucket in page:
                yield from bucket

    def items(self) -> Iterator[tuple[K, V]]:
        for page in self._pages:
            for bucket in page:
                yield from bucket.items()

    def values(self) -> Iterator[V]:
        for page in self._pages:
            for bucket in page:
                yield from bucket.values()

    def put(self, key: K, value: V) -> SharedMap[K, V]:
        """With `key` -> `value`, whether the key is there or not."""
        at = hash(key) & self._mask
        before = self._pages[at >> _PAGE][at & _SLOTS]
        bucket = before.copy()
        bucket[key] = value
        size = self._size + len(bucket) - len(before)
        if size > _FULL * (self._mask + 1):
            grown = dict(self.items())
            grown[key] = value
            return SharedMap(grown.items())
        return self._with(at, bucket, size)

    def without(self, key: K) -> SharedMap[K, V]:
        """Itself when the key is not there."""
        at = hash(key) & self._mask
        bucket = self._pages[at >> _PAGE][at & _SLOTS]
        if key not in bucket:
            return self
        # A copy would keep the place of the key that is gone.
        return self._with(at, {kept: value for kept, value in bucket.items() if kept != key}, self._size - 1)

    def changes_since(self, before: SharedMap[K, V]) -> Iterator[tuple[K, V | None]]:
        """Keys whose value is not the same object as in `before`, with the value, None for one that is gone. Pages and
        buckets that both share are passed over.
        """
        if self._mask != before._mask:
            yield from _changes(dict(before.items()), dict(self.items()))
            return
        for old_page, page in zip(before._pages, self._pages, strict=True):
            if old_page is page:
                continue
            for old, new in zip(old_page, page, strict=True):
                if old is not new:
                    yield from _changes(old, new)

    def _with(self, at: int, bucket: dict[K, V], size: int) -> SharedMap[K, V]:
        """With another bucket. Here, and above, names are spelled out where a call would cost as much as the work: a
        version of a catalog changes four or five maps.
        """
        pages = self._pages
        number = at >> _PAGE
        page = list(pages[number])
        page[at & _SLOTS] = bucket
        made: SharedMap[K, V] = _new(SharedMap)
        made._mask = self._mask
        made._pages = (tuple(page),) if len(pages) == 1 else (*pages[:number], tuple(page), *pages[number + 1 :])
        made._size = size
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedMap) and len(self) == len(other) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SharedMap({dict(self.items())!r})"


def _changes(before: dict[K, V], after: dict[K, V]) -> Iterator[tuple[K, V | None]]:
    for key, value in after.items():
        if before.get(key) is not value:
            yield key, value
    for key in before:
        if key not in after:
            yield key, None


# One version of a catalog. What a version did not change is the object of the version before
# (docs/design/catalogs.md#versions).

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
    views: SharedMap[int, SystemView] = field(default_factory=SharedMap)
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

    def view(self, schema: Schema, name: str) -> SystemView | None:
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
        views: dict[int, list[SystemView]] = {id: [] for id in self.schemas}
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
