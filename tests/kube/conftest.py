"""A connection to the tests' control plane, a way to run coroutines against it, and a policy that is valid."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import pytest

from compaction.kube.client.api import ApiClient, Obj
from compaction.kube.client.config import ApiConnection, load_connection

T = TypeVar("T")


class RunWithClient(Protocol):
    def __call__(self, work: Callable[[ApiClient], Awaitable[T]], **options: Any) -> T: ...


@pytest.fixture
def connection(control_plane: Any) -> ApiConnection:
    return load_connection(control_plane.kubeconfig)


@pytest.fixture
def with_client(connection: ApiConnection) -> RunWithClient:
    """`with_client(work)` runs `await work(client)` in a loop of its own."""

    def run(work: Callable[[ApiClient], Awaitable[T]], **options: Any) -> T:
        async def main() -> T:
            async with ApiClient(connection, **options) as client:
                return await work(client)

        return asyncio.run(main())

    return run


@pytest.fixture
def policy(namespace: str) -> Callable[..., Obj]:
    def make(name: str = "p", **metadata: Any) -> Obj:
        return {
            "apiVersion": "compaction.dev/v1alpha1",
            "kind": "CompactionPolicy",
            "metadata": {"name": name, "namespace": namespace, **metadata},
            "spec": {"store": {"segmentLogs": {"root": "/data/ra"}}},
        }

    return make


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """A directory for records of workers that are processes; whatever a failing test leaves running is killed."""
    yield tmp_path
    for worker in psutil.process_iter(["cwd"]):  # workers run in the directory of their records
        if worker.info["cwd"] == str(tmp_path / "workers"):
            worker.kill()
