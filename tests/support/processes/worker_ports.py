"""The worker's outside world in memory: leases, an engine of threads, jobs made from a log's own plan."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compaction.api.job.job import CompactionJobSpec, JobParameters, JobSources, PolicyReference
from compaction.api.job.job_status import JobReport, ResourceUsage
from compaction.api.policy.segment_logs import SEGMENT_REWRITE, SegmentGroup, SegmentLogParameters, SegmentLogSources
from compaction.segments.commit import fence
from compaction.segments.generate import Pattern, generate_log
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.worker.errors import (
    JobStoppedError,
    LeaseLostError,
    PortUnavailableError,
    StopRequestedError,
    TaskCancelledError,
    WorkerLeaseGoneError,
)
from compaction.worker.ports import Assignment, JobOffer, LeasePort
from support.clocks import PATIENCE_SECONDS, eventually


def job_spec(directory: Path, *, limits: SegmentLimits | None = None, **changes: Any) -> CompactionJobSpec:
    """A job over everything that the log's plan offers; `changes` go to the sources."""
    limits = limits or SegmentLimits()
    log = open_log(directory)
    plan = plan_log(log, limits)
    sources: dict[str, Any] = {
        "path": str(directory),
        "snapshot_index": log.snapshot_index or 0,
        "groups": tuple(SegmentGroup(segments=group.sources) for group in plan.groups),
        "obsolete": tuple(dead.name for dead in plan.unreferenced),
    } | changes
    return CompactionJobSpec(
        policy_ref=PolicyReference(name="policy"),
        kind=SEGMENT_REWRITE,
        estimated_bytes=sum(group.live_bytes for group in plan.groups),
        sources=JobSources(segment_log=SegmentLogSources(**sources)),
        parameters=JobParameters(
            segment_log=SegmentLogParameters(
                max_entries_per_segment=limits.max_entries, max_bytes_per_segment=limits.max_bytes
            )
        ),
    )


def small_spec(path: Path = Path("/data/log")) -> CompactionJobSpec:
    """A job that no test runs for real."""
    group = SegmentGroup(segments=("0000000000000001.segment",))
    return CompactionJobSpec(
        policy_ref=PolicyReference(name="policy"),
        kind=SEGMENT_REWRITE,
        sources=JobSources(segment_log=SegmentLogSources(path=str(path), groups=(group,))),
    )


def assignment(spec: CompactionJobSpec, *, job: str = "job-1", token: int = 1, lease: float = 60.0) -> Assignment:
    return Assignment(job_name=job, namespace="default", token=token, lease_seconds=lease, spec=spec)


@dataclass
class FakeLease:
    """A lease under the test's control (`ports.HeldLease`). `lose_at`: the number of the check that finds it lost."""

    token: int = 1
    lose_at: int | None = None
    stopped: bool = False
    bytes_per_second: int | None = None
    checks: int = 0
    progress: list[int] = field(default_factory=list)
    usage: ResourceUsage | None = None

    @property
    def lost(self) -> bool:
        return self.lose_at is not None and self.checks >= self.lose_at

    def should_stop(self) -> bool:
        return self.lost or self.stopped

    def ensure_held(self) -> None:
        self.checks += 1
        if self.lost:
            raise LeaseLostError("lost by the test")
        if self.stopped:
            raise JobStoppedError("stopped by the test")

    def set_progress(self, percent: int) -> None:
        self.progress.append(percent)

    def note_usage(self, usage: ResourceUsage) -> None:
        self.usage = usage


class ThreadEngine:
    """An engine of threads: the same contract as Spark's, in one process."""

    def __init__(self, *, parallelism: int = 2) -> None:
        self.parallelism = parallelism
        self.address = "127.0.0.1"
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self._pool = ThreadPoolExecutor(parallelism * 4)
        self._futures: dict[str, list[Future[Any]]] = {}

    def submit(self, work: Callable[[Any], Any], task: Any, *, tag: str) -> Future[Any]:
        def run() -> Any:
            if tag in self.cancelled:
                raise TaskCancelledError(tag)
            return work(task)

        self.submitted.append(tag)
        future = self._pool.submit(run)
        self._futures.setdefault(tag, []).append(future)
        return future

    def cancel(self, tag: str) -> None:
        self.cancelled.append(tag)
        wait(self._futures.get(tag, []))

    def close(self) -> None:
        self._pool.shutdown()


@dataclass
class StoredLease:
    """A job's lease as the server has it."""

    holder: str
    token: int
    seconds: float
    renewals: list[float] = field(default_factory=list)
    progress: int = 0
    granted: int | None = None
    report: JobReport | None = None


