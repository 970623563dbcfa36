"""What befalls workers, from end to end, once per launcher: a coordinator on a real API server, and a played cluster.

Each row says what becomes of the first worker, what people can read meanwhile, and that the job is done in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.api.enums import LauncherType, WorkerTrouble
from compaction.kube.client.api import COMPACTION_POLICIES, LEASES
from compaction.kube.client.transport import Obj
from compaction.kube.launchers.objects import KINDS
from kube.launchers.played_cluster import RUNNING, Cluster, played
from kube.own_coordinator import Bench
from support.clocks import PATIENCE_SECONDS

LAUNCHERS = (LauncherType.KUBEFLOW, LauncherType.APACHE, LauncherType.POD)
Row = Callable[[Bench, Cluster], Awaitable[None]]
Play = Callable[[Row], None]
NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}


@pytest.fixture(params=LAUNCHERS)
def play(
    request: pytest.FixtureRequest, control_plane: Any, namespace: str, spark_operators: None, tmp_path: Path
) -> Play:
    def run(row: Row) -> None:
        async def main() -> None:
            async with played(control_plane.kubeconfig, namespace, tmp_path, request.param) as (bench, cluster):
                bench.add_log("a")
                await row(bench, cluster)

        asyncio.run(main())

    return run


async def apply(b: Bench, c: Cluster, **workers: Any) -> None:
    await b.apply(lease={"durationSeconds": 15}, workers={"launcher": c.launcher, "max": 1, "slots": 1, **workers})


async def wait_named(b: Bench, *words: str, reason: str = "WorkerPending") -> None:
    """What the jobs wait for is in the policy's status, with these words."""

    async def named() -> bool:
        waits = (await b.policy()).get("status", {}).get("waits", ())
        return any(row["reason"] == reason and all(word in row["message"] for word in words) for row in waits)

    await b.until(f"{reason}: {words}", named)


async def done(b: Bench) -> list[Obj]:
    """The attempts of the job, once it has succeeded."""
    (job,) = await b.all_in("Succeeded")
    attempts: list[Obj] = job["status"]["attempts"]
    return attempts


async def until_it_works(b: Bench, c: Cluster) -> str:
    """The first worker, once it holds the job and goes no further."""
    held: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def hold(worker: str, _job: str) -> None:
        if not held.done():
            held.set_result(worker)
            await asyncio.sleep(3600)

    c.before_commit, c.first = hold, c.start
    await apply(b, c)
    return await asyncio.wait_for(held, PATIENCE_SECONDS)


def test_no_room_for_executors(play: Play) -> None:
    async def row(b: Bench, c: Cluster) -> None:
        async def first(name: str) -> None:
            await c.pod(name, RUNNING)
            await c.state(name, up=True)
            await c.executor(name, {"phase": "Pending", "conditions": [NO_ROOM]})

        c.first = first
        await apply(b, c, executor={"instances": 1})
        await wait_named(b, "Unschedulable", "its executor", "0/3 nodes are available")
        (name,) = c.names
        await c.executor(name, RUNNING)
        c.workers[name] = asyncio.create_task(c.announce(name))
        (attempt,) = await done(b)
        assert attempt["worker"] == name, "it was waited for"

    play(row)


def test_out_of_memory_at_the_start(play: Play) -> None:
    async def row(b: Bench, c: Cluster) -> None:
        async def first(name: str) -> None:
            killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
            await c.pod(name, c.container(killed, phase="Failed"))
            await c.state(name, up=False)

        c.first = first
        await apply(b, c, driver={"memory": "2Gi", "maxMemory": "3Gi"})
        (attempt,) = await done(b)
        _, second = c.names
        assert attempt["worker"] == second
        assert (await b.policy())["status"]["driverMemoryBytes"] == 3 << 30
        body = await b.client.get(KINDS[c.launcher], second, namespace=b.namespace)
        assert body["metadata"]["annotations"]["compaction.dev/driver-memory"] == str(3 << 30)

    play(row)


