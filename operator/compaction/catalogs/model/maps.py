"""A map that shares with the map it was made from whatever did not change."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

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

    def _bucket(self, key: K) -> dict[K, V]:
        at = hash(key) & self._mask
        return self._pages[at >> _PAGE][at & _SLOTS]

    def get(self, key: K) -> V | None:
        at = hash(key) & self._mask
        return self._pages[at >> _PAGE][at & _SLOTS].get(key)

    def __getitem__(self, key: K) -> V:
        at = hash(key) & self._mask
        return self._pages[at >> _PAGE][at & _SLOTS][key]

    def __contains__(self, key: K) -> bool:
        return key in self._bucket(key)

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
