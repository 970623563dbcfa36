"""The one worker of a local run: an engine, started when there is work, and a thread per job that runs on it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from compaction.api.enums import JobReason
from compaction.api.job.job_status import JobReport, ReportOutcome, ResourceUsage
from compaction.api.text.printing import plural
from compaction.core.reconcile.actions import LaunchWorker, StopWorker
from compaction.errors import CompactionError, InvalidAssignmentError, StaleTokenError
from compaction.kube.errors import LaunchError
from compaction.worker.errors import EngineLostError, JobStoppedError, TaskCancelledError
from compaction.worker.ports import Assignment, JobRunner

# One attempt of a job in this process, in a thread of its own.

log = structlog.get_logger(__name__)


class LocalLease:
    """No other process can take a job from this one; implements `ports.HeldLease`. `stop` ends it before its next
    commit; the coordinator raises `bytes_per_second`.
    """

    def __init__(self, assignment: Assignment, stop: threading.Event, progress: Callable[[int], None]) -> None:
        self._job = assignment.job_name
        self._stop = stop
        self._progress = progress
        self.token = assignment.token
        self.bytes_per_second = assignment.bytes_per_second
        self.usage: ResourceUsage | None = None

    def should_stop(self) -> bool:
        """See `ports.HeldLease`."""
        return self._stop.is_set()

    def ensure_held(self) -> None:
        """See `ports.HeldLease`."""
        if self._stop.is_set():
            raise JobStoppedError(f"job {self._job}: interrupted before its next commit")

    def set_progress(self, percent: int) -> None:
        """See `ports.HeldLease`."""
        self._progress(percent)

    def note_usage(self, usage: ResourceUsage) -> None:
        """See `ports.HeldLease`."""
        self.usage = usage


def attempt(runner: JobRunner, assignment: Assignment, lease: LocalLease, *, policy: str) -> JobReport:
    """Run the job and report, as a worker would.

    Raises:
        JobStoppedError, EngineLostError: it was stopped, or Spark went away; nothing can be reported.
    """
    return _outcome(runner, assignment, lease, policy=policy).model_copy(update={"usage": lease.usage})


def _outcome(runner: JobRunner, assignment: Assignment, lease: LocalLease, *, policy: str) -> JobReport:
    token, name = assignment.token, assignment.job_name
    with structlog.contextvars.bound_contextvars(policy=policy, job=name, token=token):
        try:
            return runner.run(assignment, lease)
        except StaleTokenError as error:
            return _failed(token, JobReason.STALE_TOKEN, error)
        except InvalidAssignmentError as error:
            return _failed(token, JobReason.INVALID_JOB, error)
        except (JobStoppedError, EngineLostError):
            raise
        except Exception as error:
            log.exception("job failed unexpectedly")
            return _failed(token, JobReason.INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _failed(token: int, reason: str, why: object) -> JobReport:
    return JobReport(token=token, outcome=ReportOutcome.FAILED, reason=reason, message=str(why))


# An engine of threads in this process, for work that is over before Spark would have started.

Task = TypeVar("Task")
Result = TypeVar("Result")


class ThreadEngine:
    """Implements `worker.ports.Engine`, but for two things that only processes can do: a task that runs cannot be
    stopped, so `cancel` waits for its end; and what it raises is raised as it is.
    """

    def __init__(self, parallelism: int) -> None:
        self.address = "127.0.0.1"
        self._parallelism = parallelism
        self._pool = ThreadPoolExecutor(parallelism, thread_name_prefix="task")
        self._lock = threading.Lock()
        self._running: dict[str, set[Future[Any]]] = {}
        self._cancelled: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Nobody waits for the end of what an interrupt has ended.
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    @property
    def parallelism(self) -> int:
        """See `Engine`."""
        return self._parallelism

    def submit(self, work: Callable[[Task], Result], task: Task, *, tag: str) -> Future[Result]:
        """See `Engine`."""

        def run() -> Result:
            if tag in self._cancelled:
                raise TaskCancelledError(tag)
            return work(task)

        with self._lock:
            future = self._pool.submit(run)
            self._running.setdefault(tag, set()).add(future)
        future.add_done_callback(lambda done: self._forget(tag, done))
        return future

    def cancel(self, tag: str) -> None:
        """See `Engine`. The tag belongs to an attempt that is over, so nothing is submitted under it any more."""
        with self._lock:
            self._cancelled.add(tag)
            running = set(self._running.get(tag, ()))
        wait(running)

    def _forget(self, tag: str, future: Future[Any]) -> None:
        with self._lock:
            left = self._running.get(tag, set())
            left.discard(future)
            if not left:
                self._running.pop(tag, None)


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over: its report, or the error that left none."""

    job: str
    outcome: Future[JobReport]


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """The progress of an attempt, in percent."""

    job: str
    token: int
    percent: int


