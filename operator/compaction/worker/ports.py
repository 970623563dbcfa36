"""Ports of the worker, as narrow Protocols: coordinator, engine of its tasks, progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from compaction.api.job.job import CompactionJobSpec
from compaction.api.job.job_status import JobReport, ResourceUsage
from compaction.storage.secrets import Secrets

# The port of a rewrite to the engine that runs its tasks: Spark (spark/session.py), or a thread pool in tests.

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TasksUsage:
    """CPU time, memory and bytes of the tasks of an attempt, in executors; `driver_seconds`: the CPU time of handing
    them out and of taking their results. `peak_bytes`: of the process of a task that had most, `heap_peak_bytes`: of an
    executor's JVM.
    """

    tasks: int = 0
    cpu_seconds: float = 0.0
    driver_seconds: float = 0.0
    peak_bytes: int | None = None
    heap_peak_bytes: int | None = None
    bytes_read: int = 0
    bytes_written: int = 0


class Engine(Protocol):
    """Runs independent tasks, each identified by a tag: that of the attempt it belongs to, alone or with a part of its
    own behind a slash.
    """

    @property
    def parallelism(self) -> int:
        """The number of tasks that can run at the same time, at least 1."""

    @property
    def address(self) -> str:
        """Host name or address at which tasks reach this process."""

    def submit(self, work: Callable[[Task], Result], task: Task, *, tag: str) -> Future[Result]:
        """Run `work(task)` somewhere. `work` is importable by name, `task` and the result can be pickled.

        The future raises TaskCancelledError after `cancel(tag)`, EngineLostError when the engine is gone, and
        TaskFailedError when the task itself raised or its process died (ExecutorsOutOfMemoryError: for want of memory).
        """

    def cancel(self, tag: str) -> None:
        """Stop all tasks with this tag, running or not yet begun, and wait until none is left."""


class Meter(Protocol):
    """An engine that knows what its tasks use."""

    def usage(self, tag: str) -> TasksUsage | None:
        """Return what the tasks of the attempt with this tag have used, once they are over; it is forgotten then. None
        when a task of them could not say.
        """

    @property
    def driver_peak_bytes(self) -> int | None:
        """The most memory that the driver has had since its start; None when the system does not say."""


# Progress of a job, by bytes of the sources that are settled (committed or given up).


class JobProgress:
    """Counts settled bytes of a known total and tells a listener the percent. Thread safe.

    At most 99: that a job is done is only said by its receipt.
    """

    def __init__(self, total_bytes: int, tell: Callable[[int], None]) -> None:
        self._total = max(1, total_bytes)
        self._tell = tell
        self._done = 0.0
        self._lock = threading.Lock()

    @property
    def percent(self) -> int:
        """0 to 99."""
        return min(99, int(self._done * 100 / self._total))

    def add(self, done_bytes: float) -> None:
        """So many bytes more are settled."""
        with self._lock:
            self._done += done_bytes
            self._tell(self.percent)


# Ports of the worker to the outside, as narrow Protocols.
#
# The loop, the heartbeat and the rewrite know nothing of Kubernetes: they see assignments, leases and reports through
# these ports. `kube/assignments.py` implements them on Lease objects; the tests implement them in memory.
#
# Invariants every implementation keeps:
#
# * A call either took effect and returns, or raises. `PortUnavailableError` means *unknown*: the write may have
#   happened (a reply can be lost), so every call may be repeated.
# * A job's lease is only ever touched with the token it was assigned with. Another holder, another token or a missing
#   lease is `LeaseLostError`, at once and for good.


@dataclass(frozen=True, slots=True)
class JobOffer:
    """A job lease that names this worker as its holder."""

    job_name: str
    token: int
    lease_seconds: float
    bytes_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt of one job: what to do (`spec`), the fencing token it must be committed with, and how many bytes per
    second all of its tasks together may read and write at first (None: as many as they can, to the end).
    """

    job_name: str
    namespace: str
    token: int
    lease_seconds: float
    spec: CompactionJobSpec
    bytes_per_second: int | None = None


class LeasePort(Protocol):
    """The worker's side of the lease protocol. Asynchronous: it lives on the heartbeat's own event loop."""

    async def announce(self, *, slots: int) -> None:
        """Create the worker's own lease: from now on jobs may be assigned to it. Repeating is harmless."""

    async def renew_worker(self, *, slots: int) -> None:
        """Renew the worker's own lease and the number of jobs it is ready to hold (0 = it is leaving).

        Raises:
            WorkerLeaseGoneError: the lease was deleted, or belongs to another holder.
            StopRequestedError: the coordinator asks this worker to stop.
            PortUnavailableError: no answer, or none that says anything.
        """

    async def leave(self) -> None:
        """Delete the worker's own lease. Repeating is harmless."""

    async def offers(self, *, wait: bool) -> Sequence[JobOffer]:
        """All job leases that name this worker. With `wait`: once something changed since the last call, or a poll is
        due (at once on the first call); without: now.

        Raises:
            PortUnavailableError: as above.
        """

    async def fetch(self, offer: JobOffer) -> Assignment:
        """Read the job of an offer.

        Raises:
            LeaseLostError: the job is gone.
            InvalidAssignmentError: the job cannot be understood by this worker.
            PortUnavailableError: as above.
        """

    async def renew_job(self, job_name: str, token: int, *, progress: int) -> int | None:
        """Renew a job's lease and say how far the job is (percent). Returns the bytes per second that the lease grants
        by now; None when it names none.

        Raises:
            LeaseLostError: other holder, other token, or no lease.
            PortUnavailableError: as above.
        """

    async def report(self, job_name: str, report: JobReport) -> None:
        """Leave the last word about an attempt on its lease. Repeating the same report is harmless.

        Raises:
            LeaseLostError, PortUnavailableError: as for `renew_job`.
        """


class HeldLease(Protocol):
    """The view that a running job has of its lease (thread safe, never blocks)."""

    @property
    def token(self) -> int:
        """The fencing token of this attempt."""

    @property
    def bytes_per_second(self) -> int | None:
        """The rate that all tasks of the job together may read and write with now; a renewal may raise it. None: no
        limit, ever.
        """

    def should_stop(self) -> bool:
        """True when the lease is lost, its deadline has passed unrenewed, or the worker is asked to stop."""

    def ensure_held(self) -> None:
        """Called just before a commit.

        Raises:
            LeaseLostError: the lease is lost, or can no longer be assumed.
            JobStoppedError: the worker is asked to stop.
        """

    def set_progress(self, percent: int) -> None:
        """Record how far the job is (0 to 100); travels with the next renewal."""

    def note_usage(self, usage: ResourceUsage) -> None:
        """Record what the attempt has used; travels with its report."""


class JobRunner(Protocol):
    """Runs one assignment to its end."""

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """Do the job and return the report, also for data errors and for an attempt that the store has fenced off.

        Raises:
            InvalidAssignmentError: the job makes no sense to this worker.
            LeaseLostError: stopped before a commit because the lease is lost.
            JobStoppedError: stopped before a commit because the worker was asked to stop.
            EngineLostError: the engine under the worker (Spark) is gone; the worker cannot go on.
            ExecutorsOutOfMemoryError: the executors have too little memory for it; the worker cannot go on either.
        """


class OpenRewriter(Protocol):
    """A door of `Doors.rewriters`: the runner of one type of job."""

    def __call__(self, engine: Engine, *, holder: str, secrets: Secrets) -> JobRunner:
        """The runner. `holder`: name of the worker, as it appears in receipts and locks."""
