"""The controller of catalogs on a real API server: rounds over a log in memory and participants of this process."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction.api.catalog.catalog import MAX_ROUNDS, CatalogCompactionStatus, RoundRecord
from compaction.api.catalog.reasons import Trigger
from compaction.api.names import ANNOTATION_USED_BY
from compaction.api.policy.configuration import SinkSpec
from compaction.catalogs.commands.schema_commands import CreateSchema
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.operator.controller import CatalogController, Controllers, changes
from compaction.catalogs.participants.reference import ReferenceParticipant, system_clock
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection
from compaction.kube.client.transport import CATALOG_COMPACTIONS, EVENTS, SECRETS
from compaction.kube.controller import PolicyController
from compaction.kube.executor.events import EventRecorder
from compaction.kube.informer.cache import CacheKey, CatalogKey, ObjectCache
from compaction.kube.informer.handlers import Feed, Relist
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Runtime
from compaction.kube.sink import sink_of
from support.clocks import PATIENCE_SECONDS
from support.cluster.catalog_coordinator import MemoryLogs, NamedParticipants
from support.cluster.orders import catalog_object

pytestmark = pytest.mark.apiserver


class NoLauncher:
    async def observe(self) -> tuple[()]:
        return ()


@dataclass
class Bench:
    """An operator without election and Kopf: it lists, and its queue runs."""

    client: ApiClient
    namespace: str
    logs: MemoryLogs = field(default_factory=MemoryLogs)
    participants: NamedParticipants = field(default_factory=lambda: NamedParticipants(system_clock))
    metrics: Metrics = field(default_factory=Metrics)
    leads: bool = True

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            one = self.participants.known[name] = ReferenceParticipant(name)
            one.move_watermark(later(system_clock(), -600_500))

    async def create(self, **spec: Any) -> None:
        secret = {"token": base64.b64encode(b"shared").decode()}
        used = {ANNOTATION_USED_BY: "CatalogCompaction/*"}
        metadata = {"name": "participants", "namespace": self.namespace, "annotations": used}
        urls = [{"name": name, "url": f"http://127.0.0.1/{name}"} for name in self.participants.known]
        await self.client.create(SECRETS, {"metadata": metadata, "data": secret})
        members: dict[str, Any] = {
            "catalog": {"endpoints": ["http://etcd"]},
            "participants": {"urls": urls, "token": {"secretName": "participants"}},
            "interval": "200ms",
        }
        document = catalog_object(**(members | spec))
        document["metadata"]["namespace"] = self.namespace
        await self.client.create(CATALOG_COMPACTIONS, document)

    async def status(self) -> CatalogCompactionStatus:
        body = await self.client.get(CATALOG_COMPACTIONS, "orders", namespace=self.namespace)
        return CatalogCompactionStatus.from_object(body["status"])

    def measured(self, name: str, **labels: str) -> float | None:
        found = {"namespace": self.namespace, "catalog": "orders", **labels}
        return self.metrics.registry.get_sample_value(f"compaction_catalog_{name}", found)

    async def until(self, holds: Callable[[CatalogCompactionStatus], bool]) -> CatalogCompactionStatus:
        for _ in range(int(PATIENCE_SECONDS / 0.05)):
            if holds(status := await self.status()):
                return status
            await asyncio.sleep(0.05)
        raise AssertionError(f"not reached: {status.to_object()}")


@asynccontextmanager
async def bench(connection: ApiConnection, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    async with ApiClient(connection) as client:
        made = Bench(client, namespace)
        metrics = made.metrics
        sink = sink_of(SinkSpec.from_object({"folder": {"path": str(tmp_path / "events")}}))
        controller = Controllers(
            PolicyController(sink=sink),
            CatalogController(logs=made.logs, participants=lambda _clock: made.participants, sink=sink),
        )
        runtime = Runtime(
            client=client,
            cache=ObjectCache(catalogs=True),
            queue=WorkQueue(),
            launcher=NoLauncher(),  # type: ignore[arg-type]
            events=EventRecorder(client),
            metrics=metrics,
            is_leader=lambda: made.leads,
            epoch=6,
            identity="operator-0",
            namespace=namespace,
            state_dir=tmp_path,
        )
        feed = Feed(runtime.cache, runtime.queue, controller, metrics)
        relist = Relist(client, runtime.cache, feed, namespace=namespace, metrics=metrics)

        async def list_often() -> None:
            while True:
                await relist.once()
                await asyncio.sleep(0.2)

        await controller.start(runtime)
        tasks = [asyncio.create_task(item) for item in (
            runtime.queue.run(controller.reconcile), runtime.events.run(), list_often()
        )]  # fmt: skip
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await controller.stop()


@pytest.fixture
def on_bench(connection: ApiConnection, namespace: str, tmp_path: Path) -> Callable[..., None]:
    def run(test: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            async with bench(connection, namespace, tmp_path) as made:
                await test(made)
            await asyncio.sleep(0.1)

        asyncio.run(main())

    return run


def test_a_history_becomes_short_and_a_transaction_keeps_it(on_bench: Callable[..., None], tmp_path: Path) -> None:
    async def test(b: Bench) -> None:
        for n in range(6):
            b.logs.run(CreateSchema(f"S{n}"))
        reader = b.participants.known["b"]
        for version in range(1, 7):
            reader.versions.add(version, later(hybrid(version * 1000), 5))
        await b.create()
        status = await b.until(lambda item: item.versions_cut == 4)
        assert (status.earliest_version, status.latest_version) == (5, 6)
        assert (status.coordinator, status.fencing_token) == ("operator-0", 7)
        assert status.last_compacted_version == 5
        assert (b.measured("versions_cut_total"), b.measured("versions")) == (4, 2)
        b.leads = True
        begun = reader.begin()
        for n in range(6, 9):
            b.logs.run(CreateSchema(f"S{n}"))
            reader.versions.add(n + 1, later(hybrid((n + 1) * 1000), 5))
        status = await b.until(lambda item: item.required_time is not None and item.required_time.participant == "b")
        assert status.required_time is not None
        assert status.required_time.reason == "Transaction"
        assert status.required_time.subject == f"transaction {begun}"
        assert (status.earliest_version, status.latest_version, status.debt_versions) == (5, 9, 3)
        reader.finish(begun)
        status = await b.until(lambda item: item.earliest_version == 8)
        assert status.versions_cut == 7
        assert status.propagated_minimum is not None
        assert b.participants.sent[0][1] == 7
        # Each round that the history keeps was told of once, and what was told waits no more.
        await b.until(lambda item: sum(record.versions_cut for record in item.history) == 7)
        status = await b.until(lambda item: item.events is not None and not item.events.waiting)
        assert status.events is not None
        files = sorted((tmp_path / "events").rglob("*.jsonl"))
        told = [json.loads(path.read_text()) for path in files][: status.events.last]
        assert [int(event["sequence"]) for event in told] == list(range(1, status.events.last + 1))
        assert {path.parent.parent.name for path in files} == {"catalogcompactions"}
        rounds = [event["data"]["run"] for event in told if event["type"] == "dev.compaction.run.ended"]
        assert sum(record["versionsCut"] for record in rounds) == 7
        assert [record["startedAt"] for record in rounds] == sorted(record["startedAt"] for record in rounds)
        events = await b.client.list(EVENTS, namespace=b.namespace)
        assert "Compacted" in {event["reason"] for event in events.items}

    on_bench(test)


def test_a_participant_that_does_not_answer_is_named_until_it_does(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        for n in range(4):
            b.logs.run(CreateSchema(f"S{n}"))
        b.participants.silent.add("b")
        await b.create()
        status = await b.until(lambda item: any(c.type == "Stalled" for c in item.conditions))
        assert status.compaction is not None
        assert (status.compaction.reason, status.compaction.participant) == ("NoAnswer", "b")
        assert (status.versions_cut, status.propagated_minimum, b.participants.sent) == (0, None, [])
        b.participants.silent.clear()
        status = await b.until(lambda item: item.versions_cut == 2)
        assert not any(c.type == "Stalled" for c in status.conditions)

    on_bench(test)


def test_a_stored_spec_that_cannot_be_read_says_so(on_bench: Callable[..., None], kubectl: Any, namespace: str) -> None:
    """An older schema took what the rules refuse: the object names it, and others go on."""

    async def test(b: Bench) -> None:
        await b.create(interval="1h")
        await b.until(lambda item: item.compaction is not None)
        key = CatalogKey(namespace, "orders")
        controller = CatalogController(logs=b.logs, participants=lambda _clock: b.participants)
        cache, metrics = ObjectCache(catalogs=True), Metrics()
        runtime = SimpleNamespace(
            cache=cache,
            client=b.client,
            events=SimpleNamespace(event=lambda *_, **__: None),
            is_leader=lambda: True,
            metrics=metrics,
        )
        await controller.start(runtime)  # type: ignore[arg-type]
        for _ in range(200):
            # The object at the API server is a good one, and its controller may write between any two lines here.
            body = await b.client.get(CATALOG_COMPACTIONS, "orders", namespace=namespace)
            # Anew: after a conflict the cache has the good one, and takes no other of the same version.
            cache = runtime.cache = ObjectCache(catalogs=True)
            cache.catalogs.upsert({**body, "spec": {**body["spec"], "interval": "soon"}})
            await controller.reconcile(key)
            status = await b.status()
            if status.conditions[0].reason == "InvalidSpec":
                break
        assert "interval" in status.conditions[0].message
        b.metrics = metrics
        assert b.measured("reason", reason="InvalidSpec") == 1
        assert b.measured("condition", condition="Stalled", status="True") == 1

    on_bench(test)


def test_a_deleted_catalog_is_forgotten(on_bench: Callable[..., None]) -> None:
    async def test(b: Bench) -> None:
        await b.create()
        await b.until(lambda item: item.compaction is not None)
        assert b.measured("versions") == 0
        await b.client.delete(CATALOG_COMPACTIONS, "orders", namespace=b.namespace)
        await asyncio.sleep(0.5)
        asked = len(b.logs.opened_with)
        await asyncio.sleep(1.0)
        assert len(b.logs.opened_with) <= asked + 1
        assert b.measured("versions") is None

    on_bench(test)


def test_a_catalog_and_a_policy_of_one_name_have_keys_of_their_own() -> None:
    catalog, policy = CatalogKey("ns", "orders"), CacheKey("ns", "orders")
    assert catalog != policy
    assert policy != catalog
    assert len({catalog, policy, CatalogKey("ns", "orders")}) == 2
    assert (str(catalog), str(policy)) == ("CatalogCompaction ns/orders", "ns/orders")
    assert json.dumps(tuple(catalog)) == '["ns", "orders"]'


NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def test_rounds_of_one_second_are_told_apart_by_their_places() -> None:
    same = RoundRecord(trigger=Trigger.INTERVAL, started_at=NOON, ended_at=NOON)
    for kept in (0, 1, MAX_ROUNDS):
        before = CatalogCompactionStatus(history=(same,) * kept)
        for new in (0, 1, 2):
            after = CatalogCompactionStatus(
                history=((same,) * kept + (same.model_copy(update={"versions_cut": 3}),) * new)
            )
            assert [event.data["run"]["versionsCut"] for event in changes(before, after, NOON)] == [3] * new