class Cluster:
    """The server side, shared by the test and the worker's port. `down`: nobody gets an answer.

    `lost_replies`: names of calls that take effect once although the caller only sees an error.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, CompactionJobSpec] = {}
        self.leases: dict[str, StoredLease] = {}
        self.workers: dict[str, int] = {}
        self.stop_asked = False
        self.down = False
        self.hang = False
        self.lost_replies: list[str] = []
        self.worker_renewals: list[float] = []
        self.announced = threading.Event()
        self.looks = 0
        self.looks_before_leaving = 0
        self._changed = 0

    def assign(
        self,
        job: str,
        spec: CompactionJobSpec,
        *,
        worker: str = "w",
        token: int = 1,
        lease: float = 60,
        quietly: bool = False,
    ) -> None:
        self.jobs[job] = spec
        self.leases[job] = StoredLease(holder=worker, token=token, seconds=lease)
        if not quietly:
            self.wake()

    def wake(self) -> None:
        self._changed += 1

    def take_away(self, job: str, *, worker: str = "other", token: int | None = None) -> None:
        lease = self.leases[job]
        self.leases[job] = StoredLease(holder=worker, token=token or lease.token + 1, seconds=lease.seconds)
        self._changed += 1

    def remove(self, job: str) -> None:
        del self.leases[job]
        self._changed += 1

    def wait_for_report(self, job: str, *, seconds: float = PATIENCE_SECONDS) -> JobReport:
        report: JobReport = wait_until(lambda: self.leases[job].report, seconds=seconds, what=f"a report about {job}")
        return report

    def connect(self, worker: str = "w") -> Callable[[], AbstractAsyncContextManager[LeasePort]]:
        @asynccontextmanager
        async def open_port() -> AsyncIterator[LeasePort]:
            yield MemoryPort(self, worker)

        return open_port

    @property
    def version(self) -> int:
        return self._changed


def wait_until(condition: Callable[[], Any], *, seconds: float = PATIENCE_SECONDS, what: str = "it") -> Any:
    """`eventually`, of what changes in this process every few milliseconds."""
    return eventually(condition, what, timeout=seconds, pause=0.01)


class MemoryPort:
    """Implements `ports.LeasePort` on a Cluster."""

    def __init__(self, cluster: Cluster, worker: str) -> None:
        self._cluster = cluster
        self._worker = worker
        self._seen = -1

    async def _arrive(self) -> None:
        if self._cluster.hang:
            await asyncio.sleep(3600)
        if self._cluster.down:
            raise PortUnavailableError("the server is down")

    def _leave_call(self, call: str) -> None:
        if call in self._cluster.lost_replies:
            self._cluster.lost_replies.remove(call)
            raise PortUnavailableError(f"the reply of {call} was lost")

    async def announce(self, *, slots: int) -> None:
        await self._arrive()
        self._cluster.workers[self._worker] = slots
        self._cluster.announced.set()
        self._leave_call("announce")

    async def renew_worker(self, *, slots: int) -> None:
        await self._arrive()
        if self._worker not in self._cluster.workers:
            raise WorkerLeaseGoneError("deleted")
        self._cluster.workers[self._worker] = slots
        self._cluster.worker_renewals.append(time.monotonic())
        if self._cluster.stop_asked:
            raise StopRequestedError("stop")

    async def leave(self) -> None:
        await self._arrive()
        self._cluster.workers.pop(self._worker, None)

    async def offers(self, *, wait: bool) -> Sequence[JobOffer]:
        while wait and self._seen == self._cluster.version:  # noqa: ASYNC110 - the test changes it in another thread
            await asyncio.sleep(0.01)
        await self._arrive()
        if wait:
            self._seen = self._cluster.version
            self._cluster.looks += 1
        else:
            self._cluster.looks_before_leaving += 1
        return [
            JobOffer(name, lease.token, lease.seconds, bytes_per_second=lease.granted)
            for name, lease in self._cluster.leases.items()
            if lease.holder == self._worker and lease.report is None
        ]

    async def fetch(self, offer: JobOffer) -> Assignment:
        await self._arrive()
        if offer.job_name not in self._cluster.jobs:
            raise LeaseLostError("no such job")
        return Assignment(
            job_name=offer.job_name,
            namespace="default",
            token=offer.token,
            lease_seconds=offer.lease_seconds,
            spec=self._cluster.jobs[offer.job_name],
            bytes_per_second=offer.bytes_per_second,
        )

    def _mine(self, job: str, token: int) -> StoredLease:
        lease = self._cluster.leases.get(job)
        if lease is None or lease.holder != self._worker or lease.token != token:
            raise LeaseLostError(f"{job}: not held by {self._worker} with {token}")
        return lease

    async def renew_job(self, job_name: str, token: int, *, progress: int) -> int | None:
        await self._arrive()
        lease = self._mine(job_name, token)
        lease.renewals.append(time.monotonic())
        lease.progress = progress
        self._leave_call("renew_job")
        return lease.granted

    async def report(self, job_name: str, report: JobReport) -> None:
        await self._arrive()
        self._mine(job_name, report.token).report = report
        self._leave_call("report")


MakeLog = Callable[..., Path]


@pytest.fixture
def make_log(tmp_path: Path) -> MakeLog:
    """A small generated log; token 1 of `job-1` is claimed unless told otherwise."""

    def make(name: str = "log", *, pattern: Pattern = Pattern.RANDOM, segments: int = 10, claim: int = 1) -> Path:
        directory = tmp_path / name
        generate_log(
            directory,
            pattern=pattern,
            segments=segments,
            entries_per_segment=64,
            payload_bytes=128,
            live_fraction=0.3,
            sync=False,
        )
        if claim:
            fence.claim(directory, job="job-1", token=claim, holder="test")
        return directory

    return make


@pytest.fixture
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine()
    yield engine
    engine.close()