def test_an_image_that_cannot_be_pulled(play: Play) -> None:
    async def row(b: Bench, c: Cluster) -> None:
        async def first(name: str) -> None:
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}
            await c.pod(name, c.container(waiting, phase="Pending"))

        c.first = first
        await apply(b, c, image="w:wrong")
        await wait_named(b, "ImagePull", "manifest unknown")
        right = {"spec": {"workers": {"image": "w:right"}}}
        await b.client.patch(COMPACTION_POLICIES, "logs", right, namespace=b.namespace)
        (attempt,) = await done(b)
        assert [attempt["worker"]] == c.names[1:], "a corrected spec is tried at once"

    play(row)


def test_a_controller_that_is_away(play: Play) -> None:
    """Theirs, after the driver has begun; of a pod of ours it is ours, and another comes."""

    async def row(b: Bench, c: Cluster) -> None:
        first = await until_it_works(b, c)
        if c.launcher is LauncherType.POD:
            await b.die()
            await b.start()
        killed = {"terminated": {"exitCode": 3, "reason": "Error", "message": "error: the disk is full"}}
        c.workers[first].cancel()
        await c.pod(first, c.container(killed, phase="Failed"))
        lost, found = await done(b)
        assert (lost["reason"], lost["charged"]) == ("WorkerLost", False)
        assert "exit code 3: error: the disk is full" in lost["message"], "its log's end, before it is deleted"
        assert found["worker"] != first

    play(row)


def test_suspended_and_resumed(play: Play) -> None:
    """Kubeflow's operator deletes the driver and makes another; of the others Kueue holds the pod back at its start."""

    async def row(b: Bench, c: Cluster) -> None:
        if c.launcher is not LauncherType.KUBEFLOW:
            await held_back(b, c)
            return
        first = await until_it_works(b, c)
        c.workers[first].cancel()
        await c.application_status(first, "SUSPENDED")
        await b.client.delete(KINDS[LauncherType.POD], f"{first}-driver", namespace=b.namespace)

        async def seen() -> bool:
            return any(item.trouble is WorkerTrouble.QUEUED for item in b.observed())

        await b.until("the suspension to be seen", seen)
        for lease in await b.leases():  # the driver had time to leave, as it has after SIGTERM
            await b.client.delete(LEASES, lease["metadata"]["name"], namespace=b.namespace)
        await wait_named(b, first, "Queued", "its SparkApplication is SUSPENDED")
        assert c.names == [first], "it counts against workers.max"
        c.workers[first] = asyncio.create_task(c.start(first))
        lost, found = await done(b)
        assert (lost["charged"], found["worker"]) == (False, first)

    play(row)


async def held_back(b: Bench, c: Cluster) -> None:
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "held back by a queue"}

    async def first(name: str) -> None:
        await c.pod(name, {"phase": "Pending", "conditions": [gate]})

    c.first = first
    await apply(b, c)
    await wait_named(b, "held back by a queue")
    (name,) = c.names
    c.workers[name] = asyncio.create_task(c.start(name))
    (attempt,) = await done(b)
    assert attempt["worker"] == name


def test_deleted_by_hand(play: Play) -> None:
    async def row(b: Bench, c: Cluster) -> None:
        first = await until_it_works(b, c)
        await b.client.delete(KINDS[c.launcher], first, namespace=b.namespace)
        lost, found = await done(b)
        assert (lost["reason"], lost["charged"], lost["worker"]) == ("WorkerLost", False, first)
        assert found["worker"] != first

    play(row)


def test_evicted(play: Play) -> None:
    async def row(b: Bench, c: Cluster) -> None:
        first = await until_it_works(b, c)
        c.workers[first].cancel()
        ended = {"terminated": {"exitCode": 143, "reason": "Error"}}
        await c.pod(first, c.container(ended, phase="Failed", conditions=[EVICTED]))
        lost, found = await done(b)
        assert (lost["reason"], lost["charged"]) == ("WorkerDisrupted", False)
        assert "drained" in lost["message"]
        assert found["worker"] != first

    play(row)
