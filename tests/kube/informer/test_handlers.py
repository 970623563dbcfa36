"""Kopf as an informer against a real API server: feeds the cache, writes nothing; missed deletions are repaired."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import kopf
import pytest

from compaction.api.names import ANNOTATION_PROGRESS, LABEL_MANAGED_BY, LABEL_POLICY, MANAGED_BY
from compaction.kube.client.api import COMPACTION_POLICIES, LEASES, ApiClient, Obj
from compaction.kube.client.config import ApiConnection, no_token
from compaction.kube.client.transport import Resource
from compaction.kube.errors import ConnectionConfigError
from compaction.kube.informer.cache import CacheChange, CacheKey, Delta, ObjectCache
from compaction.kube.informer.handlers import Feed, build_registry, build_settings, session_for_kopf
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Runtime
from compaction.leases.record import Lease, LeaseRecord
from support.clocks import PATIENCE_SECONDS


class Listener:
    """A controller that only remembers what it was told."""

    watches_catalogs = False

    def __init__(self) -> None:
        self.deltas: list[tuple[str, str, str]] = []

    async def start(self, runtime: Runtime) -> None: ...

    async def stop(self) -> None: ...

    async def reconcile(self, key: CacheKey) -> float | None:
        return None

    def observed(self, resource: Resource, delta: Delta) -> None:
        self.deltas.append((resource.kind, delta.change.value, delta.key.name))


class Informer:
    """Cache, queue and feed, with Kopf running in the background."""

    def __init__(self) -> None:
        self.cache = ObjectCache()
        self.queue: WorkQueue[CacheKey] = WorkQueue()
        self.listener = Listener()
        self.metrics = Metrics()
        self.feed = Feed(self.cache, self.queue, self.listener, self.metrics)

    @asynccontextmanager
    async def running(self, connection: ApiConnection, namespace: str) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(
            kopf.operator(
                registry=build_registry(self.feed, connection),
                settings=build_settings(),
                standalone=True,
                namespaces=[namespace],
                stop_flag=stop,
            )
        )
        try:
            yield
        finally:
            stop.set()
            await task


async def until(condition: Callable[[], Any], what: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is a file, a cache or a server, not an event
            await asyncio.sleep(0.05)
    assert condition(), what


def worker_lease(namespace: str, name: str, *, managed: bool = True) -> Obj:
    labels = {LABEL_POLICY: "p"} | ({LABEL_MANAGED_BY: MANAGED_BY} if managed else {})
    return Lease(name, namespace, LeaseRecord("w", 15, 1), labels=labels).body()


def test_objects_present_and_later_changes_reach_cache_controller_and_queue(
    connection: ApiConnection, namespace: str, policy: Callable[..., Obj]
) -> None:
    async def main() -> None:
        informer = Informer()
        async with ApiClient(connection) as client:
            await client.create(COMPACTION_POLICIES, policy("early"))
            async with informer.running(connection, namespace):
                await until(lambda: len(informer.cache.policies) == 1, "the initial list")
                await client.create(COMPACTION_POLICIES, policy("late"))
                await client.create(LEASES, worker_lease(namespace, "ours"))
                await client.create(LEASES, worker_lease(namespace, "foreign", managed=False))
                await until(lambda: len(informer.cache.policies) == 2 and len(informer.cache.leases) == 1, "changes")
                await client.delete(COMPACTION_POLICIES, "early", namespace=namespace)
                await until(lambda: len(informer.cache.policies) == 1, "the deletion")
            untouched = await client.get(COMPACTION_POLICIES, "late", namespace=namespace)
        assert ("CompactionPolicy", "Deleted", "early") in informer.listener.deltas
        assert not any(name == "foreign" for _, _, name in informer.listener.deltas)
        assert [lease["metadata"]["name"] for lease in informer.cache.leases_of(CacheKey(namespace, "p"))] == ["ours"]
        assert len(informer.queue) == 3  # early, late, and p of the lease
        age = informer.metrics.watch_age()
        assert age is not None
        # Kopf wrote nothing: no annotation, no finalizer, and the object is still in its first version.
        assert "annotations" not in untouched["metadata"]
        assert "finalizers" not in untouched["metadata"]
        assert {entry["operation"] for entry in untouched["metadata"]["managedFields"]} == {"Update"}
        assert len(untouched["metadata"]["managedFields"]) == 1

    asyncio.run(main())


def test_a_missed_deletion_is_repaired_by_the_sweep(
    connection: ApiConnection, namespace: str, policy: Callable[..., Obj]
) -> None:
    async def main() -> None:
        informer = Informer()
        async with ApiClient(connection) as client:
            for name in ("kept", "vanishing"):
                informer.feed.event(
                    COMPACTION_POLICIES, "ADDED", await client.create(COMPACTION_POLICIES, policy(name))
                )
            await client.delete(COMPACTION_POLICIES, "vanishing", namespace=namespace)  # nobody watches
            listed = await client.list(COMPACTION_POLICIES, namespace=namespace)
            later = await client.create(COMPACTION_POLICIES, policy("later"))
            informer.feed.event(COMPACTION_POLICIES, "ADDED", later)  # seen before the list is swept
            deltas = informer.feed.swept(COMPACTION_POLICIES, listed.items, listed.resource_version)
        assert [(delta.change, delta.key.name) for delta in deltas] == [(CacheChange.DELETED, "vanishing")]
        assert {body["metadata"]["name"] for body in informer.cache.policies} == {"kept", "later"}

    asyncio.run(main())


def test_a_heartbeat_is_observed_but_nobody_is_woken_for_it() -> None:
    def lease(version: int, *, second: int = 0, holder: str = "w", progress: str = "1") -> Obj:
        record = LeaseRecord(holder, 15, 1, None, datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC))
        labels = {LABEL_POLICY: "p"}
        found = Lease("j", "ns", record, "u", str(version), labels, {ANNOTATION_PROGRESS: progress})
        return found.body()

    async def main() -> None:
        informer = Informer()

        def woken(body: Obj) -> bool:
            informer.queue = informer.feed._queue = WorkQueue()
            informer.feed.event(LEASES, "MODIFIED", body)
            return len(informer.queue) == 1

        assert woken(lease(1))
        assert not woken(lease(2, second=5))
        assert informer.listener.deltas[-1] == ("Lease", "Updated", "j")
        assert woken(lease(3, second=10, progress="2"))
        assert woken(lease(4, second=10, holder="other"))
        assert not woken(lease(4, second=10, holder="other")), "nothing new"

    asyncio.run(main())


def test_a_resync_looks_at_every_policy_also_at_those_that_are_gone() -> None:
    async def main() -> None:
        informer = Informer()
        informer.feed.event(LEASES, "ADDED", Lease("w", "ns", LeaseRecord(), "u", "1", {LABEL_POLICY: "gone"}).body())
        informer.queue = informer.feed._queue = WorkQueue()
        informer.feed.look_at_everything()
        assert len(informer.queue) == 1

    asyncio.run(main())


def test_what_the_informer_cannot_express_is_refused() -> None:
    connection = ApiConnection("https://127.0.0.1:1", None, no_token(), server_hostname="elsewhere")
    with pytest.raises(ConnectionConfigError, match="tls-server-name"):
        session_for_kopf(connection)
