"""`compactor worker` as a process, with real Spark and a real API server; the test plays the coordinator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from support.processes.family import descendants, still_alive
from support.processes.worker_ports import job_spec, wait_until
from support.stores.segment_logs import content

pytestmark = [pytest.mark.apiserver, pytest.mark.spark]

MakeLog = Callable[..., Path]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]
WORKER = "policy-w-abcde"


@pytest.fixture
def cluster(kubectl: Kubectl, namespace: str) -> Callable[..., str]:
    """kubectl in the namespace of the test, in which a policy exists."""

    def run(*args: str, body: dict[str, Any] | None = None, check: bool = True) -> str:
        text = None if body is None else json.dumps(body)
        return kubectl(*args, namespace=namespace, input=text, check=check).stdout

    policy = {
        "apiVersion": API_VERSION,
        "kind": "CompactionPolicy",
        "metadata": {"name": "policy"},
        "spec": {"store": {"segmentLogs": {"root": "/data"}}},
    }
    run("create", "-f", "-", body=policy)
    return run


@contextmanager
def worker(
    kubeconfig: Path, namespace: str, directory: Path, *, policy: str = "policy", idle: float = 60
) -> Iterator[subprocess.Popen[str]]:
    """A worker process; killed at the latest at the end of the block. Its output is in `worker.log`."""
    command = [sys.executable, "-W", "error", "-m", "compaction.cli.main", "worker", "--namespace", namespace]
    command += ["--policy", policy, "--name", WORKER, "--slots", "2", "--idle-seconds", str(idle)]
    command += ["--lease-seconds", "3", "--master", "local[2]", "--conf", "spark.driver.memory=600m"]
    environment = os.environ | {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(directory)}
    with (
        (directory / "worker.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment, cwd=directory) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def assign(cluster: Callable[..., str], namespace: str, *, job: str, token: int, log: Path) -> None:
    """Steps 2 and 3 of an assignment, and the job itself."""
    spec = job_spec(log, limits=SegmentLimits(max_entries=64))
    body = {"apiVersion": API_VERSION, "kind": "CompactionJob", "metadata": {"name": job}, "spec": spec.to_object()}
    cluster("create", "-f", "-", body=body)
    fence.claim(log, job=job, token=token, holder="coordinator")
    now = datetime.now(UTC)
    labels = child_labels(policy="policy", component=COMPONENT_JOB) | {LABEL_WORKER: WORKER}
    record = LeaseRecord(WORKER, 15, token, acquire_time=now, renew_time=now)
    cluster("create", "-f", "-", body=Lease(name=job, namespace=namespace, record=record, labels=labels).body())


def leases(cluster: Callable[..., str]) -> dict[str, Lease]:
    items = json.loads(cluster("get", "leases", "-o", "json"))["items"]
    return {item["metadata"]["name"]: Lease.parse(item) for item in items}


def test_worker_takes_jobs_reports_and_leaves(
    control_plane: Any, cluster: Callable[..., str], namespace: str, tmp_path: Path, make_log: MakeLog
) -> None:
    logs = {f"job-{number}": make_log(f"log-{number}", claim=0) for number in range(3)}
    before = {job: content(log) for job, log in logs.items()}
    with worker(control_plane.kubeconfig, namespace, tmp_path, idle=2) as process:
        wait_until(lambda: WORKER in leases(cluster), what="the worker's Lease")
        for number, (job, log) in enumerate(logs.items()):
            assign(cluster, namespace, job=job, token=number + 5, log=log)

        def reports() -> dict[str, str]:
            found = {name: lease.annotations.get(ANNOTATION_REPORT, "") for name, lease in leases(cluster).items()}
            return found if all(found.get(job) for job in logs) else {}

        texts = wait_until(reports, what="three reports")
        for number, job in enumerate(logs):
            report = parse_report(texts[job])
            assert (report.token, report.outcome) == (number + 5, ReportOutcome.SUCCEEDED)
            assert report.receipt is not None
            assert report.receipt.worker == WORKER
        assert process.wait(60) == WorkerExit.IDLE
    assert WORKER not in leases(cluster)
    assert {job: content(log) for job, log in logs.items()} == before
    assert [path.name for path in tmp_path.glob("compactor-spark-*")] == []
    text = (tmp_path / "worker.log").read_text()
    assert "Traceback" not in text
    assert f"policy={namespace}/policy" in text


@pytest.mark.parametrize(
    ("event", "code"),
    [("SIGTERM", WorkerExit.TERMINATED), ("lease deleted", WorkerExit.LEASE_GONE), ("SIGKILL", -signal.SIGKILL)],
)
def test_worker_that_has_to_end_takes_its_processes_along(
    control_plane: Any, cluster: Callable[..., str], namespace: str, tmp_path: Path, event: str, code: int
) -> None:
    with worker(control_plane.kubeconfig, namespace, tmp_path) as process:
        wait_until(lambda: WORKER in leases(cluster), what="the worker's Lease")
        family = descendants(process.pid)
        assert family
        if event == "lease deleted":
            cluster("delete", "lease", WORKER)
        else:
            process.send_signal(signal.Signals[event])
        assert process.wait(60) == code
        assert still_alive(family, seconds=60) == []
    assert (WORKER in leases(cluster)) is (event == "SIGKILL")


def test_worker_of_a_policy_that_is_gone_says_so(
    control_plane: Any, cluster: Callable[..., str], namespace: str, tmp_path: Path
) -> None:
    with worker(control_plane.kubeconfig, namespace, tmp_path, policy="other") as process:
        assert process.wait(120) == 1
    assert f"policy {namespace}/other does not exist" in (tmp_path / "worker.log").read_text()
