"""A worker is killed in the middle of a job, as a machine that loses its power.

It is stopped (SIGSTOP) first and inspected then, so that it is certain that it had a job at the moment of its death.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob
from compaction.local.demo.cluster import DemoCluster, DemoObservation
from compaction.local.demo.replicas import leftover_workers
from compaction.local.processes.process import wait_gone

GONE_SECONDS: Final = 10.0
AFTER_JOBS: Final = 4
"""Jobs that have succeeded before, so that one has seen how it goes without."""


@dataclass
class Accident:
    """`worker` is the one that was killed (empty before), `jobs` the tokens of what it was at."""

    cluster: DemoCluster
    operator: Path
    worker: str = ""
    jobs: dict[str, int] = field(default_factory=dict)

    def happen(self, seen: DemoObservation) -> bool:
        """Kill a worker that has a job, once there was something to see. True when it has just happened."""
        succeeded = sum(job.status.state is JobState.SUCCEEDED for job in seen.jobs)
        if self.worker or succeeded < AFTER_JOBS:
            return False
        for worker in leftover_workers(self.operator):
            worker.send(signal.SIGSTOP, group=True)
            jobs = _in_progress(self.cluster.look(), worker.name)
            if jobs:
                worker.send(signal.SIGKILL, group=True)
                wait_gone(worker, timeout=GONE_SECONDS)
                self.worker = worker.name
                self.jobs = {job.metadata.name: job.status.fencing_token for job in jobs}
                return True
            worker.send(signal.SIGCONT, group=True)
        return False

    def replaced(self, seen: DemoObservation) -> bool:
        """Whether another worker has taken its place, and has got a job done."""
        workers = {job.status.receipt.worker for job in seen.jobs if job.status.receipt is not None}
        return bool(self.worker) and bool(workers - {self.worker})

    def survived(self, seen: DemoObservation) -> tuple[str, ...]:
        """Those of its jobs that succeeded later, with a larger token."""
        return tuple(
            job.metadata.name
            for job in seen.jobs
            if job.metadata.name in self.jobs
            and job.status.state is JobState.SUCCEEDED
            and job.status.fencing_token > self.jobs[job.metadata.name]
        )


def _in_progress(seen: DemoObservation, worker: str) -> list[CompactionJob]:
    return [job for job in seen.jobs if job.status.state is JobState.IN_PROGRESS and job.status.worker == worker]
