"""What a branch shows, by its one writer: the version of each record after each change that was acknowledged.

A scan of a branch is no snapshot of one moment: changes of that time may be seen or not. So a reading is
compared with the state before it and with the changes that began before it ended: a record that none of these touches
must be exactly as it was acknowledged, any other one as it was or as one of them makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from compaction.local.demo.staging.entries import TOTAL, EntryColumns, Numbers, Versions


@dataclass(frozen=True, slots=True)
class Change:
    """Records that get a version; 0: they are deleted."""

    numbers: Numbers
    version: int


@dataclass(frozen=True, slots=True)
class Moment:
    """The acknowledged state of the records from number `first` on. `acknowledged`: how many changes that is."""

    first: int
    versions: Versions
    acknowledged: int

    def differences(self, found: EntryColumns, since: list[Change]) -> Numbers:
        """Numbers whose record is neither as it was nor as a change since then makes it."""
        shown = np.zeros_like(self.versions)
        shown[found.numbers - self.first] = found.versions
        wrong = np.flatnonzero(shown != self.versions)
        for change in since:
            explained = np.isin(wrong + self.first, change.numbers) & (shown[wrong] == change.version)
            wrong = wrong[~explained]
        return wrong + self.first


@dataclass
class BranchModel:
    """Of one branch with one writer; others may read it meanwhile."""

    name: str
    versions: Versions = field(default_factory=lambda: np.zeros(TOTAL, dtype=np.uint32))
    acknowledged: int = 0
    writes: int = 0
    _begun: list[Change] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def next_version(self) -> int:
        """Of the next change: greater than all before it."""
        return len(self._begun) + 2

    @property
    def records(self) -> int:
        """How many the branch shows."""
        return int(np.count_nonzero(self.versions))

    def change(self, change: Change, write: Callable[[], None]) -> None:
        """Carry a change out. It may be visible from now on, and is from when `write` returns; when that raises, it may
        be visible or not for ever.
        """
        with self._lock:
            self._begun.append(change)
        write()
        with self._lock:
            self.versions[change.numbers] = change.version
            self.acknowledged += 1
            self.writes += len(change.numbers)

    def moment(self, first: int = 0, last: int = TOTAL) -> Moment:
        """The state of the records `first` to `last` (not included)."""
        with self._lock:
            return Moment(first, self.versions[first:last].copy(), self.acknowledged)

    def since(self, moment: Moment) -> list[Change]:
        """The changes that had begun by now and were not acknowledged at that moment."""
        with self._lock:
            return self._begun[moment.acknowledged :]
