"""A coordinator of a test's own on a real API server, with a launcher of the test's choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compaction.errors import ApiUnavailableError
from compaction.kube.client.api import COMPACTION_JOBS, COMPACTION_POLICIES, EVENTS, LEASES, ApiCall, ApiClient, Obj
from compaction.kube.client.config import ApiConnection
from compaction.kube.controller import PolicyController
from compaction.kube.executor.events import EventRecorder
from compaction.kube.informer.cache import ObjectCache
from compaction.kube.informer.handlers import Feed
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.launchers.base import WorkerObservation
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Runtime
from compaction.segments.generate import generate_log
from kube.tiny_worker import TinyLauncher
from support.time.waiting import PATIENCE_SECONDS


@dataclass
class Bench:
    """A coordinator of the test's own: lists instead of watches, so that the test says when it sees what."""

    client: ApiClient
    namespace: str
    launcher: Any
    tmp_path: Path
    root: Path
    calls: list[ApiCall] = field(default_factory=list)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    async def start(self) -> None:
        """A new coordinator with nothing in its memory."""
        self.controller = PolicyController()
        self.runtime = Runtime(
            client=self.client,
            cache=ObjectCache(),
            queue=WorkQueue(),
            launcher=self.launcher,
            events=EventRecorder(self.client),
            metrics=self.metrics,
            is_leader=lambda: True,
            epoch=1,
            identity="test",
            namespace=self.namespace,
            state_dir=self.tmp_path,
        )
        self.feed = Feed(self.runtime.cache, self.runtime.queue, self.controller, self.metrics)
        await self.controller.start(self.runtime)
        await self.relist()
        self.tasks = [
            asyncio.create_task(self.runtime.queue.run(self.controller.reconcile)),
            asyncio.create_task(self.runtime.events.run()),
            asyncio.create_task(self._keep_listing()),
        ]

    async def die(self) -> None:
        """End it where it is, in the middle of whatever it does."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.controller.stop()

    async def relist(self) -> None:
        for resource, labels in (
            (COMPACTION_POLICIES, None),
            (COMPACTION_JOBS, None),
            (LEASES, ObjectCache.LEASE_SELECTOR),
        ):
            listed = await self.client.list(resource, namespace=self.namespace, labels=labels)
            self.feed.swept(resource, listed.items, listed.resource_version)

    async def _keep_listing(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            with suppress(ApiUnavailableError):
                await self.relist()

    async def apply(self, name: str = "logs", **spec: Any) -> Obj:
        return await self.client.create(
            COMPACTION_POLICIES,
            {
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "store": {"segmentLogs": {"root": str(self.root)}},
                    "trigger": {"interval": "2s"},
                    "lease": {"durationSeconds": 3},
                    "cleanup": {"delay": "1h"},
                    **spec,
                },
            },
        )

    def add_log(self, name: str, **more: Any) -> Path:
        """In one step, and in the data directory of a Ra server too, into which none is generated."""
        elsewhere, directory = self.root.with_name(f"elsewhere-{name}"), self.root / name
        options = {"segments": 5, "entries_per_segment": 64, "payload_bytes": 64, "sync": False, **more}
        generate_log(elsewhere, **options)
        self.root.mkdir(parents=True, exist_ok=True)
        return elsewhere.rename(directory)

    async def policy(self, name: str = "logs") -> Obj:
        return await self.client.get(COMPACTION_POLICIES, name, namespace=self.namespace)

    async def condition(self, kind: str, name: str = "logs") -> Obj | None:
        conditions = (await self.policy(name)).get("status", {}).get("conditions", ())
        return next((c for c in conditions if c["type"] == kind), None)

    async def event(self, reason: str) -> Obj | None:
        found = (await self.client.list(EVENTS, namespace=self.namespace)).items
        return next((item for item in found if item["reason"] == reason), None)

    def observed(self) -> list[WorkerObservation]:
        """The workers as the coordinator has seen them: its decisions rest on these."""
        return [worker for workers in self.controller._workers.values() for worker in workers]

    async def jobs(self) -> tuple[Obj, ...]:
        return (await self.client.list(COMPACTION_JOBS, namespace=self.namespace)).items

    async def leases(self) -> tuple[Obj, ...]:
        return (await self.client.list(LEASES, namespace=self.namespace)).items

    async def until(self, what: str, look: Callable[[], Awaitable[Any]]) -> Any:
        """Wait until `look` returns something true."""
        found = None
        for _ in range(int(PATIENCE_SECONDS / 0.1)):
            found = await look()
            if found:
                return found
            await asyncio.sleep(0.1)
        raise AssertionError(f"never happened: {what}; jobs {await self.jobs()}; {await self.policy()}")

    async def all_in(self, *states: str) -> tuple[Obj, ...]:
        async def look() -> Any:
            jobs = await self.jobs()
            return jobs if jobs and all(job["status"].get("state") in states for job in jobs) else None

        found: tuple[Obj, ...] = await self.until(f"all jobs {states}", look)
        return found

    async def settled(self) -> Obj:
        """The policy once nothing runs or waits and its totals are written."""

        async def look() -> Any:
            status = (await self.policy()).get("status", {})
            finished = [job for job in await self.jobs() if job["status"].get("state") in ("Succeeded", "Faulty")]
            quiet = status.get("active") == 0 and status.get("queued") == 0
            counted = len(status.get("counted", ())) == len(finished) > 0
            ready = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
            looked = ready.get("reason") not in (None, "Compacting", "Sensing")
            return status if quiet and counted and looked else None

        found: Obj = await self.until("a policy at rest", look)
        return found


@asynccontextmanager
async def bench(connection: ApiConnection, namespace: str, tmp_path: Path) -> AsyncIterator[Bench]:
    calls: list[ApiCall] = []
    root = tmp_path / "ra"
    root.mkdir()
    async with ApiClient(connection, observe=calls.append) as client, ApiClient(connection) as other:
        made = Bench(client, namespace, TinyLauncher(other, root), tmp_path, root, calls)
        await made.start()
        try:
            yield made
        finally:
            await made.die()
            await made.launcher.close()
