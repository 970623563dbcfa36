"""A cluster played on a real API server: the Spark operator, the scheduler and the kubelets are the test, and workers
without Spark are the drivers, whichever launcher made them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from compaction.api.enums import LauncherType
from compaction.errors import AlreadyExistsError, ConflictError, NotFoundError
from compaction.kube.client.api import COMPACTION_POLICIES, ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import PODS, Obj
from compaction.kube.launchers.backends import BACKENDS, AutoLauncher
from compaction.kube.launchers.base import PolicyKey, WorkerRequest
from compaction.kube.launchers.objects import KINDS, SELECTOR, ObjectLauncher
from compaction.kube.launchers.pods import DRIVER_CONTAINER, WORKER_CONTAINER
from compaction.kube.launchers.process import ProcessLauncher
from kube.own_coordinator import Bench
from kube.tiny_worker import TinyWorker, nothing

SPEED: Final = 10.0
"""So much faster than the wall runs the launcher's clock: it looks every fifth of a second."""
RUNNING: Final[Obj] = {"phase": "Running"}
_STATES: Final[dict[LauncherType, Callable[[str], Obj]]] = {
    LauncherType.KUBEFLOW: lambda state: {
        "applicationState": {"state": state},
        "driverInfo": {},
        "executionAttempts": 1,
    },
    LauncherType.APACHE: lambda state: {"currentState": {"currentStateSummary": state}},
}
_UP: Final = {LauncherType.KUBEFLOW: "RUNNING", LauncherType.APACHE: "RunningHealthy"}
_DOWN: Final = {LauncherType.KUBEFLOW: "FAILED", LauncherType.APACHE: "Failed"}


@dataclass
class Cluster:
    """`first` is what becomes of the first worker, instead of starting as all others do."""

    client: ApiClient
    namespace: str
    launcher: LauncherType
    root: Path
    first: Callable[[str], Awaitable[None]]
    before_commit: Callable[[str, str], Awaitable[None]] = nothing
    workers: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            there = {item["metadata"]["name"] for item in await self.objects()}
            for name in sorted(there - set(self.names)):
                self.names.append(name)
                task = self.first(name) if len(self.names) == 1 else self.start(name)
                self.workers[name] = asyncio.create_task(task)
            for name in set(self.names) - there:
                self.workers[name].cancel()

    async def objects(self) -> list[Obj]:
        """What stands for workers."""
        listed = await self.client.list(KINDS[self.launcher], namespace=self.namespace, labels=SELECTOR)
        return [item for item in listed.items if not item["metadata"]["name"].endswith("-driver")]

    async def start(self, name: str) -> None:
        """The ordinary way: its pod runs, its Spark operator says so, and its driver announces itself."""
        await self.pod(name, RUNNING)
        await self.state(name, up=True)
        await self.announce(name)

    async def announce(self, name: str) -> None:
        """The driver works until it is cancelled."""
        body = await self.client.get(KINDS[self.launcher], name, namespace=self.namespace)
        policy = body["metadata"]["labels"]["compaction.dev/policy"]
        await self.client.get(COMPACTION_POLICIES, policy, namespace=self.namespace)
        key = PolicyKey(self.namespace, policy)
        request = WorkerRequest(name=name, policy=key, slots=1, idle_seconds=60, lease_seconds=15)
        await TinyWorker(self.client, request, self.root, self.before_commit).run()

    async def state(self, name: str, *, up: bool) -> None:
        """Its Spark operator writes how it goes; a pod of ours has none."""
        if self.launcher is not LauncherType.POD:
            await self.application_status(name, (_UP if up else _DOWN)[self.launcher])

    async def application_status(self, name: str, state: str) -> None:
        """The application's status is this."""
        await self._write(KINDS[self.launcher], name, _STATES[self.launcher](state))

    async def pod(self, name: str, status: Obj) -> None:
        """Its driver's pod, made if need be, has this status."""
        if self.launcher is not LauncherType.POD:
            name = await self._made(name, "driver")
        await self._write(PODS, name, status)

    async def executor(self, name: str, status: Obj) -> None:
        """An executor of it has this status."""
        await self._write(PODS, await self._made(name, "executor"), status)

    def container(self, state: Obj, *, phase: str, **status: Any) -> Obj:
        """The status of a driver pod whose container is in this state."""
        name = WORKER_CONTAINER if self.launcher is LauncherType.POD else DRIVER_CONTAINER
        found = {"name": name, "image": "w:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        return {"phase": phase, "containerStatuses": [found], **status}

    async def _made(self, name: str, role: str) -> str:
        application = await self.client.get(KINDS[self.launcher], name, namespace=self.namespace)
        labels = application["metadata"]["labels"] | {"spark-role": role}
        labels["compaction.dev/component"] = "worker" if role == "driver" else "executor"
        container = {"name": "c", "image": "w:1"}
        body = {
            "metadata": {"name": f"{name}-{role}", "namespace": self.namespace, "labels": labels},
            "spec": {"containers": [container], "restartPolicy": "Never"},
        }
        with suppress(AlreadyExistsError):
            await self.client.create(PODS, body)
        return f"{name}-{role}"

    async def _write(self, kind: Any, name: str, status: Obj) -> None:
        while True:
            body = await self.client.get(kind, name, namespace=self.namespace)
            try:
                await self.client.replace_status(kind, body | {"status": status})
            except ConflictError:
                continue
            return

    async def close(self) -> None:
        for task in self.workers.values():
            task.cancel()
        await asyncio.gather(*self.workers.values(), return_exceptions=True)


@asynccontextmanager
async def played(
    kubeconfig: Path, namespace: str, place: Path, launcher: LauncherType
) -> AsyncIterator[tuple[Bench, Cluster]]:
    """A coordinator, and the cluster that it launches workers in."""
    root = place / "ra"
    root.mkdir()
    connection = load_connection(kubeconfig)
    async with ApiClient(connection) as client, ApiClient(connection) as other:
        objects = ObjectLauncher(
            client, BACKENDS, namespace=namespace, default_image="w:1", monotonic=lambda: SPEED * monotonic()
        )
        bench = Bench(client, namespace, AutoLauncher(ProcessLauncher(place), objects, in_pod=True), place, root)
        cluster = Cluster(other, namespace, launcher, root, first=nothing_happens)
        await bench.start()
        playing = asyncio.create_task(cluster.run())
        try:
            yield bench, cluster
        finally:
            await bench.die()
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await cluster.close()
            with suppress(NotFoundError):
                await other.request("DELETE", f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0")


async def nothing_happens(name: str) -> None:
    """A worker of which nobody takes notice."""
