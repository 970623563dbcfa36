"""The disk under the logs is full, or read-only: errors of the kernel, met by real Spark workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.aftermath import Logs, assert_all_done
from chaos.mounts import SmallDisk
from support.cluster.by_kubectl import Cluster
from support.time.waiting import eventually

pytestmark = pytest.mark.spark

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
