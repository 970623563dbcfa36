"""One attempt at one job: its lease, its events, its bytes per second, and the runner of its kind."""

from __future__ import annotations

import queue
import secrets
import socket
import socketserver
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import ClassVar, Final
from weakref import WeakKeyDictionary

from compaction.api.job.job_status import JobReport, ResourceUsage
from compaction.errors import CompactionError
from compaction.registry import kind_of_job
from compaction.storage.pace import MovedBytes, TokenBucket, counting_bytes
from compaction.storage.secrets import Secrets
from compaction.worker.errors import JobStoppedError, LeaseLostError, RateBudgetError
from compaction.worker.ports import Assignment, Engine, HeldLease, Meter, OpenRewriter, TasksUsage

# The runner of a job: the worker's side of a kind, found by the type of the job.


@dataclass(frozen=True, eq=False, repr=False)
class Rewriter(ABC):
    """Implements `ports.JobRunner`, with the parts of a worker that runners use.

    Args:
        engine: runs the tasks.
        holder: name of this worker, as it appears in receipts and locks.
        secrets: those of the policy's namespace.
    """

    engine: Engine
    _: KW_ONLY
    holder: str
    secrets: Secrets

    @abstractmethod
    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RunnerOfAllKinds(Rewriter):
    """Hands each job to the runner of its type, which is loaded with its first job. `meter`: the engine, where it knows
    what tasks use.
    """

    meter: Meter | None = None

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `ports.JobRunner`."""
        job_type = assignment.spec.kind
        opened: OpenRewriter = kind_of_job(job_type).doors.rewriters[job_type].open()
        runner = opened(self.engine, holder=self.holder, secrets=self.secrets)
        if self.meter is None:
            return runner.run(assignment, lease)
        with metering(self.meter, lease, tag=attempt_tag(assignment.job_name, assignment.token)):
            return runner.run(assignment, lease)


def attempt_tag(job: str, token: int) -> str:
    """Names an attempt, and its tasks in the engine."""
    return f"{job}.{token}"


# The usage of an attempt: of its tasks, and of its part of the driver.


@contextmanager
def metering(meter: Meter, lease: HeldLease, *, tag: str) -> Iterator[None]:
    """Measure an attempt, however it ends: what it used is noted at its lease, and travels with its report. All that
    the attempt does in the driver it does in the calling thread, or in tasks.
    """
    began = time.thread_time()
    with counting_bytes() as moved:
        try:
            yield
        finally:
            seconds = time.thread_time() - began
            lease.note_usage(_usage(meter.usage(tag), seconds, moved, meter.driver_peak_bytes))


def _usage(tasks: TasksUsage | None, seconds: float, moved: MovedBytes, peak: int | None) -> ResourceUsage:
    if tasks is None:
        return ResourceUsage(driver_cpu_seconds=round(seconds, 3), driver_peak_bytes=peak)
    return ResourceUsage(
        driver_cpu_seconds=round(seconds + tasks.driver_seconds, 3),
        executor_cpu_seconds=round(tasks.cpu_seconds, 3),
        driver_peak_bytes=peak,
        executor_peak_bytes=tasks.peak_bytes,
        executor_heap_peak_bytes=tasks.heap_peak_bytes,
        bytes_read=tasks.bytes_read + moved.read,
        bytes_written=tasks.bytes_written + moved.written,
    )


# A job's lease as the worker knows it: held, lost, or to be given up.
#
# The worker never compares wall clocks with anyone. A renewal counts from the moment its request was *sent*, on the
# local monotonic clock: the coordinator cannot have started its own measurement earlier
# (docs/design/leases-and-tokens.md#expiry). The deadline is judged when it is asked for, so a process that was
# stopped for an hour finds its lease lost before anything else had time to tell it.

Clock = Callable[[], float]


class HeldJobLease:
    """One held job lease; implements `ports.HeldLease`. Thread safe; nothing here blocks or talks to the network."""

    def __init__(self, assignment: Assignment, *, sent_at: float, clock: Clock) -> None:
        self.assignment = assignment
        self._clock = clock
        self._lock = threading.Lock()
        self._sent_at = sent_at
        self._lost: str | None = None
        self._stop: str | None = None
        self._progress = 0
        self._granted = assignment.bytes_per_second
        self._taken = False
        self.usage: ResourceUsage | None = None

    def __repr__(self) -> str:
        return f"JobLease({self.job_name} token {self.token})"

    @property
    def job_name(self) -> str:
        """Name of the job and of its Lease."""
        return self.assignment.job_name

    @property
    def token(self) -> int:
        """The fencing token of this attempt."""
        return self.assignment.token

    @property
    def progress(self) -> int:
        """Percent, as last set by the job."""
        return self._progress

    @property
    def bytes_per_second(self) -> int | None:
        """See `ports.HeldLease`."""
        return self._granted

    @property
    def taken(self) -> bool:
        """True when another worker is known to hold the lease now (or it is gone): no report is expected."""
        return self._taken

    @property
    def why_lost(self) -> str | None:
        """The reason for which the lease counts as lost, or None while it is held."""
        with self._lock:
            if self._lost is None and self._clock() >= self._sent_at + self.assignment.lease_seconds:
                # Latched: an attempt that once had to assume the worst never goes on, even if a late renewal succeeds.
                self._lost = f"not renewed for {self.assignment.lease_seconds:g} s"
            return self._lost

    def renewed(self, *, sent_at: float, granted: int | None = None) -> None:
        """A renewal sent at `sent_at` (monotonic seconds) succeeded; it found so many bytes per second granted."""
        with self._lock:
            self._sent_at = max(self._sent_at, sent_at)
            # A job that began without a limit has no budget; a Lease that names no share (any more) changes nothing.
            if self._granted is not None and granted is not None:
                self._granted = granted

    def lose(self, why: str) -> None:
        """The lease is known to be lost, for good."""
        with self._lock:
            self._lost = self._lost or why
            self._taken = True

    def request_stop(self, why: str) -> None:
        """Ask the job to stop before its next commit; the lease itself stays held, so that it can still report."""
        with self._lock:
            self._stop = self._stop or why

    def should_stop(self) -> bool:
        """See `ports.HeldLease`."""
        return self._stop is not None or self.why_lost is not None

    def ensure_held(self) -> None:
        """See `ports.HeldLease`."""
        if (why := self.why_lost) is not None:
            raise LeaseLostError(f"job {self.job_name}, token {self.token}: lease lost: {why}")
        if self._stop is not None:
            raise JobStoppedError(f"job {self.job_name}, token {self.token}: stopped: {self._stop}")

    def set_progress(self, percent: int) -> None:
        """See `ports.HeldLease`. Never goes backwards."""
        self._progress = max(self._progress, min(100, max(0, percent)))

    def note_usage(self, usage: ResourceUsage) -> None:
        """See `ports.HeldLease`."""
        self.usage = usage


# Events that a worker reacts to: one queue, three kinds of them.


class EndReason(StrEnum):
    """The reason for which the worker cannot or should not go on."""

    STOP_REQUESTED = "StopRequested"
    LEASE_GONE = "LeaseGone"
    UNREACHABLE = "Unreachable"
    HEARTBEAT_LOST = "HeartbeatLost"
    ENGINE_LOST = "EngineLost"
    EXECUTORS_OUT_OF_MEMORY = "ExecutorsOutOfMemory"
    TERMINATED = "Terminated"


@dataclass(frozen=True, slots=True)
class JobAssigned:
    """A job was assigned to this worker and its lease is renewed already."""

    lease: HeldJobLease


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The worker has to end."""

    reason: EndReason


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """A job's thread is done (reported or not)."""

    lease: HeldJobLease


