"""From commands to a version of the log: attempts, and the wait until the version is active
(docs/design/catalogs.md#execution).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from compaction.catalogs.commands.command import Command, batch
from compaction.catalogs.errors import CatalogConflictError, CatalogNotRunError, CatalogValidationError
from compaction.catalogs.log.port import Renewal, UpdateLog
from compaction.catalogs.manager import futures
from compaction.catalogs.manager.clock import ClockGuard, HybridClock
from compaction.catalogs.manager.history import History
from compaction.catalogs.manager.readiness import Readiness
from compaction.catalogs.manager.runners import Runner
from compaction.catalogs.manager.settings import Settings
from compaction.catalogs.manager.timers import ClockWaits
from compaction.catalogs.model.entries import VersionedUpdate
from compaction.catalogs.model.hybrid import LOGICAL_BITS, MAXIMUM, MINIMUM

ATTEMPTS: Final = 10
"""Of one batch, when other processes write the version first each time."""


@dataclass(frozen=True, slots=True)
class Executed:
    """`applied`: which commands had something to do. `version`: the one that shows it, with its activation time."""

    applied: tuple[bool, ...]
    version: int
    time: int


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a batch comes to, and the activation time of the version that it was decided on."""

    answer: Executed | CatalogValidationError
    time: int


class Execution:
    """Runs batches one after the other: the next begins when the one before is in the log and read from it, or refused.

    Batches of one process therefore never take a version from each other.
    """

    def __init__(
        self,
        log: UpdateLog,
        clock: HybridClock,
        guard: ClockGuard,
        settings: Settings,
        *,
        runner: Runner,
        history: Callable[[], History],
        readiness: Readiness,
        waits: ClockWaits,
    ) -> None:
        self._log = log
        self._clock = clock
        self._guard = guard
        self._settings = settings
        self._runner = runner
        self._history = history
        self._readiness = readiness
        self._waits = waits
        self._saves = futures.Chain()

    def execute(self, commands: Sequence[Command]) -> Future[Executed | None]:
        """The answer when every process shows it: also a refusal comes when what it refers to is readable. None for no
        commands.
        """
        if not commands:
            return futures.done(None)
        saved = self._saves.add(lambda: self._save(commands, 0))
        return futures.then(saved, self._when_active)

    def execute_in_turn(self, batches: Sequence[Sequence[Command]]) -> list[Future[Executed | None]]:
        """As `execute` for each, and none begins after one that has failed: its future fails with
        CatalogNotRunError. The waits until versions are active overlap.
        """
        failed = False

        def save(commands: Sequence[Command]) -> Future[_Saved]:
            if failed:
                return futures.failed(CatalogNotRunError())
            saved = self._save(commands, 0)
            saved.add_done_callback(ended)
            return saved

        def ended(saved: Future[_Saved]) -> None:
            nonlocal failed
            failed = failed or saved.exception() is not None or isinstance(saved.result().answer, Exception)

        return [
            futures.then(self._saves.add(partial(save, commands)), self._when_active)
            if commands
            else futures.done(None)
            for commands in batches
        ]

    def _when_active(self, saved: _Saved) -> Future[Executed | None]:
        def answer(_: None) -> Future[Executed | None]:
            if isinstance(saved.answer, CatalogValidationError):
                raise saved.answer
            return futures.done(saved.answer)

        return futures.then(self._waits.until(moved(saved.time, self._settings.max_skew)), answer)

    def _save(self, commands: Sequence[Command], attempt: int) -> Future[_Saved]:
        running = self._runner.submit(lambda: self._attempt(commands, attempt))
        return futures.then(running, lambda saved: saved)

    def _attempt(self, commands: Sequence[Command], attempt: int) -> Future[_Saved]:
        """Against the latest version that this process knows, active or not."""
        if attempt == ATTEMPTS:
            raise CatalogConflictError(ATTEMPTS)
        base = self._history().latest
        try:
            found = batch(base, commands, self._settings.partitions)
        except CatalogValidationError as error:
            return futures.done(_Saved(error, base.activation_time))
        if not found.entries:
            unchanged = Executed(found.applied, base.version, base.activation_time)
            return futures.done(_Saved(unchanged, base.activation_time))
        update = VersionedUpdate(base.version + 1, self._settings.delay, found.entries)
        written = append_at(self._log, update, self._clock, self._guard, self._settings)

        def read(_: None) -> Future[_Saved]:
            if not written:
                return self._save(commands, attempt + 1)
            time = self._time_of(update.version)
            return futures.done(_Saved(Executed(found.applied, update.version, time), time))

        # Either way the version is in the log, and this process goes on when it has read it.
        return futures.then(self._readiness.until(update.version), read)

    def _time_of(self, version: int) -> int:
        """Activation time of a version that was read; when history was cut above it meanwhile, of the earliest one."""
        history = self._history()
        return (history.find(version) or history.earliest).activation_time


def append_at(
    log: UpdateLog, update: VersionedUpdate, clock: HybridClock, guard: ClockGuard, settings: Settings
) -> bool:
    """Append with the clock's time. Raises CatalogClockError, and appends nothing, when that is not to be believed."""
    time = log.time()
    # Read after the log's time, which may have taken a request: the other way round a slow etcd looks like a clock that
    # is behind.
    timestamp = clock.now()
    guard.require(timestamp, time)
    return log.append(update, timestamp, renewal=Renewal(settings.slowest_append / 1_000, clock.now))


def moved(timestamp: int, milliseconds: int) -> int:
    """`timestamp` moved by `milliseconds`, kept within the range of timestamps."""
    return min(max(timestamp + (milliseconds << LOGICAL_BITS), MINIMUM), MAXIMUM)
