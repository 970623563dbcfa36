"""The one worker of a local run: an engine, started when there is work, and a thread per job that runs on it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from compaction.api.job.report import JobReport
from compaction.api.text.formatting import plural
from compaction.core.reconcile.actions import LaunchWorker, StopWorker
from compaction.errors import CompactionError
from compaction.kube.errors import LaunchError
from compaction.local.run.attempt import LocalLease, attempt
from compaction.worker.errors import EngineLostError
from compaction.worker.ports import Assignment, JobRunner


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over: its report, or the error that left none."""

    job: str
    outcome: Future[JobReport]


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """How far an attempt is, in percent."""

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
    """Implements `kube.executor.ports.Workers`. Belongs to one thread; what the others do comes through `inbox`.
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
