"""The one worker of a local watch: an engine, started when there is work, and a thread per job that runs on it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from compaction.api.job.report import JobReport
from compaction.local.run.attempt import LocalLease, attempt
from compaction.rewrite.ports import Assignment, JobRunner


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt is over: its report, or the error that left none."""

    job: str
    outcome: Future[JobReport]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt is, in percent."""

    job: str
    token: int
    percent: int


Inbox = queue.SimpleQueue[Ended | Progress | None]
"""Where threads leave what happened; None only wakes the reader."""


class Crew:
    """Belongs to one thread; what happens in the others comes through `inbox`. `stop` ends attempts before their next
    commit.
    """

    def __init__(self, inbox: Inbox, stop: threading.Event) -> None:
        self._inbox = inbox
        self._stop = stop
        self._engine = ExitStack()
        self._runner: JobRunner | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._needed_at = 0.0

    def hire(self, open_runner: Callable[[], AbstractContextManager[JobRunner]], *, slots: int) -> None:
        """Start the engine. Raises what `open_runner` raises."""
        self._runner = self._engine.enter_context(open_runner())
        self._pool = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="job")
        self.note_need()

    def dismiss(self) -> None:
        """Close the engine; attempts that still run end first. Repeating is harmless."""
        if self._pool is not None:
            self._pool.shutdown()
        self._runner = self._pool = None
        self._engine.close()

    def start(self, assignment: Assignment, *, policy: str) -> None:
        """Begin an attempt."""
        runner, pool, inbox = self._runner, self._pool, self._inbox
        assert runner is not None, "jobs are assigned to a worker that has announced itself"
        assert pool is not None, "the worker's threads live as long as its engine"
        name, token = assignment.job_name, assignment.token
        lease = LocalLease(name, token, self._stop, lambda percent: inbox.put(Progress(name, token, percent)))
        future = pool.submit(attempt, runner, assignment, lease, policy=policy)
        future.add_done_callback(lambda done: inbox.put(Ended(name, done)))

    def note_need(self) -> None:
        """There is work now."""
        self._needed_at = time.monotonic()

    def idle_seconds(self) -> float:
        """Seconds since there was work."""
        return time.monotonic() - self._needed_at
