"""Applications that write: one for each branch, change after change, each of them acknowledged before the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from compaction.errors import CompactionError
from compaction.local.demo.staging.entries import DIGITS, LOGS, TABLES, Numbers, encode_entries, key_of
from compaction.local.demo.staging.model import BranchModel, Change, Moment
from compaction.local.demo.staging.scenario import COMMITTER, DemoBranch
from compaction.staging.errors import NoChangesError, TooManyTriesError
from compaction.staging.flows.area import Area
from compaction.staging.flows.committing import Committer, Draft
from compaction.staging.flows.writing import MOST_DELETED, Condition, Writer

SET: Final = 40
DELETED: Final = 20
PURGED_AT_ONCE: Final = 50
CALLS: Final = 20
"""So often a write is repeated that the branch did not acknowledge, because its token was sealed again and again."""
JOIN_SECONDS: Final = 60.0


@dataclass
class BranchWriter:
    """The writer of one branch. `moments`: when its changes were acknowledged, epoch seconds; `committed`: what its
    last commit holds; `error`: why it ended too early.
    """

    area: Area
    branch: DemoBranch
    model: BranchModel
    seed: int
    stopped: threading.Event = field(default_factory=threading.Event)
    moments: list[float] = field(default_factory=list)
    commits: int = 0
    committed: Moment | None = None
    error: CompactionError | None = None
    _purged: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._writer, self._committer = Writer(self.area), Committer(self.area)

    def run(self) -> None:
        """Changes at the branch's pace until `stopped`."""
        due = time.monotonic()
        try:
            while not self.stopped.is_set():
                self.write()
                # What a slow machine misses is not made up for.
                due = max(due + self.branch.pause, time.monotonic())
                self.stopped.wait(due - time.monotonic())
        except CompactionError as error:
            self.error = error

    def write(self) -> None:
        """One change; a commit too when it is time for one. Raises CompactionError."""
        turn = len(self.moments) % 5
        if turn == 0 and self.branch.purges and self._purged < LOGS:
            self.purge(PURGED_AT_ONCE)
        elif turn == 0 and self.branch.deletes:
            self._delete(self._some(DELETED))
        elif turn == 1 and self.branch.deletes:
            self._set_if(int(self._some(1)[0]))
        else:
            self._set(self._some(SET))
        if self.branch.commit_every and len(self.moments) % self.branch.commit_every == 0:
            self.commit()

    def purge(self, count: int) -> None:
        """Delete the next records below `logs/`. Raises CompactionError."""
        last = min(self._purged + count, LOGS)
        while self._purged < last:
            end = min(self._purged + MOST_DELETED, last)
            self._delete(np.arange(self._purged, end))
            self._purged = end

    def write_sets(self, count: int) -> None:
        """So many changes that only set records. Raises CompactionError."""
        for _ in range(count):
            self._set(self._some(SET))

    def _some(self, count: int) -> Numbers:
        return LOGS + np.sort(self._random.choice(TABLES, count, replace=False))

    def _set(self, numbers: Numbers) -> None:
        version = self.model.next_version
        records = encode_entries(numbers, np.full(len(numbers), version, np.uint32)).pairs()
        self._change(Change(numbers, version), lambda: self._writer.set_many(self.branch.name, records))

    def _delete(self, numbers: Numbers) -> None:
        keys = [key_of(number) for number in numbers.tolist()]
        self._change(Change(numbers, 0), lambda: self._writer.delete_many(self.branch.name, keys))

    def _set_if(self, number: int) -> None:
        """On the condition that the branch shows what this writer knows."""
        version, known = self.model.next_version, int(self.model.versions[number])
        numbers = np.array([number])
        ((key, value),) = encode_entries(numbers, np.array([version], np.uint32)).pairs()
        shown = b"%0*d.%0*d" % (DIGITS, number, DIGITS, known) if known else None

        def write() -> None:
            try:
                self._writer.set_if(self.branch.name, key, value, Condition(shown))
            except TooManyTriesError:
                # One of the tries may have been written: the condition would find that now.
                self._writer.set(self.branch.name, key, value)

        self._change(Change(numbers, version), write)

    def _change(self, change: Change, write: Callable[[], None]) -> None:
        self.model.change(change, lambda: _until_acknowledged(write))
        self.moments.append(time.time())

    def commit(self) -> None:
        """Commit what is staged; without changes the last commit has all of it. Raises CompactionError."""
        draft = Draft(COMMITTER, f"after {len(self.moments)} changes")
        try:
            _until_acknowledged(lambda: self._committer.commit(self.branch.name, draft))
            self.commits += 1
        except NoChangesError:
            pass
        self.committed = self.model.moment()


def _until_acknowledged(write: Callable[[], object]) -> None:
    """A writer repeats a change that was not acknowledged: it may or may not be there."""
    for left in reversed(range(CALLS)):
        try:
            write()
        except TooManyTriesError:
            if not left:
                raise
        else:
            return


@contextmanager
def writing(writers: list[BranchWriter]) -> Iterator[None]:
    """All of them write, each in a thread of its own, until the block is left."""
    threads = [threading.Thread(target=writer.run, name=writer.branch.name, daemon=True) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for writer in writers:
            writer.stopped.set()
        for thread in threads:
            thread.join(JOIN_SECONDS)
