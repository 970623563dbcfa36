"""Kopf as an informer and nothing else, and complete lists that repair what watches lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import kopf
import structlog

from compaction.errors import ApiError
from compaction.kube.client.api import ApiClient, Obj
from compaction.kube.client.config import ApiConnection
from compaction.kube.client.transport import LEASES, Resource
from compaction.kube.errors import ConnectionConfigError
from compaction.kube.informer.cache import CacheChange, CacheKey, Delta, ObjectCache
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Controller
from compaction.storage.connector import ClosingConnector

# Kopf as an informer and nothing else (docs/design/control-plane-traps.md#kopf).
#
# `@kopf.on.event` handlers feed the cache and the queue. There are no timers, daemons, change handlers or indexes, so
# Kopf writes nothing: no annotation, no finalizer, no status. Registry and settings are explicit, nothing is global.


class Feed:
    """Takes what a watch, a relist or an own write learned; keeps cache, controller and queue in step."""

    def __init__(
        self, cache: ObjectCache, queue: WorkQueue[CacheKey], controller: Controller, metrics: Metrics
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._controller = controller
        self._metrics = metrics

    @property
    def watched(self) -> tuple[Resource, ...]:
        """The kinds that are fed."""
        return tuple(store.resource for store in self._cache.stores())

    def event(self, resource: Resource, type: str | None, body: Obj) -> None:
        """One watch event; `type` None is Kopf's for objects of its initial list."""
        self._metrics.watched(resource.kind)
        store = self._cache.store(resource)
        delta = store.remove(body) if type == "DELETED" else store.upsert(body)
        if delta is not None:
            self._dispatch(resource, delta)

    def swept(self, resource: Resource, items: tuple[Obj, ...], resource_version: str) -> list[Delta]:
        """A complete list; returns the repairs that were necessary."""
        deltas = self._cache.store(resource).sweep(items, resource_version)
        for delta in deltas:
            self._dispatch(resource, delta)
        return deltas

    def look_at_everything(self) -> None:
        """Queue every policy that has an object, also policies that are gone and left some behind."""
        for store in self._cache.stores():
            for body in store:
                for policy in self._cache.policies_of(store.resource, body):
                    self._queue.add(policy)

    def _dispatch(self, resource: Resource, delta: Delta) -> None:
        self._controller.observed(resource, delta)
        if resource == LEASES and _only_renewed(delta):
            return  # measured, and nothing to decide: the next look at expiry is a timer already
        policies = set(self._cache.policies_of(resource, delta.body))
        if delta.change is CacheChange.UPDATED and delta.old is not None:
            policies.update(self._cache.policies_of(resource, delta.old))
        for policy in policies:
            self._queue.add(policy)


def _only_renewed(delta: Delta) -> bool:
    """A heartbeat and nothing else: a hundred running jobs send twenty of them a second."""
    return delta.old is not None and delta.new is not None and _telling(delta.old) == _telling(delta.new)


def _telling(lease: Obj) -> tuple[Any, ...]:
    metadata, spec = lease["metadata"], lease.get("spec") or {}
    metadata_told = [metadata.get(key) for key in ("uid", "labels", "annotations", "deletionTimestamp")]
    return (*metadata_told, {key: value for key, value in spec.items() if key != "renewTime"})


def build_registry(feed: Feed, connection: ApiConnection) -> kopf.OperatorRegistry:
    """Handlers for the kinds that are fed, and a login that shares the given connection."""
    registry = kopf.OperatorRegistry()

    def watch(resource: Resource) -> None:
        async def on_event(event: Any, **_: Any) -> None:
            feed.event(resource, event["type"], event["object"])

        # Kopf tells handlers apart by id; one function per kind needs one id per kind.
        kopf.on.event(
            resource.group, resource.version, resource.plural, registry=registry, id=f"feed-{resource.plural}"
        )(on_event)

    for resource in feed.watched:
        watch(resource)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        # Called at the start and again after a 401, so the token is always read anew. Kopf owns and closes the session.
        connection.token.expire()
        return session_for_kopf(connection)

    return registry


def session_for_kopf(connection: ApiConnection) -> kopf.AiohttpSession:
    """Our connection in Kopf's terms. Raises ConnectionConfigError for what Kopf's requests cannot express."""
    if connection.server_hostname is not None:
        raise ConnectionConfigError(
            f"{connection.server}: tls-server-name is not supported by the informer; "
            "use a server address that the API server's certificate names"
        )
    header = connection.token.header()
    session = aiohttp.ClientSession(
        connector=ClosingConnector(limit=0, ssl=connection.ssl_context or True),
        headers={"User-Agent": "compactor-informer"} | ({"Authorization": header} if header else {}),
        proxy=connection.proxy,
    )
    return kopf.AiohttpSession(
        server=connection.server, aiohttp_session=session, default_namespace=connection.namespace
    )


class _NoDiffs(kopf.DiffBaseStorage):
    """Nothing of ours asks Kopf what has changed in an object, so it need not copy and compare all at every event:
    that was a third of the operator's CPU time under load (docs/benchmarks.md).
    """

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        """Everything looks the same."""
        return {}

    def fetch(self, *, body: Any) -> None:
        """Nothing is stored."""

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Kopf writes nothing to our objects."""


class _NoProgress(kopf.ProgressStorage):
    """Nothing of ours is a handler whose progress Kopf has to keep."""

    def fetch(self, *, key: Any, body: Any) -> None:
        """Nothing is stored."""

    def store(self, *, key: Any, record: Any, body: Any, patch: Any) -> None:
        """Kopf writes nothing to our objects."""

    def purge(self, *, key: Any, body: Any, patch: Any) -> None:
        """There is nothing to remove."""

    def touch(self, *, body: Any, patch: Any, value: Any) -> None:
        """Kopf writes nothing to our objects."""

    def clear(self, *, essence: Any) -> Any:
        """There is nothing to remove."""
        return essence


def build_settings(*, rng: random.Random | None = None) -> kopf.OperatorSettings:
    """Kopf's settings, each for the reason given in docs/design/control-plane-traps.md."""
    rng = rng or random.Random()
    settings = kopf.OperatorSettings()
    settings.process.ultimate_exiting_timeout = None  # it kills the process even after a clean end; we have a deadman
    settings.posting.enabled = False  # Events are posted by kube.executor.events
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.scanning.disabled = True  # else it needs to watch CRDs and namespaces in the whole cluster
    # Whole seconds (the API refuses others), spread over streams. What a stream that ends has told is listed once more;
    # one that is dead without an end is repaired by the resync.
    server_timeout = 600 + rng.randint(-60, 60)
    settings.watching.server_timeout = server_timeout
    settings.watching.client_timeout = server_timeout + 15
    settings.watching.connect_timeout = 30
    settings.watching.chunk_size = 500
    settings.watching.label_selectors[LEASES.group, LEASES.version, LEASES.plural] = ObjectCache.LEASE_SELECTOR
    settings.networking.request_timeout = 30
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 1
    settings.queueing.exit_timeout = 1
    settings.execution.max_workers = 2  # only sync handlers use threads; ours are async
    return settings


# Complete lists, swept through the cache: they fill it when a term begins, and repair later what watches lost.


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
