"""Complete lists, swept through the cache: they fill it when a term begins, and repair later what watches lost."""

from __future__ import annotations

import asyncio
import random

import structlog

from compaction.errors import ApiError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.resources import LEASES
from compaction.kube.informer.cache import ObjectCache
from compaction.kube.informer.handlers import Feed
from compaction.kube.metrics.registry import Metrics


class Relist:
    """Lists of all kinds for one cache. `namespace` None lists all namespaces."""

    def __init__(
        self, client: ApiClient, cache: ObjectCache, feed: Feed, *, namespace: str | None, metrics: Metrics
    ) -> None:
        self._client = client
        self._cache = cache
        self._feed = feed
        self._namespace = namespace
        self._metrics = metrics

    async def once(self) -> None:
        """List every kind, owners before children. Raises ApiError; the kinds before that one are swept then."""
        for store in self._cache.stores():
            selector = ObjectCache.LEASE_SELECTOR if store.resource == LEASES else None
            known = len(store)
            listed = await self._client.list(store.resource, namespace=self._namespace, labels=selector)
            for delta in self._feed.swept(store.resource, listed.items, listed.resource_version):
                if known:  # the first list fills, the later ones repair
                    self._metrics.sweep_repairs.labels(store.resource.kind, delta.change.value).inc()

    async def forever(self, *, every: float, rng: random.Random) -> None:
        """Repair the cache, and queue every policy, about every so many seconds."""
        while True:
            await asyncio.sleep(every * rng.uniform(0.9, 1.1))
            try:
                await self.once()
                self._feed.look_at_everything()
            except ApiError as error:
                _log.warning("resync failed; the next one will repair", error=str(error))


_log = structlog.get_logger(__name__)
