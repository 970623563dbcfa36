"""One controller of policies and of catalogs: each key goes to the one that its kind belongs to."""

from __future__ import annotations

from compaction.catalogs.operator.controller import CatalogController
from compaction.kube.client.resources import CATALOG_COMPACTIONS, Resource
from compaction.kube.controller import PolicyController
from compaction.kube.informer.cache import CatalogKey, Delta, ObjectKey
from compaction.kube.replica.runtime import Runtime


class Controllers:
    """Implements `kube.replica.runtime.Controller`."""

    watches_catalogs = True

    def __init__(self, policies: PolicyController, catalogs: CatalogController) -> None:
        self._policies = policies
        self._catalogs = catalogs

    async def start(self, runtime: Runtime) -> None:
        """See `kube.replica.runtime.Controller`."""
        await self._policies.start(runtime)
        await self._catalogs.start(runtime)

    def observed(self, resource: Resource, delta: Delta) -> None:
        """See `kube.replica.runtime.Controller`."""
        (self._catalogs if resource == CATALOG_COMPACTIONS else self._policies).observed(resource, delta)

    async def reconcile(self, key: ObjectKey) -> float | None:
        """See `kube.replica.runtime.Controller`."""
        if isinstance(key, CatalogKey):
            return await self._catalogs.reconcile(key)
        return await self._policies.reconcile(key)

    async def stop(self) -> None:
        """See `kube.replica.runtime.Controller`."""
        await self._catalogs.stop()
        await self._policies.stop()
