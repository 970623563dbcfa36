"""Wall clocks that differ by days and jump while everything runs: nothing that matters is decided by them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from chaos.outages import GROUPS, Logs, SmallDisk, assert_all_done, leader
from support.clocks import eventually, set_offset
from support.cluster.by_kubectl import Cluster
from support.faults.proxies import Network, TcpProxy
from support.processes.operators import READY, OperatorFleet

DAY = 86_400.0
LEASE = 4
WORKERS = {"max": 1, "slots": 2, "idleSeconds": 2, "sparkMaster": "local[1]"}


def test_clocks_that_differ_by_days_and_jump_change_nothing(
    make_fleet: Any, cluster: Cluster, logs: Logs, tmp_path: Path
) -> None:
    clocks = {name: tmp_path / f"{name}.clock" for name in ("ahead", "behind", "workers")}
    for name, offset in (("ahead", 2 * DAY), ("behind", -DAY), ("workers", -3 * DAY)):
        set_offset(clocks[name], offset)
    fleet = make_fleet()
    light = ("--task-seconds", "1.2", "--worker-clock", str(clocks["workers"]))
    for name in ("a", "b"):
        logs.add(name)
    ahead = fleet.start(lease_seconds=LEASE, light=(*light, "--clock", str(clocks["ahead"])))
    eventually(lambda: READY in ahead.output, "the first replica to stand by")
    cluster.apply_policy(logs.path, lease={"durationSeconds": LEASE}, workers=WORKERS)
    behind = fleet.start(lease_seconds=LEASE, light=(*light, "--clock", str(clocks["behind"])))
    eventually(lambda: logs.receipts("a") and logs.receipts("b"), "the first groups to be committed")
    assert leader(cluster) == ahead.identity

    # Everybody's clock jumps, in different directions; nobody expires, nobody loses the lead.
    set_offset(clocks["ahead"], -5 * DAY)
    set_offset(clocks["workers"], 5 * DAY)
    eventually(lambda: min(len(logs.receipts(name)) for name in "ab") >= 3, "more groups to be committed")
    assert leader(cluster) == ahead.identity

    # The next leader lives days before or after the last one: it takes over by its own measure, and adopts what runs.
    eventually(lambda: READY in behind.output, "the second replica to stand by")
    ahead.process.send_signal(signal.SIGKILL)
    eventually(lambda: leader(cluster) == behind.identity, "the other replica to lead")
    set_offset(clocks["behind"], 4 * DAY)
    jobs = assert_all_done(cluster, fleet, logs)
    assert [job["status"]["fencingToken"] for job in jobs] == [1, 1]
    assert [attempt["outcome"] for job in jobs for attempt in job["status"]["attempts"]] == ["Succeeded", "Succeeded"]
    # The grace of an hour is not over for any of the old names, whatever worker and sweeper take the time for.
    assert all(len(list((logs.path / name).glob("*.segment"))) == 8 * GROUPS + 1 for name in logs.before)


# The disk under the logs is full, or read-only: errors of the kernel, met by real Spark workers.

# Live data of a group: 8 x 64 x 4 KiB / 4 = half a MiB, written before any of its sources can go.
BIG = {"payload_bytes": 4096}
SPACE_FOR_THE_FENCE_ONLY = 128 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    directory = tmp_path / "disk"
    directory.mkdir()
    with SmallDisk(directory, mebibytes=40) as disk:
        yield disk


def waiting(cluster: Cluster) -> str:
    """What the policy's jobs wait for."""
    found = cluster.policy().get("status", {}).get("waiting", {})
    return f"{found.get('reason')}: {found.get('message')}"


