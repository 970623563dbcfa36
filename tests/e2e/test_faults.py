"""Workers and leaders die, stop and come back, policies go away mid-run: every job ends once, and nothing is lost.

Two stories on a fleet of their own each: what Spark has a part in, and what the operator alone decides.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from chaos.outages import Logs, leader
from compaction.segments.commit import fence
from compaction.segments.directory import lock
from support.clocks import PATIENCE_SECONDS, eventually
from support.cluster.by_kubectl import Cluster, Object
from support.processes.operators import OperatorFleet

pytestmark = pytest.mark.apiserver

LEASE = 5
# Enough work for Spark that a job is still under way when it is first seen in progress.
LONG = {"entries_per_segment": 2048, "payload_bytes": 512}


class Caught:
    """One job in the middle of its work: a group is committed, the next one has to wait until `release`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._release = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def __enter__(self) -> Caught:
        self.job = self._cluster.await_job_state("InProgress")
        eventually(lambda: fence.read(self._directory).receipts, "the first group to be committed", pause=0.02)
        self._thread.start()
        assert self._held.wait(PATIENCE_SECONDS)
        groups = self.job["spec"]["sources"]["segmentLog"]["groups"]
        assert len(fence.read(self._directory).receipts) < len(groups), "it was over before it could be caught"
        self.worker: str = self.job["status"]["worker"]
        return self

    def __exit__(self, *error: object) -> None:
        self._release.set()
        self._thread.join()

    def _hold(self) -> None:
        with lock.hold(self._directory, holder="test", timeout=60):
            self._held.set()
            self._release.wait()


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    root = tmp_path / "ra"
    root.mkdir()
    return Logs(root)


def job_of(cluster: Cluster, log: Path) -> Object:
    """The one job of a log."""
    [job] = [job for job in cluster.jobs() if job["spec"]["sources"]["segmentLog"]["path"] == str(log)]
    return job


def assert_finished_once(cluster: Cluster, logs: Logs, log: Path, *, token: int) -> Object:
    """The log's job has succeeded at the attempt with that token, with a receipt of every group; returns the job."""
    cluster.await_all_succeeded(at_least=len(logs.before))
    logs.assert_compacted_once()
    eventually(lambda: not logs.leftovers(), "what dead attempts left behind to be deleted")
    job = job_of(cluster, log)
    assert job["status"]["fencingToken"] == token
    receipt = job["status"]["receipt"]
    assert receipt["groupsCommitted"] == receipt["groups"] == len(job["spec"]["sources"]["segmentLog"]["groups"])
    return job


def is_over(fleet: OperatorFleet, worker: str, attempt: str) -> bool:
    """Whether a worker has logged the end of an attempt ("job=J token=T")."""
    lines = (fleet.state_dir / "workers" / f"{worker}.log").read_text().splitlines()
    return any("attempt over" in line and attempt in line for line in lines)


def delete_mid_run(fleet: OperatorFleet, cluster: Cluster, logs: Logs, log: Path) -> None:
    """The policy goes while the log's job is at work; everything that was made for it goes with it."""
    with Caught(cluster, log):
        cluster.delete("cpol/logs")
        eventually(lambda: not fleet.running_workers(), "the workers to be stopped")
    eventually(lambda: not cluster.jobs(), "the jobs to be deleted")
    eventually(lambda: not cluster.leases("job") + cluster.leases("worker"), "the leases to be deleted")
    logs.assert_content()


@pytest.mark.spark
def test_a_woken_zombie_on_spark_commits_nothing_and_sparks_workers_go_with_their_policy(
    fleet: OperatorFleet, cluster: Cluster, logs: Logs
) -> None:
    """The zombie's successor is there before it is needed: so its lease need not be longer than the start of a Spark,
    and nobody is stopped for good, as a worker that is silent for three leases is.
    """
    for name in ("a", "b"):
        logs.add(name)
    fleet.start()
    workers = {"max": 2, "slots": 1, "idleSeconds": 300, "sparkMaster": "local[1]"}
    cluster.apply_policy(logs.path, workers=workers, lease={"durationSeconds": 10})
    eventually(lambda: len(cluster.leases("worker")) == 2, "two workers whose Spark has started")
    cluster.await_all_succeeded(at_least=2)

    log = logs.add("stopped", **LONG)
    with Caught(cluster, log) as caught:
        zombie = fleet.worker_pid(caught.worker)
        os.killpg(zombie, signal.SIGSTOP)
    job = caught.job["metadata"]["name"]
    # It wakes as soon as its successor has the job. No earlier: a renewal that was under way when it was stopped may
    # come between the claim in the store and the change of the Lease, and then it is token 3 that the successor gets.
    successor = "the successor to have the job"
    eventually(lambda: job_of(cluster, log)["status"].get("worker") not in {None, caught.worker}, successor, pause=0.05)
    assert fence.read(log).high_water(job) == 2
    before = [receipt for receipt in logs.receipts("stopped") if receipt.token == 1]
    os.killpg(zombie, signal.SIGCONT)
    finished = assert_finished_once(cluster, logs, log, token=2)
    assert finished["status"]["worker"] != caught.worker
    eventually(lambda: is_over(fleet, caught.worker, f"job={job} token=1"), "the zombie to give up")
    receipts = logs.receipts("stopped")
    assert [receipt for receipt in receipts if receipt.token == 1] == before
    assert {receipt.token for receipt in receipts} == {1, 2}
    logs.assert_compacted_once()

    delete_mid_run(fleet, cluster, logs, logs.add("deleted", **LONG))


def test_killed_workers_and_leaders_are_succeeded_and_a_restarted_operator_goes_on(
    slow_workers: OperatorFleet, cluster: Cluster, logs: Logs
) -> None:
    fleet = slow_workers
    replicas = {replica.identity: replica for replica in (fleet.start(), fleet.start())}
    workers = {"max": 1, "slots": 2, "idleSeconds": 300}
    log = logs.add("killed")
    cluster.apply_policy(logs.path, workers=workers, lease={"durationSeconds": LEASE})
    with Caught(cluster, log) as caught:
        fleet.signal_worker(caught.worker, signal.SIGKILL)
    job = assert_finished_once(cluster, logs, log, token=2)
    first, second = job["status"]["attempts"]
    assert (first["token"], first["outcome"] in {"Lost", "Expired"}) == (1, True)
    assert (second["token"], second["outcome"]) == (2, "Succeeded")
    assert second["worker"] != caught.worker

    log = logs.add("led-by-another")
    with Caught(cluster, log) as caught:
        old = leader(cluster)
        replicas.pop(old).kill()
        eventually(lambda: leader(cluster) not in {"", old}, "another leader")
    # The worker outlived its coordinator: the successor adopts its attempt instead of starting another.
    job = assert_finished_once(cluster, logs, log, token=1)
    assert job["status"]["receipt"]["worker"] == caught.worker

    log = logs.add("restarted")
    [last] = replicas.values()
    with Caught(cluster, log) as caught:
        assert last.stop() == 0
        fleet.start()
    job = assert_finished_once(cluster, logs, log, token=1)
    assert job["status"]["receipt"]["worker"] == caught.worker

    delete_mid_run(fleet, cluster, logs, logs.add("deleted"))