Inbox = queue.SimpleQueue[JobAssigned | JobEnded | AttemptFinished]
"""What the worker reacts to. A SimpleQueue, because a signal handler may put into it."""


# The bytes per second of all jobs that run in a worker, spent by whichever tasks run.
#
# A share cut for each task is lost while its task waits for a core, is behind the others or works without reading;
# two jobs on two cores left half of a limit unused. So the tasks of all attempts on an engine pay from one bucket, in
# the driver: its rate is what the running attempts are granted together now (a renewal of a lease may raise that). A
# task asks over the network, for a twentieth of a second at least, and waits by itself.
#
# Invariants (tests/worker/test_tasks.py): what was allowed never exceeds the rate times the time, and while any
# task asks, nothing of the rate is left unused.

_QUESTION: Final = struct.Struct("!32sQ")
"""The secret of an attempt, and bytes."""
_ANSWER: Final = struct.Struct("!d")
"""Seconds to wait; below 0 when the attempt is over."""
_STEP: Final = 0.05
"""Seconds of a job's first share that a task asks for at once: 20 questions a second at most, however small the reads,
and more in proportion once the share was raised.
"""
_PATIENCE: Final = 10.0


Granted = Callable[[], int | None]
"""The bytes per second that an attempt may move now; asked at each question. None at its start: no limit."""


@dataclass(frozen=True, slots=True)
class BudgetClient:
    """A task's access to the budget of its worker; pickled with the task. Implements `storage.pace.SharedBucket`."""

    address: tuple[str, int]
    secret: bytes
    step: int

    def take(self, count: int) -> float | None:
        """See `SharedBucket`. Raises RateBudgetError."""
        try:
            with socket.create_connection(self.address, timeout=_PATIENCE) as connection:
                connection.sendall(_QUESTION.pack(self.secret, count))
                with connection.makefile("rb") as answer:
                    (wait,) = _ANSWER.unpack(answer.read(_ANSWER.size))
        except (OSError, struct.error) as error:
            # The task fails instead of going on: bytes that are not counted would break the limit of all attempts
            # together.
            raise RateBudgetError(*self.address, error) from error
        return float(wait) if wait >= 0 else None


