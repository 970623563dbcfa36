"""The thread that reads and compares beside a demo, and jobs that lost to users of the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from compaction.api.enums import JobReason, JobState
from compaction.api.job.job import CompactionJob

# A thread that reads and compares beside what the demo does, until that is over.

JOIN_SECONDS: Final = 60.0


class Proving(Protocol):
    """Each demo has its own. `run` returns soon after `stopped` is set."""

    stopped: threading.Event

    def run(self) -> None: ...


@contextmanager
def proving(prover: Proving) -> Iterator[None]:
    """It reads in a thread of its own until the block is left."""
    thread = threading.Thread(target=prover.run, name="prover", daemon=True)
    thread.start()
    try:
        yield
    finally:
        prover.stopped.set()
        thread.join(JOIN_SECONDS)


# Jobs that lost to what the store's users do: they end for the record, and their work is planned again.


def last_reason(job: CompactionJob) -> str:
    """Of the newest attempt."""
    return job.status.attempts[-1].reason if job.status.attempts else ""


def was_outdated(job: CompactionJob) -> bool:
    """Whether the sources of a job were changed before it committed."""
    return job.status.state is JobState.FAULTY and last_reason(job) == JobReason.SOURCES_CHANGED
