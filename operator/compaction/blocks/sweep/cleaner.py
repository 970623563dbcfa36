"""When a block store is cleaned, and what of it is due: replaced and expired blocks after their grace, orphans now and
then, memories of what ended long ago. What is done is `blocks/sweep/cleaning.py`.

Every part is tried at every run that finds it due; one that fails is said, and does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from compaction.blocks.errors import BlockStoreError
from compaction.blocks.index.retention import RetentionPeriods
from compaction.blocks.index.tombstones import next_due
from compaction.blocks.model import SECOND
from compaction.blocks.store import BlockStore
from compaction.blocks.sweep.cleaning import expire_all, housekeeping, sweep
from compaction.blocks.sweep.orphan_collector import collect_orphans
from compaction.storage.adapter import SWEEP_AGAIN
from compaction.storage.errors import StorageError

EXPIRY_EVERY: Final = 60.0
"""Seconds between looks for expired blocks: one query, when nothing has expired."""
ORPHANS_EVERY: Final = 6 * 3600.0
"""Seconds between searches for orphans: each lists the whole store."""
FIRST_ORPHANS: Final = 900.0
"""A coordinator that has just begun has other things to do first."""


@dataclass(slots=True)
class CleanupResult:
    """What one run did. `failures`: what was not cleaned (a path, or the store), and why."""

    deleted: int = 0
    bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    next_in: float = SWEEP_AGAIN


class Upcoming(NamedTuple):
    """Seconds until something is due, and for how many seconds the oldest deletion has been."""

    next_in: float
    overdue: float


class BlockCleaner:
    """The clock of one store's cleaning. `grace` in seconds; `clock`: monotonic seconds."""

    def __init__(self, *, grace: float, retention: RetentionPeriods, clock: Callable[[], float]) -> None:
        self._grace = int(grace * SECOND)
        self._retention = retention
        self._clock = clock
        self._expiry_due = clock()
        self._orphans_due = clock() + FIRST_ORPHANS

    def upcoming(self, store: BlockStore) -> Upcoming:
        """When something is due, and what is late. Raises DatabaseError."""
        now = self._clock()
        moments = [self._orphans_due - now]
        if self._keeps_for_a_time:
            moments.append(self._expiry_due - now)
        overdue = 0.0
        if (due := next_due(store.index, grace=self._grace)) is not None:
            deletion = (due - store.now()) / SECOND
            moments.append(deletion)
            overdue = max(0.0, -deletion)
        return Upcoming(max(0.0, min(moments)), overdue)

    def run(self, store: BlockStore) -> CleanupResult:
        """Do everything that is due. Failures of a part are in the result; it is tried again soon."""
        done = CleanupResult()
        now = self._clock()
        if self._keeps_for_a_time and now >= self._expiry_due:
            self._try(store, done, self._expire)
        self._try(store, done, self._sweep)
        if now >= self._orphans_due:
            self._try(store, done, self._collect)
        try:
            wait = self.upcoming(store).next_in
        except (BlockStoreError, StorageError) as error:
            done.failures[store.objects.url] = str(error)
            wait = SWEEP_AGAIN
        done.next_in = max(wait, SWEEP_AGAIN) if done.failures else wait
        return done

    @property
    def _keeps_for_a_time(self) -> bool:
        return bool(self._retention.default or self._retention.tenants)

    def _expire(self, store: BlockStore, done: CleanupResult) -> None:
        expire_all(store.index, self._retention, now=store.now())
        self._expiry_due = self._clock() + EXPIRY_EVERY

    def _sweep(self, store: BlockStore, done: CleanupResult) -> None:
        cleaned = sweep(store.objects, store.index, now=store.now(), grace=self._grace)
        done.deleted += cleaned.blocks
        done.bytes += cleaned.bytes
        done.failures |= _said(cleaned.failed, "block ")

    def _collect(self, store: BlockStore, done: CleanupResult) -> None:
        collected = collect_orphans(store.objects, store.index, now=store.now())
        housekeeping(store.index, now=store.now())
        done.deleted += collected.objects
        done.bytes += collected.bytes
        done.failures |= _said(collected.failed, "")
        # The limit ended the search: the next run continues at once instead of after the interval.
        if not collected.more:
            self._orphans_due = self._clock() + ORPHANS_EVERY

    @staticmethod
    def _try(store: BlockStore, done: CleanupResult, part: Callable[[BlockStore, CleanupResult], None]) -> None:
        try:
            part(store, done)
        except (BlockStoreError, StorageError) as error:
            done.failures[store.objects.url] = str(error)


def _said(failed: Mapping[str, str], noun: str) -> dict[str, str]:
    """What could not be deleted, by the first of all that failed for the same reason: a store that refuses deletions
    refuses a thousand in a request.
    """
    alike: dict[str, list[str]] = {}
    for one, reason in failed.items():
        alike.setdefault(reason, []).append(one)
    return {
        ones[0]: f"{noun}{ones[0]}{f' and {len(ones) - 1} more' if ones[1:] else ''} could not be deleted: {reason}"
        for reason, ones in alike.items()
    }