class RateBudget:
    """The bucket of one engine. It listens while an attempt with a limit runs. `clock`: seconds; by default that of
    `time` when this is made (the simulator has its own).
    """

    def __init__(self, host: str, *, clock: Callable[[], float] | None = None) -> None:
        self._host = host
        self._clock = clock or time.monotonic
        self._lock = threading.Lock()
        self._granted: dict[bytes, Granted] = {}
        self._bucket = TokenBucket(1, self._clock())
        self._server: _Server | None = None

    @contextmanager
    def joined(self, granted: Granted) -> Iterator[BudgetClient | None]:
        """Open the budget that the tasks of an attempt ask; None without a limit. Raises RateBudgetError."""
        rate = granted()
        if rate is None:
            yield None
            return
        secret = secrets.token_hex(16).encode()
        client = BudgetClient(self._join(secret, granted), secret, max(1, int(rate * _STEP)))
        try:
            yield client
        finally:
            self._leave(secret)

    def wait_for(self, secret: bytes, count: int) -> float:
        """Seconds until so many bytes more may pass; -1 for what is no attempt that runs."""
        with self._lock:
            if not any(secrets.compare_digest(secret, known) for known in self._granted):
                return -1.0
            self._at_rate()
            self._bucket, wait = self._bucket.take(count, now=self._clock())
            return wait

    def _join(self, secret: bytes, granted: Granted) -> tuple[str, int]:
        with self._lock:
            if self._server is None:
                self._server = self._listen()
            self._granted[secret] = granted
            self._at_rate()
            return self._host, self._server.port

    def _listen(self) -> _Server:
        try:
            return _Server(self._host, self)
        except OSError as error:
            raise RateBudgetError(self._host, 0, error) from error

    def _leave(self, secret: bytes) -> None:
        with self._lock:
            del self._granted[secret]
            self._at_rate()
            server = self._server if not self._granted else None
            if server is not None:
                self._server = None
        if server is not None:
            server.close()

    def _at_rate(self) -> None:
        rate = max(1, sum(granted() or 0 for granted in self._granted.values()))
        if rate != self._bucket.bytes_per_second:
            self._bucket = self._bucket.at_rate(rate, now=self._clock())


class _Server:
    def __init__(self, host: str, budget: RateBudget) -> None:
        class BudgetHandler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(_PATIENCE)
                with self.request.makefile("rb") as asked:
                    question = asked.read(_QUESTION.size)
                if len(question) == _QUESTION.size:  # whatever else may arrive at a socket gets no answer
                    self.request.sendall(_ANSWER.pack(budget.wait_for(*_QUESTION.unpack(question))))

        class BudgetListener(socketserver.ThreadingTCPServer):
            address_family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away: its task fails, and says so."""

        self._listener = BudgetListener((host, 0), BudgetHandler)
        self.port = int(self._listener.server_address[1])
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.1}, name="budget", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()


_budgets: WeakKeyDictionary[Engine, RateBudget] = WeakKeyDictionary()
_budgets_lock = threading.Lock()


def budget_of(engine: Engine) -> RateBudget:
    """The one budget of an engine, whichever rewriters use it."""
    with _budgets_lock:
        if engine not in _budgets:
            _budgets[engine] = RateBudget(engine.address)
        return _budgets[engine]


# One attempt at one job, from beginning to report: what every kind of rewrite does alike.


@dataclass(slots=True, kw_only=True)
class RewriteAttempt(ABC):
    """The work of one attempt of a job, and the parts of its worker that it uses. `lease` says what the job adds to
    what all that runs in its worker may move together; `budget`: what its tasks ask for it while the attempt works,
    None without a limit.
    """

    reported: ClassVar[tuple[type[CompactionError], ...]]
    """What data and storage can cause; it ends the work and becomes a part of the report."""

    token: int
    lease: HeldLease
    engine: Engine
    budget: BudgetClient | None = field(default=None, init=False)

    @property
    def tag(self) -> str:
        """See `attempt_tag`."""
        return attempt_tag(self.job_name, self.token)

    def run(self) -> JobReport:
        """Do what can be done and say what was.

        Raises:
            LeaseLostError, JobStoppedError, EngineLostError: see `ports.JobRunner`.
        """
        try:
            with budget_of(self.engine).joined(lambda: self.lease.bytes_per_second) as self.budget:
                self._work()
        except self.reported as error:
            self._failed(error)
        finally:
            self._clean_up()
        return self._report()

    @property
    @abstractmethod
    def job_name(self) -> str:
        """Name of the job."""

    @abstractmethod
    def _work(self) -> None:
        """Everything up to the last commit; an error of the kind `reported` ends it."""

    @abstractmethod
    def _failed(self, error: CompactionError) -> None:
        """Note such an error for the report."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Remove what only this attempt has and leaves behind, however it ended."""

    @abstractmethod
    def _report(self) -> JobReport:
        """Return the report of what was done, and of the worst that went wrong."""
