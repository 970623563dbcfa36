"""A worker that is cut off from the API server: connections refused, or everything swallowed and delivered late."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from chaos.aftermath import Logs, assert_all_done
from support.cluster.by_kubectl import Cluster
from support.faults.tcp_proxy import Network, TcpProxy
from support.processes.operators import OperatorFleet
from support.time.waiting import eventually

LEASE = 3


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
        cluster.apply_policy(logs.path, lease={"durationSeconds": LEASE}, workers=workers)
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
