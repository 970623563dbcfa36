"""A keyed store of watched objects: what the coordinator believes the API server holds.

Fed by watch events, by the answers of our own writes, and by a periodic relist that repairs what a watch lost
(after a 410, deletions are never reported: docs/design/control-plane-traps.md#kopf). Invariants:

* an object never goes back to an older resourceVersion, and a deleted object (by UID) never comes back; so the three
  sources may arrive in any order (resourceVersions of one kind are comparable: KEP-5504, stable since Kubernetes 1.35);
* indexes always agree with the objects;
* stored bodies carry no managedFields and are never changed in place: treat them as frozen.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from compaction.api.names import CATALOG_KIND, LABEL_MANAGED_BY, LABEL_POLICY, MANAGED_BY
from compaction.kube.client.transport import (
    CATALOG_COMPACTIONS,
    COMPACTION_JOBS,
    COMPACTION_POLICIES,
    LEASES,
    Obj,
    Resource,
)

_REMEMBERED_DELETIONS: Final = 10_000
_LONGEST_SHARED: Final = 64
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


class CacheKey(NamedTuple):
    """Namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class CatalogKey(CacheKey):
    """Namespace and name of a catalog: another key of the queue than that of a policy of the same name."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CatalogKey) and tuple(self) == tuple(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((CATALOG_KIND, *self))

    def __str__(self) -> str:
        return f"{CATALOG_KIND} {self.namespace}/{self.name}"


class CacheChange(StrEnum):
    """The effect of an update on the store."""

    ADDED = "Added"
    UPDATED = "Updated"
    DELETED = "Deleted"


@dataclass(frozen=True, slots=True)
class Delta:
    """One change, with the object before and after; `old` is None for Added, `new` for Deleted."""

    change: CacheChange
    key: CacheKey
    old: Obj | None
    new: Obj | None

    @property
    def body(self) -> Obj:
        """The newest body known: after the change, or the last one before a deletion."""
        body = self.new if self.new is not None else self.old
        assert body is not None, "a delta has at least one side"
        return body


def key_of(body: Obj) -> CacheKey:
    """The key of an object."""
    metadata = body["metadata"]
    return CacheKey(metadata.get("namespace", ""), metadata["name"])


def version_order(version: str) -> tuple[int, str]:
    """Sort key of a resourceVersion: by length, then lexically, which orders decimals of any size (KEP-5504)."""
    return len(version), version


def project(body: Obj) -> Obj:
    """The object without what no reader here needs (managedFields and kubectl's copy of the spec), and with one copy of
    each string: every event is parsed by itself, and else each object has its own names of all fields, which are more
    than half of what it takes.
    """
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    if _LAST_APPLIED in (metadata.get("annotations") or {}):
        kept = {key: value for key, value in metadata["annotations"].items() if key != _LAST_APPLIED}
        metadata["annotations"] = kept
    return {sys.intern(key): _shared(value) for key, value in {**body, "metadata": metadata}.items()}


def _shared(value: Any) -> Any:
    if type(value) is dict:
        return {sys.intern(key): _shared(item) for key, item in value.items()}
    if type(value) is list:
        return [_shared(item) for item in value]
    return sys.intern(value) if type(value) is str and len(value) <= _LONGEST_SHARED else value


Indexer = Callable[[Obj], Iterable[CacheKey]]


class KindStore:
    """All objects of one kind, with named indexes from some ObjectKey (here: of a policy) to the objects' keys."""

    def __init__(self, resource: Resource, *, indexers: Mapping[str, Indexer] | None = None) -> None:
        self.resource = resource
        self._objects: dict[CacheKey, Obj] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[CacheKey, set[CacheKey]]] = {name: {} for name in self._indexers}
        # uid -> nothing, oldest first: UIDs are never reused, so membership is all there is to know.
        self._deleted: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Obj]:
        return iter(tuple(self._objects.values()))

    def keys(self) -> tuple[CacheKey, ...]:
        """The keys of all objects."""
        return tuple(self._objects)

    def get(self, namespace: str, name: str) -> Obj | None:
        """One object, or None."""
        return self._objects.get(CacheKey(namespace, name))

    def indexed(self, index: str, key: CacheKey) -> list[Obj]:
        """The objects that an index holds under a key, by name."""
        return [self._objects[found] for found in sorted(self._indexes[index].get(key, ()))]

    def upsert(self, body: Obj) -> Delta | None:
        """Take an object as the server gave it; None when it says nothing new (older, the same, or deleted)."""
        key, uid = key_of(body), body["metadata"]["uid"]
        # A watch event that was delayed, or the answer to an old write: an object that was deleted has no later state.
        if uid in self._deleted:
            return None
        old = self._objects.get(key)
        if old is not None:
            known = version_order(old["metadata"]["resourceVersion"])
            # Also across a delete and recreate of one name: the later object has the later version.
            if version_order(body["metadata"]["resourceVersion"]) <= known:
                return None
            self._unindex(key, old)
            if old["metadata"]["uid"] != uid:
                self._bury(old["metadata"]["uid"])
        new = project(body)  # only what is kept: lists tell again what is known, and Kopf's watches list now and then
        self._objects[key] = new
        self._index(key, new)
        return Delta(CacheChange.UPDATED if old is not None else CacheChange.ADDED, key, old, new)

    def remove(self, body: Obj) -> Delta | None:
        """Forget an object that the server deleted; None when another object has taken its name, or it is unknown."""
        key, uid = key_of(body), body["metadata"]["uid"]
        self._bury(uid)
        old = self._objects.get(key)
        # The deletion of a predecessor: the name already belongs to another object.
        if old is None or old["metadata"]["uid"] != uid:
            return None
        del self._objects[key]
        self._unindex(key, old)
        return Delta(CacheChange.DELETED, key, old, None)

    def sweep(self, items: Iterable[Obj], resource_version: str, *, namespace: str | None = None) -> list[Delta]:
        """Mark and sweep with a complete list, taken at `resource_version`: returns every repair made.

        What the list lacks is deleted, unless it is newer than the list. `namespace` limits the sweep to one.
        """
        listed = list(items)
        deltas = [delta for delta in map(self.upsert, listed) if delta is not None]
        present = {item["metadata"]["uid"] for item in listed}
        horizon = version_order(resource_version)
        for key, body in tuple(self._objects.items()):
            if namespace is not None and key.namespace != namespace:
                continue
            metadata = body["metadata"]
            # Listed; or newer than the list, by our own write or the watch, so that the list could not contain it.
            if metadata["uid"] in present or version_order(metadata["resourceVersion"]) > horizon:
                continue
            delta = self.remove(body)
            if delta is not None:
                deltas.append(delta)
        return deltas

    def _bury(self, uid: str) -> None:
        self._deleted[uid] = None
        while len(self._deleted) > _REMEMBERED_DELETIONS:
            self._deleted.popitem(last=False)

    def _index(self, key: CacheKey, body: Obj) -> None:
        for name, indexer in self._indexers.items():
            for value in indexer(body):
                self._indexes[name].setdefault(value, set()).add(key)

    def _unindex(self, key: CacheKey, body: Obj) -> None:
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            for value in indexer(body):
                members = index.get(value)
                if members is not None:
                    members.discard(key)
                    if not members:
                        del index[value]


