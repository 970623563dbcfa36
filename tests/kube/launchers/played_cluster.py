"""A cluster played on a real API server: the Spark operator, the scheduler and the kubelets are the test, and workers
without Spark are the drivers, whichever launcher made them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

from compaction.api.enums import LauncherType
from compaction.api.policy.policy import CompactionPolicy
from compaction.errors import AlreadyExistsError, ConflictError, NotFoundError
from compaction.kube.client.api import COMPACTION_POLICIES, ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import PODS, Obj
from compaction.kube.executor.policy_objects import pod_request
from compaction.kube.launchers.backends import BACKENDS, AutoLauncher
from compaction.kube.launchers.base import BASELINE, PodAllowance, PolicyKey, WorkerRequest
from compaction.kube.launchers.objects import KINDS, SELECTOR, ObjectLauncher
from compaction.kube.launchers.pods import DRIVER_CONTAINER, WORKER_CONTAINER
from compaction.kube.launchers.process import ProcessLauncher
from compaction.registry import kind_of
from kube.own_coordinator import Bench, TinyWorker, nothing
from support.cluster.manifests import policy_object

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
    first: Callable[[str], Coroutine[Any, Any, None]]
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
        objects = ObjectLauncher(client, BACKENDS, namespace=namespace, monotonic=lambda: SPEED * monotonic())
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


# Requests for workers in pods, pods and applications in every state, and the operators' definitions on the server.

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
IMAGE = "registry.example/compaction-worker:1.0"
FULL: dict[str, Any] = {
    "image": IMAGE,
    "imagePullPolicy": "IfNotPresent",
    "imagePullSecrets": [{"name": "registry"}],
    "driver": {"cpu": "250m", "cpuLimit": 2, "memory": "2Gi", "maxMemory": "4Gi", "cores": 3},
    "executor": {"instances": 2, "cpu": 1, "cpuLimit": "1500m", "memory": "1Gi", "cores": 2},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "priorityClassName": "system-node-critical",
    "queueName": "compaction",
    "envFromSecrets": [{"name": "credentials"}],
    "secretVolumes": [{"secretName": "certificates", "mountPath": "/etc/certificates"}],
    "eventLogDir": "/tmp/spark-events",
    "sparkConf": {"spark.ui.enabled": "true", "spark.executor.memory": "512m"},
    "podTemplate": {
        "metadata": {"labels": {"team": "storage", "compaction.dev/worker": "mine"}, "annotations": {"note": "x"}},
        "spec": {
            "securityContext": {"fsGroup": 100},
            "containers": [{"name": "worker", "env": [{"name": "TZ", "value": "UTC"}], "args": ["sh"]}],
            "volumes": [{"name": "extra", "emptyDir": {}}],
            "tolerations": [{"key": "team", "operator": "Exists"}],
        },
    },
}
"""A policy's workers with everything that can be said about their pods."""


BLOCKS: dict[str, Any] = {
    "blockStore": {
        "url": "s3://blocks/production",
        "credentialsSecretName": "store-credentials",
        "index": {"secretName": "store-index"},
    }
}
"""A policy's store with a Secret for its objects and one for its index."""


def policy_of(
    workers: dict[str, Any],
    *,
    namespace: str = "default",
    volume: bool = True,
    store: dict[str, Any] | None = None,
) -> CompactionPolicy:
    document = policy_object(
        "logs", workers={"image": "w:1", **workers}, **({"store": store} if store is not None else {})
    )
    document["metadata"] |= {"namespace": namespace, "uid": "11111111-2222-3333-4444-555555555555"}
    if volume and store is None:
        document["spec"]["store"]["segmentLogs"]["volume"] = {"claimName": "segment-logs", "subPath": "ra"}
    return CompactionPolicy.from_object(document)


def request_of(
    workers: dict[str, Any],
    *,
    name: str = "logs-w-abcd-12345",
    namespace: str = "default",
    memory: int | None = None,
    executor_memory: int | None = None,
    store: dict[str, Any] | None = None,
    allowance: PodAllowance = BASELINE,
) -> WorkerRequest:
    """What the executor hands to a launcher for a policy with these workers."""
    policy = policy_of(workers, namespace=namespace, store=store)
    spec = policy.spec.workers
    pod = pod_request(
        policy,
        memory=int(spec.driver.memory) if memory is None else memory,
        executor_memory=int(spec.executor.memory) if executor_memory is None else executor_memory,
    )
    return WorkerRequest(
        name=name,
        policy=PolicyKey(namespace, "logs"),
        slots=spec.slots,
        idle_seconds=spec.idle_seconds,
        lease_seconds=15,
        master=spec.spark_master,
        conf=spec.spark_conf,
        pod=replace(pod, allowance=allowance),
        secrets=kind_of(policy.spec.store).secrets(policy.spec.store),
    )


def pod_object(status: dict[str, Any], *, name: str = "logs-w-abcd-12345", **metadata: Any) -> dict[str, Any]:
    """A driver pod with this status, as a LIST returns it."""
    owner = {"kind": "CompactionPolicy", "name": "logs", "controller": True}
    return {
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]} | metadata,
        "spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 4040}]}]},
        "status": status,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """The status of a pod whose container waits for this reason."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "worker", "image": IMAGE, "state": state}]}


def terminated(code: int, *, reason: str = "Error", message: str = "", **status: Any) -> dict[str, Any]:
    """The status of a pod whose container ended like this."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    phase = "Succeeded" if code == 0 else "Failed"
    return {"phase": phase, "containerStatuses": [{"name": "worker", "state": state}]} | status


def of_spark(status: dict[str, Any]) -> dict[str, Any]:
    """The same of a driver pod that Spark's submission made: its container has a name of Spark's."""
    renamed = [item | {"name": "spark-kubernetes-driver"} for item in status.get("containerStatuses", ())]
    return status | ({"containerStatuses": renamed} if renamed else {})
