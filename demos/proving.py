"""Threads that read and write beside a demo, and jobs that lost to users of the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from compaction.api.enums import JobReason, JobState
from compaction.api.job.job import CompactionJob

# Those who read and compare, and those who write, beside what the demo does, until that is over.

JOIN_SECONDS: Final = 60.0


class StoreUser(Protocol):
    """Each demo has its own. `run` returns soon after `stopped` is set; `error`: what ended it too early."""

    stopped: threading.Event

    @property
    def error(self) -> Exception | None: ...

    def run(self) -> None: ...


@contextmanager
def beside(*users: StoreUser) -> Iterator[None]:
    """Each of them runs in a thread of its own until the block is left."""
    threads = [threading.Thread(target=user.run, daemon=True) for user in users]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for user in users:
            user.stopped.set()
        for thread in threads:
            thread.join(JOIN_SECONDS)


def raise_errors(*users: StoreUser) -> None:
    """Raises what ended one of them too early."""
    for user in users:
        if user.error is not None:
            raise user.error


def repeat(write: Callable[[], object], pause: float, stopped: threading.Event) -> None:
    """Write, once each `pause` seconds, until `stopped`."""
    due = time.monotonic()
    while not stopped.is_set():
        write()
        # What a slow machine misses is not made up for.
        due = max(due + pause, time.monotonic())
        stopped.wait(due - time.monotonic())


# Jobs that lost to what the store's users do: they end for the record, and their work is planned again.


def last_reason(job: CompactionJob) -> str:
    """Of the newest attempt."""
    return job.status.attempts[-1].reason if job.status.attempts else ""


def named_damage(job: CompactionJob) -> bool:
    """Whether a job is parked because a source of it is damaged."""
    return job.status.state is JobState.FAULTY and last_reason(job) == JobReason.SOURCE_CORRUPT


def was_outdated(job: CompactionJob) -> bool:
    """Whether the sources of a job were changed before it committed."""
    return job.status.state is JobState.FAULTY and last_reason(job) == JobReason.SOURCES_CHANGED
