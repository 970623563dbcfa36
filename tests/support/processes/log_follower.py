"""A log that gets snapshots of another one of its system installed, while that is written and compacted."""

from __future__ import annotations

import threading
from itertools import count
from random import Random
from typing import Final

from compaction.segments.install.driver import install_snapshot
from compaction.segments.system.log import Log
from compaction.segments.system.system import LogSystem
from support.segments.owned_logs import Journal, payload

FOLLOWER: Final = "follower"
SOURCE: Final = "a"


class Follower:
    """`lock` guards the journal."""

    def __init__(self, system: LogSystem, journal: Journal, lock: threading.Condition) -> None:
        self._source = system.open_log(SOURCE)
        self._log = system.open_log(FOLLOWER)
        self._journal = journal
        self._lock = lock
        self._transfers = count(1)
        check(self._log, at_least=journal.models[FOLLOWER].installed)

    def run(self, stop: threading.Event, random: Random) -> None:
        """Until it is stopped, or the system is closed."""
        while not stop.wait(random.uniform(0, 0.3)):
            index, applied = self._source.row.snapshot_index, self._log.row.snapshot_index
            if index is None or (applied is not None and index <= applied):
                continue
            installed = install_snapshot(
                self._source, self._log, term=1, transfer=next(self._transfers), applied=applied
            )
            assert installed is not None
            check(self._log, at_least=max(index, installed.index))
            with self._lock:
                self._journal.say("installed", FOLLOWER, installed.index)


def check(log: Log, *, at_least: int) -> None:
    """It holds a snapshot at this index or a later one (0: or none), with all its live entries and nothing else."""
    row = log.row
    assert (row.snapshot_index or 0) >= at_least, f"{log.name}: {row}, {at_least} was installed"
    found = log.read(log.indexes())
    live = [] if row.live is None else list(row.live)
    assert [entry.index for entry in found] == live, f"{log.name}: {row}, {[entry.index for entry in found]}"
    wrong = [entry for entry in found if entry.payload != payload(SOURCE, entry.index, entry.term)]
    assert not wrong, f"{log.name}: {wrong[:3]}"