def policy_of_job(body: Obj) -> tuple[CacheKey, ...]:
    """The policy a job names in spec.policyRef (jobs made by hand included)."""
    name = ((body.get("spec") or {}).get("policyRef") or {}).get("name")
    return (CacheKey(body["metadata"].get("namespace", ""), name),) if name else ()


def policy_of_lease(body: Obj) -> tuple[CacheKey, ...]:
    """The policy a worker's or a job's Lease is labelled with."""
    name = (body["metadata"].get("labels") or {}).get(LABEL_POLICY)
    return (CacheKey(body["metadata"].get("namespace", ""), name),) if name else ()


class ObjectCache:
    """The kinds the coordinator watches, and which policy or catalog each object belongs to. `catalogs`: whether
    catalogs are among them.
    """

    #: Leases are watched and listed by this selector: ours, and of a policy (so not the coordinator's own).
    LEASE_SELECTOR: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_POLICY}"

    def __init__(self, *, catalogs: bool = False) -> None:
        self._with_catalogs = catalogs
        self.catalogs = KindStore(CATALOG_COMPACTIONS)
        self.policies = KindStore(COMPACTION_POLICIES)
        self.jobs = KindStore(COMPACTION_JOBS, indexers={"policy": policy_of_job})
        self.leases = KindStore(LEASES, indexers={"policy": policy_of_lease})

    def store(self, resource: Resource) -> KindStore:
        """The store of a kind."""
        for store in self.stores():
            if store.resource == resource:
                return store
        raise KeyError(resource.kind)

    def stores(self) -> tuple[KindStore, ...]:
        """All stores, owners before children."""
        others = (self.catalogs,) if self._with_catalogs else ()
        return self.policies, self.jobs, self.leases, *others

    def jobs_of(self, policy: CacheKey) -> list[Obj]:
        """The jobs of a policy, by name."""
        return self.jobs.indexed("policy", policy)

    def leases_of(self, policy: CacheKey) -> list[Obj]:
        """The worker and job Leases of a policy, by name."""
        return self.leases.indexed("policy", policy)

    def policies_of(self, resource: Resource, body: Obj) -> tuple[CacheKey, ...]:
        """Return the policies or catalogs that are reconciled again when this object changed; nothing for objects of
        none.
        """
        if resource == CATALOG_COMPACTIONS:
            return (CatalogKey(*key_of(body)),)
        if resource == COMPACTION_POLICIES:
            return (key_of(body),)
        return policy_of_job(body) if resource == COMPACTION_JOBS else policy_of_lease(body)
