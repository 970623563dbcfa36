"""Active read-write transactions: which versions of the catalog they hold
(docs/design/catalog-compaction.md#active-transactions).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from compaction.api.catalog.reasons import UNDEFINED


class ActiveVersions(Protocol):
    """What the tracker asks a catalog, in memory and under its lock."""

    def active(self, timestamp: int) -> tuple[int, int]:
        """Version active at `timestamp`, and its activation time. Raises CatalogError when none was, or is kept."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionMinimum:
    """Hybrid timestamps. `required`: activation time of the lowest version that a transaction holds; the clock when
    there are none. `oldest`: begin time of the oldest transaction, UNDEFINED without one. `clock`: when this was so.
    """

    required: int
    oldest: int
    clock: int


@dataclass(slots=True)
class _Held:
    activation: int
    count: int


class ActiveTransactions:
    """Counts transactions by the version that was active when they began. Safe for threads; memory only: transactions
    end with their process.

    One lock makes "take a timestamp, count it" a single step: a minimum that falls between the two would be later than
    the transaction that is about to be counted.
    """

    def __init__(self, clock: Callable[[], int], versions: ActiveVersions) -> None:
        self._clock, self._versions = clock, versions
        self._lock = threading.Lock()
        self._last = UNDEFINED
        self._begun: dict[int, int] = {}
        self._held: dict[int, _Held] = {}

    def begin(self) -> int:
        """The begin time of a new transaction, which no other one has. Raises CatalogError when no version is active:
        nothing began.
        """
        with self._lock:
            timestamp = self._tick()
            version, activation = self._versions.active(timestamp)
            self._begun[timestamp] = version
            self._held.setdefault(version, _Held(activation, 0)).count += 1
            return timestamp

    def finish(self, timestamp: int) -> bool:
        """End the transaction that began then; False, and nothing changes, when there is none (a second end)."""
        with self._lock:
            version = self._begun.pop(timestamp, None)
            if version is None:
                return False
            held = self._held[version]
            held.count -= 1
            if not held.count:
                del self._held[version]
            return True

    def minimum(self) -> TransactionMinimum:
        """From when on transactions need the catalog. Later transactions begin after the `clock` of the answer.

        A transaction that begins after an answer without any needs an earlier time than that answer, never an earlier
        version: it sees the version active at the answered time, or a later one.
        """
        with self._lock:
            now = self._tick()
            if not self._held:
                return TransactionMinimum(now, UNDEFINED, now)
            # Begin times ascend, so the first that is left is the oldest; so do the versions that they see.
            return TransactionMinimum(self._held[min(self._held)].activation, next(iter(self._begun)), now)

    def finished_before(self, version: int) -> bool:
        """Whether every transaction that began before `version` became active has ended: False while it is not active
        here, since another one could still begin below it. Raises CatalogError when no version is active.
        """
        with self._lock:
            active, _ = self._versions.active(self._tick())
            return active >= version and all(held >= version for held in self._held)

    def forget(self) -> None:
        """A restart: no transaction survives its process, and the clock is the machine's again."""
        with self._lock:
            self._last = UNDEFINED
            self._begun.clear()
            self._held.clear()

    def __len__(self) -> int:
        """Transactions under way."""
        with self._lock:
            return len(self._begun)

    def _tick(self) -> int:
        # A clock that stands or goes back must neither give two transactions one name nor let one begin before an
        # answer that promised that none would.
        self._last = max(self._clock(), self._last + 1)
        return self._last
