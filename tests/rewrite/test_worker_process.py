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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from compaction.api.job.report import ReportOutcome, parse_report
from compaction.api.names import (
    ANNOTATION_REPORT,
    API_VERSION,
    COMPONENT_JOB,
    LABEL_WORKER,
    child_labels,
)
from compaction.leases.record import Lease, LeaseRecord
from compaction.rewrite.worker.loop import WorkerExit
from compaction.stores.segments.commit import fence
from compaction.stores.segments.planning.limits import SegmentLimits
from support.cluster.control_plane import ControlPlane
from support.processes import light_worker
from support.processes.family import command_line, descendants, still_alive
from support.processes.worker_ports import job_spec, wait_until
from support.stores.segment_logs import content

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]

MakeLog = Callable[..., Path]
LEASES = "coordination.k8s.io/v1"
WORKER = "policy-w-abcde"
REAL = ("-m", "compaction.cli.main")
LIGHT = (str(Path(light_worker.__file__)),)


@dataclass(frozen=True)
class Cluster:
    """What the coordinator does, in a namespace of the test in which a policy exists."""

    plane: ControlPlane
    namespace: str

    def request(self, method: str, group: str, plural: str, body: Any = None, *, name: str = "") -> Any:
        path = f"/apis/{group}/namespaces/{self.namespace}/{plural}"
        answer = self.plane.admin.request(method, f"{path}/{name}" if name else path, body)
        assert answer.ok, answer.text
        return answer.json()

    def leases(self) -> dict[str, Lease]:
        items = self.request("GET", LEASES, "leases")["items"]
        return {item["metadata"]["name"]: Lease.parse(item) for item in items}

    def wait_for_worker(self) -> None:
        wait_until(lambda: WORKER in self.leases(), what="the worker's Lease")

    def assign(self, *, job: str, token: int, log: Path) -> None:
        """Steps 2 and 3 of an assignment, and the job itself."""
        spec = job_spec(log, limits=SegmentLimits(max_entries=64))
        body = {"apiVersion": API_VERSION, "kind": "CompactionJob", "metadata": {"name": job}, "spec": spec.to_object()}
        self.request("POST", API_VERSION, "compactionjobs", body)
        fence.claim(log, job=job, token=token, holder="coordinator")
        now = datetime.now(UTC)
        labels = child_labels(policy="policy", component=COMPONENT_JOB) | {LABEL_WORKER: WORKER}
        record = LeaseRecord(WORKER, 15, token, acquire_time=now, renew_time=now)
        lease = Lease(name=job, namespace=self.namespace, record=record, labels=labels)
        self.request("POST", LEASES, "leases", lease.body())


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Cluster:
    cluster = Cluster(control_plane, namespace)
    policy = {
        "apiVersion": API_VERSION,
        "kind": "CompactionPolicy",
        "metadata": {"name": "policy"},
        "spec": {"store": {"segmentLogs": {"root": "/data"}}},
    }
    cluster.request("POST", API_VERSION, "compactionpolicies", policy)
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
        cluster.wait_for_worker()
        for number, (job, log) in enumerate(logs.items()):
            cluster.assign(job=job, token=number + 5, log=log)

        def reports() -> dict[str, str]:
            found = {name: lease.annotations.get(ANNOTATION_REPORT, "") for name, lease in cluster.leases().items()}
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
        assert process.wait(60) == WorkerExit.TERMINATED
        assert still_alive(family, seconds=60) == []
    assert WORKER not in cluster.leases()
    assert {job: content(log) for job, log in logs.items()} == before
    assert [path.name for path in tmp_path.glob("compactor-spark-*")] == []
    text = (tmp_path / "worker.log").read_text()
    assert "Traceback" not in text
    assert f"policy={cluster.namespace}/policy" in text


def test_a_killed_worker_takes_its_processes_along_and_leaves_its_lease(cluster: Cluster, tmp_path: Path) -> None:
    with worker(cluster, tmp_path, program=REAL) as process:
        cluster.wait_for_worker()
        family = descendants(process.pid)
        assert family
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
        assert still_alive(family, seconds=60) == []
    assert WORKER in cluster.leases()


@pytest.mark.parametrize("why", [WorkerExit.IDLE, WorkerExit.LEASE_GONE])
def test_a_worker_without_work_or_lease_ends_and_leaves_no_lease(
    cluster: Cluster, tmp_path: Path, why: WorkerExit
) -> None:
    idle = 0.5 if why is WorkerExit.IDLE else 60
    with worker(cluster, tmp_path, program=LIGHT, idle=idle) as process:
        if why is WorkerExit.LEASE_GONE:
            cluster.wait_for_worker()
            cluster.request("DELETE", LEASES, "leases", name=WORKER)
        assert process.wait(60) == why
    assert WORKER not in cluster.leases()
    text = (tmp_path / "worker.log").read_text()
    assert f"reason={why.name}" in text
    assert "Traceback" not in text


def test_worker_of_a_policy_that_is_gone_says_so(cluster: Cluster, tmp_path: Path) -> None:
    with worker(cluster, tmp_path, program=LIGHT, policy="other") as process:
        assert process.wait(120) == 1
    assert f"policy {cluster.namespace}/other does not exist" in (tmp_path / "worker.log").read_text()