Inbox = queue.SimpleQueue[AttemptEnded | AttemptProgress | None]
"""Where threads leave what happened; None only wakes the reader."""


@dataclass(frozen=True, slots=True)
class LocalWorker:
    """The worker, as launcher and Lease would show it. `ended` says why it is gone; `started`: monotonic seconds."""

    name: str
    slots: int
    started: float
    ended: str = ""


class LocalWorkers:
    """Implements `kube.executor.executor.Workers`. Belongs to one thread; what the others do comes through `inbox`.
    `failure` is why the engine did not start the last time, or is gone.

    Args:
        slots: how many jobs run at a time, as the policy says now.
        open_runner: starts the engine.
        stop: ends attempts before their next commit.
    """

    def __init__(
        self,
        inbox: Inbox,
        stop: threading.Event,
        *,
        slots: Callable[[], int],
        open_runner: Callable[[], AbstractContextManager[JobRunner]],
    ) -> None:
        self.worker: LocalWorker | None = None
        self.failure: CompactionError | None = None
        self._inbox = inbox
        self._stop = stop
        self._slots = slots
        self._open_runner = open_runner
        self._engine = ExitStack()
        self._runner: JobRunner | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._needed_at = 0.0

    async def launch(self, action: LaunchWorker) -> str:
        """See `Workers`: starts the engine."""
        slots = self._slots()
        try:
            self._runner = self._engine.enter_context(self._open_runner())
        except CompactionError as error:
            self.failure = error
            raise LaunchError(str(error)) from error
        self.failure = None
        self._pool = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="job")
        # All threads now: the end would not wait for one in whose start an interrupt came.
        started = threading.Barrier(slots)
        wait([self._pool.submit(started.wait) for _ in range(slots)])
        self.worker = LocalWorker(action.name, slots, started=time.monotonic())
        self.note_need()
        return f"Spark is up, for {plural(slots, 'job')} at a time"

    def stop(self, action: StopWorker) -> None:
        """See `Workers`."""
        self.close()

    async def forget(self, name: str) -> None:
        """See `Workers`."""
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """Close the engine, because of an error or not; attempts that still run end first. Repeating is harmless."""
        if self._pool is not None:
            self._pool.shutdown()
        self._runner = self._pool = self.worker = None
        self._engine.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

    def start(self, assignment: Assignment, *, policy: str) -> LocalLease:
        """Begin an attempt; what it holds."""
        runner, pool, inbox = self._runner, self._pool, self._inbox
        assert runner is not None, "jobs are assigned to a worker that has announced itself"
        assert pool is not None, "the worker's threads live as long as its engine"
        name, token = assignment.job_name, assignment.token
        lease = LocalLease(assignment, self._stop, lambda percent: inbox.put(AttemptProgress(name, token, percent)))
        future = pool.submit(attempt, runner, assignment, lease, policy=policy)
        future.add_done_callback(lambda done: inbox.put(AttemptEnded(name, done)))
        return lease

    def note_end(self, error: EngineLostError) -> None:
        """The engine is gone by itself."""
        self.failure = error
        if self.worker is not None:
            self.worker = replace(self.worker, ended=str(error) or "Spark went away")

    def note_need(self) -> None:
        """There is work now."""
        self._needed_at = time.monotonic()

    def idle_seconds(self) -> float:
        """Seconds since there was work."""
        return time.monotonic() - self._needed_at
