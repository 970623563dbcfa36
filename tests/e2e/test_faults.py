"""Workers and leaders die, stop and come back, policies go away mid-run: every job ends once, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from compaction.stores.segments import fence, lock
from support.cluster import Cluster, LogRoot
from support.operators import OperatorFleet
from support.waiting import eventually

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]


class Caught:
    """One job in progress on one worker, its commits held up until `release`."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._release = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def __enter__(self) -> Caught:
        self.job = self._cluster.await_job_state("InProgress")
        self._thread.start()
        assert self._held.wait(60)
        self.worker: str = self.job["status"]["worker"]
        return self

    def __exit__(self, *error: object) -> None:
        self._release.set()
        self._thread.join()

    def _hold(self) -> None:
        with lock.hold(self._directory, holder="test", timeout=60):
            self._held.set()
            self._release.wait()


def one_long_log(logs: LogRoot) -> Path:
    """Enough groups that a job is still at work when it is first seen in progress."""
    return logs.add("a", segments=49, entries_per_segment=2048, payload_bytes=1024, live_fraction=0.1)


def assert_finished_once(cluster: Cluster, logs: LogRoot, directory: Path, *, token: int) -> None:
    jobs = cluster.await_all_succeeded()
    logs.assert_unchanged()
    eventually(lambda: not logs.leftovers(), "what dead attempts left behind to be deleted")
    assert max(job["status"]["fencingToken"] for job in jobs) == token
    receipts = fence.read(directory).receipts
    assert len({receipt.group for receipt in receipts}) == len(receipts)
    for job in jobs:
        receipt = job["status"]["receipt"]
        assert receipt["groupsCommitted"] == receipt["groups"] == len(job["spec"]["sources"]["segmentLog"]["groups"])


def test_a_killed_worker_is_replaced_and_the_job_finishes_once(
    fleet: OperatorFleet, cluster: Cluster, logs: LogRoot
) -> None:
    directory = one_long_log(logs)
    fleet.start()
    cluster.apply_policy(logs.path)
    with Caught(cluster, directory) as caught:
        fleet.signal_worker(caught.worker, signal.SIGKILL)
    assert_finished_once(cluster, logs, directory, token=2)
    [job] = cluster.jobs()
    first, second = job["status"]["attempts"]
    assert (first["token"], first["outcome"] in {"Lost", "Expired"}) == (1, True)
    assert (second["token"], second["outcome"]) == (2, "Succeeded")
    assert second["worker"] != caught.worker


def test_a_woken_zombie_worker_commits_nothing(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    """It wakes as soon as its successor has the job. A worker silent for three leases is stopped for good, so the
    lease is long enough for the successor's Spark to start in two of them on a busy machine.
    """
    directory = one_long_log(logs)
    fleet.start()
    workers = {"max": 2, "slots": 1, "idleSeconds": 10, "sparkMaster": "local[1]"}
    cluster.apply_policy(logs.path, workers=workers, lease={"durationSeconds": 30})
    with Caught(cluster, directory) as caught:
        zombie = fleet.worker_pid(caught.worker)
        os.killpg(zombie, signal.SIGSTOP)
    job = caught.job["metadata"]["name"]
    eventually(lambda: fence.read(directory).high_water(job) == 2, "the successor's token to be claimed")
    before = [receipt for receipt in fence.read(directory).receipts if receipt.token == 1]
    os.killpg(zombie, signal.SIGCONT)
    assert_finished_once(cluster, logs, directory, token=2)
    eventually(
        lambda: caught.worker not in [worker.name for worker in fleet.running_workers()], "the zombie to give up"
    )
    receipts = fence.read(directory).receipts
    assert [receipt for receipt in receipts if receipt.token == 1] == before
    assert {receipt.token for receipt in receipts} - {1} == {2}
    logs.assert_unchanged()


def test_a_killed_leader_is_succeeded_and_work_goes_on(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    directory = one_long_log(logs)
    replicas = {replica.identity: replica for replica in (fleet.start(), fleet.start())}
    cluster.apply_policy(logs.path)

    def leader() -> str:
        found = cluster.list("lease", "--field-selector=metadata.name=compaction-coordinator")
        return str(found[0]["spec"].get("holderIdentity") or "") if found else ""

    with Caught(cluster, directory) as caught:
        first = leader()
        next(replica for name, replica in replicas.items() if name in first).kill()
        eventually(lambda: leader() not in {"", first}, "another leader")
    # The worker outlived its coordinator: the successor adopts its attempt instead of starting another.
    assert_finished_once(cluster, logs, directory, token=1)
    [job] = cluster.jobs()
    assert job["status"]["receipt"]["worker"] == caught.worker


def test_a_restarted_operator_continues_where_it_was(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    directory = one_long_log(logs)
    first = fleet.start()
    cluster.apply_policy(logs.path)
    with Caught(cluster, directory):
        assert first.stop() == 0
        fleet.start()
    assert_finished_once(cluster, logs, directory, token=1)


def test_deleting_a_policy_mid_run_leaves_no_orphan(fleet: OperatorFleet, cluster: Cluster, logs: LogRoot) -> None:
    directory = one_long_log(logs)
    fleet.start()
    cluster.apply_policy(logs.path)
    with Caught(cluster, directory):
        cluster.kubectl("delete", "cpol", "logs")
        eventually(lambda: not fleet.running_workers(), "the worker to be stopped")
    eventually(lambda: not cluster.jobs(), "the jobs to be deleted")
    eventually(lambda: not cluster.leases("job") + cluster.leases("worker"), "the leases to be deleted")
    logs.assert_unchanged()
