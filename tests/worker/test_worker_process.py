"""`compactor worker` as a process, with a real API server; the test plays the coordinator.

Twice with real Spark: in the life of a worker that is asked to end, and where it is killed. How else it ends is the
worker's own (loop.py), and its process the same with threads in the place of Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from compaction.api.job.job_status import ReportOutcome, parse_report
from compaction.api.names import (
    ANNOTATION_REPORT,
    API_VERSION,
    COMPONENT_JOB,
    LABEL_WORKER,
    child_labels,
)
from compaction.leases.record import Lease, LeaseRecord
from compaction.segments.commit import fence
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.worker.loop import WorkerExit
from support.clocks import PATIENCE_SECONDS
from support.cluster.by_kubectl import Cluster
from support.cluster.control_plane import ControlPlane
from support.processes import light_worker
from support.processes.operators import command_line, descendants, still_alive
from support.processes.worker_ports import job_spec, wait_until
from support.segments.segment_logs import content

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]

MakeLog = Callable[..., Path]
WORKER = "policy-w-abcde"
REAL = ("-m", "compaction.cli.main")
LIGHT = (str(Path(light_worker.__file__)),)


def leases(cluster: Cluster) -> dict[str, Lease]:
    return {item["metadata"]["name"]: Lease.parse(item) for item in cluster.list("lease")}


def wait_for_worker(cluster: Cluster) -> None:
    wait_until(lambda: WORKER in leases(cluster), what="the worker's Lease")


def assign(cluster: Cluster, *, job: str, token: int, log: Path) -> None:
    """What the coordinator does: steps 2 and 3 of an assignment, and the job itself."""
    spec = job_spec(log, limits=SegmentLimits(max_entries=64))
    cluster.apply(
        {"apiVersion": API_VERSION, "kind": "CompactionJob", "metadata": {"name": job}, "spec": spec.to_object()}
    )
    fence.claim(log, job=job, token=token, holder="coordinator")
    now = datetime.now(UTC)
    labels = child_labels(policy="policy", component=COMPONENT_JOB) | {LABEL_WORKER: WORKER}
    record = LeaseRecord(WORKER, 15, token, acquire_time=now, renew_time=now)
    cluster.apply(Lease(name=job, namespace=cluster.namespace, record=record, labels=labels).body())


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Cluster:
    """In which a policy exists."""
    cluster = Cluster(control_plane, namespace)
    cluster.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "CompactionPolicy",
            "metadata": {"name": "policy"},
            "spec": {"store": {"segmentLogs": {"root": "/data"}}},
        }
    )
    return cluster


@contextmanager
def worker(
    cluster: Cluster, directory: Path, *, program: tuple[str, ...], policy: str = "policy", idle: float = 60
) -> Iterator[subprocess.Popen[str]]:
    """A worker process; killed at the latest at the end of the block. Its output is in `worker.log`."""
    command = [sys.executable, "-W", "error", *program, "worker", "--namespace", cluster.namespace]
    command += ["--policy", policy, "--name", WORKER, "--slots", "2", "--idle-seconds", str(idle)]
    command += ["--lease-seconds", "3", "--master", "local[2]", "--conf", "spark.driver.memory=600m"]
    environment = os.environ | {"KUBECONFIG": str(cluster.plane.kubeconfig), "TMPDIR": str(directory)}
    with (
        (directory / "worker.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment, cwd=directory) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_takes_jobs_reports_and_takes_its_processes_along_when_it_is_asked_to_end(
    cluster: Cluster, tmp_path: Path, make_log: MakeLog
) -> None:
    logs = {f"job-{number}": make_log(f"log-{number}", claim=0) for number in range(3)}
    before = {job: content(log) for job, log in logs.items()}
    with worker(cluster, tmp_path, program=REAL) as process:
        wait_for_worker(cluster)
        for number, (job, log) in enumerate(logs.items()):
            assign(cluster, job=job, token=number + 5, log=log)

        def reports() -> dict[str, str]:
            found = {name: lease.annotations.get(ANNOTATION_REPORT, "") for name, lease in leases(cluster).items()}
            return found if all(found.get(job) for job in logs) else {}

        texts = wait_until(reports, what="three reports")
        for number, job in enumerate(logs):
            report = parse_report(texts[job])
            assert (report.token, report.outcome) == (number + 5, ReportOutcome.SUCCEEDED)
            assert report.receipt is not None
            assert report.receipt.worker == WORKER
        family = descendants(process.pid)
        assert "java" in " ".join(command_line(member) for member in family)
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == WorkerExit.TERMINATED
        assert still_alive(family, seconds=PATIENCE_SECONDS) == []
    assert WORKER not in leases(cluster)
    assert {job: content(log) for job, log in logs.items()} == before
    assert [path.name for path in tmp_path.glob("compactor-spark-*")] == []
    text = (tmp_path / "worker.log").read_text()
    assert "Traceback" not in text
    assert f"policy={cluster.namespace}/policy" in text


def test_a_killed_worker_takes_its_processes_along_and_leaves_its_lease(cluster: Cluster, tmp_path: Path) -> None:
    with worker(cluster, tmp_path, program=REAL) as process:
        wait_for_worker(cluster)
        family = descendants(process.pid)
        assert family
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert still_alive(family, seconds=PATIENCE_SECONDS) == []
    assert WORKER in leases(cluster)


@pytest.mark.parametrize("why", [WorkerExit.IDLE, WorkerExit.LEASE_GONE])
def test_a_worker_without_work_or_lease_ends_and_leaves_no_lease(
    cluster: Cluster, tmp_path: Path, why: WorkerExit
) -> None:
    idle = 0.5 if why is WorkerExit.IDLE else 60
    with worker(cluster, tmp_path, program=LIGHT, idle=idle) as process:
        if why is WorkerExit.LEASE_GONE:
            wait_for_worker(cluster)
            cluster.delete(f"lease/{WORKER}")
        assert process.wait(PATIENCE_SECONDS) == why
    assert WORKER not in leases(cluster)
    text = (tmp_path / "worker.log").read_text()
    assert f"reason={why.name}" in text
    assert "Traceback" not in text


def test_worker_of_a_policy_that_is_gone_says_so(cluster: Cluster, tmp_path: Path) -> None:
    with worker(cluster, tmp_path, program=LIGHT, policy="other") as process:
        assert process.wait(PATIENCE_SECONDS) == 1
    assert f"policy {cluster.namespace}/other does not exist" in (tmp_path / "worker.log").read_text()
