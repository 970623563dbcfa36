"""What goes wrong on purpose: a worker dies in the middle of a job, as a machine that loses its power; the coordinator
dies; an object loses bytes.

A worker is stopped (SIGSTOP) first and inspected then, so that it is certain that it had a job at the moment of its
death.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob
from compaction.local.demo.cluster import DemoCluster, DemoObservation
from compaction.local.demo.replicas import Replicas, leftover_workers
from compaction.local.processes.process import wait_gone
from compaction.storage.objects.store import ObjectStorage

GONE_SECONDS: Final = 10.0
AFTER_JOBS: Final = 4
DAMAGED_BYTES: Final = 64


@dataclass
class Accident:
    """`worker` is the one that was killed (empty before), `jobs` the tokens of what it was at. `after_jobs` have
    succeeded before, so that one has seen how it goes without.
    """

    cluster: DemoCluster
    operator: Path
    after_jobs: int = AFTER_JOBS
    worker: str = ""
    jobs: dict[str, int] = field(default_factory=dict)

    def happen(self, seen: DemoObservation) -> bool:
        """Kill a worker that has a job, once there was something to see. True when it has just happened."""
        succeeded = sum(job.status.state is JobState.SUCCEEDED for job in seen.jobs)
        if self.worker or succeeded < self.after_jobs:
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


@dataclass
class Succession:
    """The coordinator is killed, and the replica that stood by leads. `killed`: its name, empty before; `at`: when."""

    replicas: Replicas
    killed: str = ""
    at: datetime | None = None

    def happen(self, seen: DemoObservation) -> bool:
        """Kill the coordinator while a job runs that it has assigned. True when it has just happened."""
        running = any(job.status.state is JobState.IN_PROGRESS for job in seen.jobs)
        leader = next((one for one in self.replicas.alive if one.name == seen.leader), None)
        if self.killed or leader is None or not running:
            return False
        leader.send(signal.SIGKILL)
        wait_gone(leader, timeout=GONE_SECONDS)
        self.killed, self.at = leader.name, datetime.now(UTC)
        return True

    def done_since(self, seen: DemoObservation) -> tuple[str, ...]:
        """Jobs that the other replica, which leads now, has created and that have succeeded."""
        if self.at is None or seen.leader in (None, self.killed):
            return ()
        return tuple(
            job.metadata.name
            for job in seen.jobs
            if job.status.state is JobState.SUCCEEDED and (job.metadata.creation_timestamp or self.at) > self.at
        )


def damage(objects: ObjectStorage, path: str) -> bytes:
    """Bytes in the first third of an object are inverted, as bad storage does it: its end still reads well. What it was
    before.
    """
    before = objects.get(path)
    data, begin = bytearray(before), len(before) // 3
    data[begin : begin + DAMAGED_BYTES] = bytes(byte ^ 0xFF for byte in data[begin : begin + DAMAGED_BYTES])
    objects.put(path, bytes(data))
    return before


def _in_progress(seen: DemoObservation, worker: str) -> list[CompactionJob]:
    return [job for job in seen.jobs if job.status.state is JobState.IN_PROGRESS and job.status.worker == worker]
