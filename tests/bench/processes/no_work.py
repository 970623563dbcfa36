"""Processes of the control-plane benchmark: the real operator and the real worker loop, whose rewrite does nothing.

    python no_work.py operator KUBECONFIG NAMESPACE STATE_DIR
    python no_work.py worker <the arguments of compactor worker>

The operator starts workers as it always does; only their command is this one. A worker takes jobs, renews and reports
as in earnest; in place of a rewrite it removes the log's snapshot, after which the log has nothing to gain any more.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import sys
from pathlib import Path

from compaction.api.enums import JobReason
from compaction.api.job.job import JobReceipt
from compaction.api.job.job_status import JobReport, ReportOutcome
from compaction.kube.assignments import WorkerIdentity, lease_port
from compaction.kube.client.config import load_connection
from compaction.kube.controller import PolicyController
from compaction.kube.launchers.base import WorkerRequest
from compaction.kube.launchers.process import ProcessLauncher, worker_command
from compaction.kube.replica.operator import OperatorConfig, run_operator
from compaction.segments.snapshot.directories import SNAPSHOTS
from compaction.worker.attempt import Inbox
from compaction.worker.keeper import Heartbeat
from compaction.worker.loop import Worker
from compaction.worker.ports import Assignment, HeldLease


def operator(kubeconfig: Path, namespace: str, state_dir: Path) -> int:
    """One replica, as `compactor operator` runs it."""
    config = OperatorConfig(
        namespace=namespace, state_dir=state_dir, kubeconfig=kubeconfig, metrics_port=0, health_port=0, log_level=30
    )
    environment = {"KUBECONFIG": str(kubeconfig)}
    profile = os.environ.get("NO_WORK_PROFILE")
    if profile:
        import cProfile

        profiler = cProfile.Profile()
        profiler.enable()
    try:
        return run_operator(
            config,
            make_controller=PolicyController,
            make_launcher=lambda _client: ProcessLauncher(state_dir, environment=environment, command=_command),
        )
    finally:
        if profile:
            profiler.dump_stats(profile)


def _command(request: WorkerRequest) -> list[str]:
    real = worker_command(request)
    return [sys.executable, __file__, "worker", *real[real.index("worker") + 1 :]]


class NoWork:
    """Implements `worker.ports.JobRunner`."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        source = assignment.spec.sources.segment_log
        assert source is not None
        shutil.rmtree(Path(source.path) / SNAPSHOTS)
        receipt = JobReceipt(token=assignment.token, worker=self._worker, groups=len(source.groups), bytes_reclaimed=1)
        return JobReport(
            token=assignment.token,
            outcome=ReportOutcome.SUCCEEDED,
            reason=JobReason.COMPLETED,
            message="nothing was done",
            receipt=receipt,
        )


def worker(arguments: list[str]) -> int:
    """The main loop of `compactor worker` without Spark."""
    parser = argparse.ArgumentParser()
    for name in ("--namespace", "--policy", "--name", "--master", "--conf"):
        parser.add_argument(name)
    for name in ("--slots", "--lease-seconds"):
        parser.add_argument(name, type=int)
    parser.add_argument("--idle-seconds", type=float)
    options = parser.parse_args(arguments)
    identity = WorkerIdentity(options.name, options.namespace, options.policy, options.lease_seconds)
    inbox: Inbox = queue.SimpleQueue()
    connect = lease_port(load_connection(None, namespace=options.namespace), identity)
    return Worker(
        heartbeat=Heartbeat(connect, inbox=inbox, slots=options.slots, lease_seconds=options.lease_seconds),
        inbox=inbox,
        runner=NoWork(options.name),
        slots=options.slots,
        idle_seconds=options.idle_seconds,
    ).run()


if __name__ == "__main__":
    if sys.argv[1] == "operator":
        sys.exit(operator(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4])))
    sys.exit(worker(sys.argv[2:]))
