"""Writes that name the version they were decided on, and the cache kept in step with what the API server answers.

A write that meets another version takes that one into the cache and sets `stale`: the decision has to be made again. An
object that is gone counts as deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from compaction.api.names import ANNOTATION_SLOTS
from compaction.exceptions import ConflictError, NotFoundError
from compaction.kube.client.resources import LEASES, Obj, Resource
from compaction.kube.informer.cache import Delta, ObjectKey, policy_of_lease
from compaction.kube.replica.runtime import Runtime
from compaction.reconcile.actions import Premise
from compaction.reconcile.observations import Identity


class GuardedWrites:
    """Reads and writes about one policy. `observed` hears of every change that this brings into the cache."""

    def __init__(self, runtime: Runtime, key: ObjectKey, *, observed: Callable[[Resource, Delta], None]) -> None:
        self._rt = runtime
        self._key = key
        self._namespace = key.namespace
        self._observed = observed
        self.client = runtime.client
        self.stale = False

    def take(self, resource: Resource, body: Obj) -> None:
        """Put an answer of the API server into the cache: the watch will have nothing new to say about it."""
        delta = self._rt.cache.store(resource).upsert(body)
        if delta is not None:
            self._observed(resource, delta)

    def forget(self, resource: Resource, body: Obj) -> None:
        """The object is gone."""
        delta = self._rt.cache.store(resource).remove(body)
        if delta is not None:
            self._observed(resource, delta)

    async def refresh(self, resource: Resource, name: str) -> Obj | None:
        """Read an object again into the cache; None when it does not exist."""
        try:
            body = await self.client.get(resource, name, namespace=self._namespace)
        except NotFoundError:
            cached = self._rt.cache.store(resource).get(self._namespace, name)
            if cached is not None:
                self.forget(resource, cached)
            return None
        self.take(resource, body)
        return body

    async def is_absent(self, resource: Resource, name: str) -> bool:
        """Whether a fresh read finds no such object."""
        return await self.refresh(resource, name) is None

    async def holds(self, premise: Premise, *, owners: Collection[str]) -> bool:
        """Whether fresh reads confirm what a decision depends on; if not, the reconciler decides again."""
        for seen in premise.unchanged:
            found = await self.refresh(LEASES, seen.name)
            if found is None or found["metadata"]["resourceVersion"] != seen.resource_version:
                self.stale = True
                return False
        return await self._leases_absent(premise.absent, owners=owners)

    async def _leases_absent(self, names: Iterable[str], *, owners: Collection[str]) -> bool:
        """What a decision took for absent must be so on a fresh read.

        A Lease that lost its labels never reaches the cache, however often it is read. One that `owners` (uids) made is
        deleted, so that its holder stops; one of another holder is not what the decision was about.
        """
        for name in names:
            found = await self.refresh(LEASES, name)
            if found is None:
                continue
            if self.is_visible(found):
                self.stale = True
                return False
            await self.delete_invisible(found, owners=owners)
        return True

    def is_visible(self, lease: Obj) -> bool:
        """Whether the cache knows a Lease as one of this policy's."""
        cached = self._rt.cache.leases.get(self._key.namespace, lease["metadata"]["name"])
        return cached is not None and self._key in policy_of_lease(cached)

    def serves(self, worker: str) -> bool:
        """Whether a worker still takes jobs, by the current cache."""
        lease = self._rt.cache.leases.get(self._key.namespace, worker)
        return lease is not None and (lease["metadata"].get("annotations") or {}).get(ANNOTATION_SLOTS) != "0"

    async def delete_invisible(self, lease: Obj, *, owners: Collection[str]) -> bool:
        """Delete a Lease without our labels if one of `owners` (uids) made it; False when none did."""
        metadata = lease["metadata"]
        if not any(one.get("uid") in owners for one in metadata.get("ownerReferences") or ()):
            return False
        about = Identity(metadata["name"], metadata["uid"], metadata["resourceVersion"])
        await self.delete(LEASES, about, any_version=True)
        return True

    async def moved_on(self, resource: Resource, name: str) -> None:
        """A write met another version: take that one in, and have it decided again."""
        self.stale = True
        await self.refresh(resource, name)

    async def write_status(self, resource: Resource, about: Identity, status: Obj) -> bool:
        """PUT a status; False when the object has moved on or is gone."""
        cached = self._rt.cache.store(resource).get(self._namespace, about.name)
        if cached is None or cached["metadata"]["resourceVersion"] != about.resource_version:
            self.stale = True
            return False
        try:
            answer = await self.client.replace_status(resource, {**cached, "status": status})
        except (ConflictError, NotFoundError):
            await self.moved_on(resource, about.name)
            return False
        self.take(resource, answer)
        return True

    async def delete(self, resource: Resource, about: Identity, *, any_version: bool = False) -> None:
        """Delete an object if it still is that one (and, unless `any_version`, still the version decided on)."""
        version = None if any_version else about.resource_version
        try:
            await self.client.delete(
                resource, about.name, namespace=self._namespace, uid=about.uid, resource_version=version
            )
        except NotFoundError:
            pass
        except ConflictError:
            await self.moved_on(resource, about.name)
            return
        cached = self._rt.cache.store(resource).get(self._namespace, about.name)
        if cached is not None and cached["metadata"]["uid"] == about.uid:
            self.forget(resource, cached)
