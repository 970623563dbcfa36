"""What a log uses of its system: the queue before the write-ahead log, and the thread that publishes snapshots."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from compaction.segments.errors import LogClosedError
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.wal.queue import WalQueue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogServices:
    """`directory`: the system's. `background`: one thread for all logs, so snapshots that are written and installed
    follow each other.

    `roll`: go on in a new write-ahead log file; completes with its number. `replaced`: a log (its directory) has a new
    snapshot, older ones may go.
    """

    directory: Path
    queue: WalQueue
    background: Executor
    roll: Callable[[], Future[int]]
    replaced: Callable[[Path, LogSnapshot], None]

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do something in the thread of snapshots. LogClosedError: the system is closed."""
        try:
            return self.background.submit(work)
        except RuntimeError as error:
            raise LogClosedError(str(self.directory), "the system of logs is closed") from error
