"""The coordinator with workers as SparkApplications, on a real API server: the test is the Spark operator, and a worker
without Spark the driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import NotFoundError
from compaction.kube.client.api import COMPACTION_POLICIES, ApiClient
from compaction.kube.client.config import load_connection
from compaction.kube.client.transport import KUBEFLOW_APPLICATIONS, Obj
from compaction.kube.launchers.backends import BACKENDS, AutoLauncher
from compaction.kube.launchers.base import PolicyKey, WorkerRequest
from compaction.kube.launchers.objects import ObjectLauncher
from compaction.kube.launchers.process import ProcessLauncher
from kube.own_coordinator import Bench, TinyWorker, nothing

Test = Callable[[Bench, "PlayedOperator"], Awaitable[None]]


@dataclass
class PlayedOperator:
    """Looks for applications, runs a driver for each, and writes their states."""

    client: ApiClient
    namespace: str
    root: Path
    takes_up: bool = True
    before_commit: Callable[[str, str], Awaitable[None]] = nothing
    drivers: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            applications = await self.applications()
            for name in applications if self.takes_up else ():
                if name not in self.drivers:
                    self.drivers[name] = asyncio.create_task(self._driver(name, applications[name]))
            for name in self.drivers.keys() - applications.keys():
                self.drivers[name].cancel()

    async def applications(self) -> dict[str, Obj]:
        listed = await self.client.list(KUBEFLOW_APPLICATIONS, namespace=self.namespace)
        return {item["metadata"]["name"]: item for item in listed.items}

    async def _driver(self, name: str, application: Obj) -> None:
        await self.write(name, "RUNNING")
        arguments = application["spec"]["arguments"]
        said = dict(zip(arguments[::2], arguments[1::2], strict=True))
        policy = await self.client.get(COMPACTION_POLICIES, said["--policy"], namespace=self.namespace)
        request = WorkerRequest(
            name=said["--name"],
            policy=PolicyKey(self.namespace, policy["metadata"]["name"]),
            slots=int(said["--slots"]),
            idle_seconds=float(said["--idle-seconds"]),
            lease_seconds=int(said["--lease-seconds"]),
        )
        await TinyWorker(self.client, request, self.root, self.before_commit).run()

    async def write(self, name: str, state: str, error: str = "") -> None:
        with suppress(NotFoundError):
            body = await self.client.get(KUBEFLOW_APPLICATIONS, name, namespace=self.namespace)
            said = {"state": state, "errorMessage": error}
            status = {"applicationState": said, "driverInfo": {}, "executionAttempts": 1}
            await self.client.replace_status(KUBEFLOW_APPLICATIONS, body | {"status": status})

    async def end(self, name: str, state: str, error: str = "") -> None:
        """The driver dies, and the operator says how."""
        self.drivers[name].cancel()
        await self.write(name, state, error)

    async def close(self) -> None:
        for task in self.drivers.values():
            task.cancel()
        await asyncio.gather(*self.drivers.values(), return_exceptions=True)


@asynccontextmanager
async def installed(kubeconfig: Path, namespace: str, tmp_path: Path) -> AsyncIterator[tuple[Bench, PlayedOperator]]:
    root = tmp_path / "ra"
    root.mkdir()
    connection = load_connection(kubeconfig)
    async with ApiClient(connection) as client, ApiClient(connection) as other:
        objects = ObjectLauncher(client, BACKENDS, namespace=namespace)
        launcher = AutoLauncher(ProcessLauncher(tmp_path), objects, in_pod=False)
        played = PlayedOperator(other, namespace, root)
        operator = asyncio.create_task(played.run())
        bench = Bench(client, namespace, launcher, tmp_path, root)
        await bench.start()
        try:
            yield bench, played
        finally:
            await bench.die()
            operator.cancel()
            await asyncio.gather(operator, return_exceptions=True)
            await played.close()


@pytest.fixture
def with_operator(control_plane: Any, namespace: str, spark_operators: None, tmp_path: Path) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def main() -> None:
            async with installed(control_plane.kubeconfig, namespace, tmp_path) as (bench, played):
                await test(bench, played)
            await asyncio.sleep(0.1)

        asyncio.run(main())

    return run


def test_jobs_are_done_by_applications_that_go_when_they_are_idle(with_operator: Callable[[Test], None]) -> None:
    async def test(b: Bench, played: PlayedOperator) -> None:
        for name in "abc":
            b.add_log(name)
        await b.apply(workers={"launcher": "auto"})
        jobs = await b.all_in("Succeeded")
        (name,) = await played.applications()
        assert {job["status"]["worker"] for job in jobs} == {name}
        (owner,) = (await played.applications())[name]["metadata"]["ownerReferences"]
        assert owner["uid"] == (await b.policy())["metadata"]["uid"]

        async def ready() -> Any:
            rows = (await b.policy())["status"].get("workerStatuses") or []
            return [row["name"] for row in rows if row["state"] == "Ready"] == [name]

        await b.until("the worker in the policy's status", ready)
        await played.end(name, "COMPLETED")

        async def gone() -> bool:
            return not await played.applications()

        await b.until("the application to be cleared away", gone)
        assert await b.condition("Stalled") is None

    with_operator(test)


def test_an_operator_that_takes_nothing_up_is_named_in_the_policy(with_operator: Callable[[Test], None]) -> None:
    async def test(b: Bench, played: PlayedOperator) -> None:
        played.takes_up = False
        b.add_log("a")
        await b.apply(workers={"launcher": "kubeflow"})
        await b.until("an application", played.applications)
        objects = b.launcher.objects
        real = objects._monotonic
        objects._monotonic = lambda: real() + 200  # three minutes and a bit later

        async def waits() -> Any:
            status = (await b.policy())["status"]
            # Written before that time had passed, the row says only that the worker is new.
            return [row for row in status.get("waits", ()) if "its Spark operator does not run" in row["message"]]

        (row,) = await b.until("the wait", waits)
        assert row["reason"] == "WorkerPending"
        assert "does not watch this namespace, or is still submitting" in row["message"]
        assert "spec.workers.launcher to pod" in row["message"]

    with_operator(test)


def test_what_cannot_be_made_is_told_and_goes_on_when_it_is_corrected(with_operator: Callable[[Test], None]) -> None:
    """The API server refuses a field that their definition does not have."""

    async def test(b: Bench, played: PlayedOperator) -> None:
        b.add_log("a")
        workers = {"launcher": "apache", "podTemplate": {"spec": {"nodeSelektor": {"disk": "fast"}}}}
        await b.apply(workers=workers)

        async def told() -> Any:
            stalled = await b.condition("Stalled")
            return stalled if stalled is not None and stalled["reason"] == "LaunchFailed" else None

        stalled = await b.until("the condition", told)
        assert 'unknown field "spec.driverSpec.podTemplateSpec.spec.nodeSelektor"' in stalled["message"]
        await b.client.patch(
            COMPACTION_POLICIES,
            "logs",
            {"spec": {"workers": {"launcher": "kubeflow", "podTemplate": None}}},
            namespace=b.namespace,
        )
        await b.all_in("Succeeded")

        async def taken_back() -> bool:
            return await told() is None

        await b.until("the condition to go", taken_back)  # a policy's status is written after those of its jobs

    with_operator(test)


def test_a_driver_out_of_memory_is_charged_and_the_next_one_gets_more(with_operator: Callable[[Test], None]) -> None:
    async def test(b: Bench, played: PlayedOperator) -> None:
        caught: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def hang(worker: str, _job: str) -> None:
            if not caught.done():
                caught.set_result(worker)
                await asyncio.sleep(3600)

        played.before_commit = hang
        b.add_log("a")
        await b.apply(workers={"launcher": "kubeflow", "driver": {"memory": "2Gi", "maxMemory": "3Gi"}})
        first = await caught
        error = "driver container failed with ExitCode: 137, Reason: OOMKilled"
        await played.end(first, "FAILED", error)
        (job,) = await b.all_in("Succeeded")
        lost, done = job["status"]["attempts"]
        assert (lost["reason"], lost["charged"], lost["worker"]) == ("WorkerOutOfMemory", True, first)
        assert error in lost["message"]
        application = (await played.applications())[done["worker"]]
        driver = application["spec"]["driver"]
        assert (driver["memory"], driver["memoryOverhead"]) == ("512m", "2560m"), "3Gi in all: twice 2Gi is beyond it"
        assert first in await played.applications(), "it stays a while for those who read its log"

    with_operator(test)