@pytest.mark.spark
def test_a_full_and_a_read_only_disk_hold_jobs_up_and_lose_nothing(
    make_fleet: Any, cluster: Cluster, disk: SmallDisk
) -> None:
    root = disk.outside / "ra"
    root.mkdir()
    logs = Logs(root)
    fleet = make_fleet(light=None, enter=disk.enter)
    fleet.start()
    # One worker for all of it: none is started for a job whose log could not be claimed a moment ago.
    workers = {"max": 1, "slots": 1, "idleSeconds": 120, "sparkMaster": "local[2]"}
    limits = {"maxAttempts": 20}

    # Full: the rewrite meets ENOSPC, the attempt fails with that reason, and the job waits for its next one.
    logs.add("full", **BIG)
    ballast = disk.fill(leave=SPACE_FOR_THE_FENCE_ONLY)
    cluster.apply_policy(disk.inside / "ra", workers=workers, limits=limits)

    def failed_attempts() -> list[dict[str, Any]]:
        attempts = [attempt for job in cluster.jobs() for attempt in job.get("status", {}).get("attempts", [])]
        return [attempt for attempt in attempts if attempt.get("reason")]

    attempts = eventually(failed_attempts, "an attempt that found no space")
    assert {attempt["reason"] for attempt in attempts} == {"StoreUnreadable"}
    assert "No space left on device" in attempts[0]["message"]
    assert str(disk.inside / "ra" / "full") in attempts[0]["message"]
    logs.assert_content()
    ballast.unlink()
    cluster.await_all_succeeded()

    # Read-only: nothing can be claimed, so no attempt begins; the policy says why.
    eventually(lambda: cluster.policy()["status"].get("active", 0) == 0, "nothing to run")
    logs.add("read-only", **BIG)
    disk.set_read_only(True)
    eventually(lambda: "Read-only file system" in waiting(cluster), "the reason why the job waits")
    assert waiting(cluster).startswith("StoreError: ")
    logs.assert_content()
    disk.set_read_only(False)

    cluster.await_all_succeeded(at_least=2)
    [worker] = fleet.running_workers()
    os.kill(fleet.worker_pid(worker.name), signal.SIGTERM)
    jobs = assert_all_done(cluster, fleet, logs)
    attempts_of = {job["spec"]["sources"]["segmentLog"]["path"].rpartition("/")[2]: job for job in jobs}
    assert [attempt["outcome"] for attempt in attempts_of["read-only"]["status"]["attempts"]] == ["Succeeded"]


# A worker that is cut off from the API server: connections refused, or everything swallowed and delivered late.

SHORT_LEASE = 3


def first_workers_way(fleet: OperatorFleet, plane: Any, proxy: TcpProxy, path: Path) -> None:
    """Workers reach the API server through the proxy; operators go there directly."""
    fleet.worker_kubeconfig = proxy.kubeconfig(fleet.kubeconfig, plane.url, path)


def from_now_on_directly(fleet: OperatorFleet) -> None:
    """Workers that are started from now on do not go through the proxy."""
    for replica in fleet.replicas:
        (fleet.directory / f"{replica.identity}.kubeconfig").write_text(fleet.kubeconfig.read_text())


@pytest.mark.parametrize("cut", [Network.REFUSING, Network.BLACK_HOLE], ids=["refused", "black hole"])
def test_a_worker_cut_off_is_replaced_and_commits_nothing_afterwards(
    make_fleet: Any, control_plane: Any, cluster: Cluster, logs: Logs, tmp_path: Path, cut: Network
) -> None:
    server = urlsplit(control_plane.url)
    with TcpProxy((str(server.hostname), int(server.port or 0))) as proxy:
        fleet = make_fleet(light=("--task-seconds", "0.9"))
        first_workers_way(fleet, control_plane, proxy, tmp_path / "through-proxy")
        logs.add("a")
        fleet.start()
        workers = {"max": 2, "slots": 1, "idleSeconds": 2, "sparkMaster": "local[1]"}
        cluster.apply_policy(logs.path, lease={"durationSeconds": SHORT_LEASE}, workers=workers)
        lonely = cluster.await_job_state("InProgress")["status"]["worker"]
        eventually(lambda: logs.receipts("a"), "the first group to be committed")
        from_now_on_directly(fleet)

        # A cut shorter than the lease costs nothing.
        proxy.set(cut)
        eventually(lambda: len(logs.receipts("a")) >= 2, "the next commit, which needs no API server")
        proxy.set(Network.UP)
        [job] = cluster.jobs()
        assert (job["status"]["worker"], job["status"]["fencingToken"]) == (lonely, 1)

        proxy.set(cut)
        eventually(lambda: cluster.jobs()[0]["status"].get("worker") not in {None, lonely}, "another worker's attempt")
        before = [receipt for receipt in logs.receipts("a") if receipt.holder == lonely]
        if cut is Network.BLACK_HOLE:
            # What the worker had said is delivered now, late.
            proxy.set(Network.UP)
        [job] = assert_all_done(cluster, fleet, logs)
    assert [receipt for receipt in logs.receipts("a") if receipt.holder == lonely] == before
    *lost, last = job["status"]["attempts"]
    assert {attempt["worker"] for attempt in lost} == {lonely}
    assert {attempt["outcome"] for attempt in lost} <= {"Expired", "Lost"}
    assert (last["outcome"], last["worker"]) == ("Succeeded", job["status"]["worker"])
