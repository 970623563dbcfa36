"""The policies that are known, and which of them share a store: kept up to date by each change of a policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from compaction.api.policy.resource import CompactionPolicy
from compaction.core.reconcile.overlap import Claimant, older_owner, said, share_a_store
from compaction.kube.informer.cache import ObjectKey


class Overlaps:
    """Owned by the controller. A change of a spec costs one comparison with each policy whose store lies at, around or
    inside its own, however many others there are; a question one with each policy that shares the store.
    """

    def __init__(self) -> None:
        self._claimants: dict[ObjectKey, Claimant] = {}
        self._versions: dict[ObjectKey, tuple[str, int]] = {}
        self._neighbours: dict[ObjectKey, set[ObjectKey]] = {}
        self._places = _Places()

    def note(self, key: ObjectKey, policy: CompactionPolicy | None) -> frozenset[ObjectKey]:
        """Take what a policy is now (None: gone, or not valid); returns the others for which that changes something."""
        version = None if policy is None else (policy.metadata.uid, policy.metadata.generation)
        if version == self._versions.get(key):
            return frozenset()
        before = self._neighbours.pop(key, set())
        for other in before:
            self._neighbours[other].discard(key)
        if (known := self._claimants.pop(key, None)) is not None:
            self._places.remove(key, known.places)
        self._versions.pop(key, None)
        if policy is None or version is None:
            return frozenset(before)
        mine = Claimant.of(policy)
        after = {other for other in self._places.near(mine.places) if share_a_store(mine, self._claimants[other])}
        for other in after:
            self._neighbours[other].add(key)
        self._places.add(key, mine.places)
        self._claimants[key], self._versions[key], self._neighbours[key] = mine, version, after
        return frozenset(before | after)

    def held_by(self, key: ObjectKey) -> str:
        """What keeps the policy from its store: an older one, in words; "" when nothing does."""
        mine = self._claimants.get(key)
        if mine is None:
            return ""
        owner = older_owner(mine, [self._claimants[other] for other in self._neighbours[key]])
        return said(mine, owner) if owner is not None else ""


class _Places:
    """Who has which places (`Claimant.places`), found by the paths around and inside of one."""

    def __init__(self) -> None:
        self._at: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._inside: defaultdict[str, set[ObjectKey]] = defaultdict(set)

    def add(self, key: ObjectKey, places: Iterable[str]) -> None:
        for place in places:
            self._at[place].add(key)
            for around in _around(place):
                self._inside[around].add(key)

    def remove(self, key: ObjectKey, places: Iterable[str]) -> None:
        for place in places:
            _discard(self._at, place, key)
            for around in _around(place):
                _discard(self._inside, around, key)

    def near(self, places: Iterable[str]) -> set[ObjectKey]:
        found: set[ObjectKey] = set()
        for place in places:
            found.update(self._inside.get(place, ()), *(self._at.get(one, ()) for one in (place, *_around(place))))
        return found


def _around(place: str) -> Iterator[str]:
    end = place.rfind("/")
    while end >= 0:
        yield place[:end]
        end = place.rfind("/", 0, end)


def _discard(places: defaultdict[str, set[ObjectKey]], place: str, key: ObjectKey) -> None:
    places[place].discard(key)
    if not places[place]:
        del places[place]
