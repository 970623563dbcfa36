"""A process's view of a catalog, and its way to change it: from commands to a version of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from compaction.catalogs.commands.command import PUBLIC, SYSTEM, CatalogCommand, batch
from compaction.catalogs.commands.schema_commands import CreateSchema, CreateSystemSchema
from compaction.catalogs.errors import (
    CatalogClosedError,
    CatalogConflictError,
    CatalogNotRunError,
    CatalogStoppedError,
    CatalogValidationError,
)
from compaction.catalogs.log.port import LogEvent, Renewal, SnapshotOutcome, UpdateLog, Watch
from compaction.catalogs.manager import futures
from compaction.catalogs.manager.clock import ClockGuard, ClockWaits, HybridClock, ThreadTimer, Timer
from compaction.catalogs.manager.events import EventKind, Listener, Listeners, Readiness, VersionsSkipped, events_of
from compaction.catalogs.manager.futures import Runner, ThreadRunner
from compaction.catalogs.manager.history import START, CatalogHistory, Settings, trimmed
from compaction.catalogs.model.catalog import EMPTY, Catalog
from compaction.catalogs.model.descriptors import LOGICAL_BITS, MAXIMUM, MINIMUM
from compaction.catalogs.model.entries import Snapshot, VersionedUpdate
from compaction.core.collecting import no_collection

# From commands to a version of the log: attempts, and the wait until the version is active
# (docs/design/catalogs.md#execution).

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
    """The result of a batch, and the activation time of the version that it was decided on."""

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
        history: Callable[[], CatalogHistory],
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

    def execute(self, commands: Sequence[CatalogCommand]) -> Future[Executed | None]:
        """The answer when every process shows it: also a refusal comes when what it refers to is readable. None for no
        commands.
        """
        if not commands:
            return futures.done(None)
        saved = self._saves.add(lambda: self._save(commands, 0))
        return futures.then(saved, self._when_active)

    def execute_in_turn(self, batches: Sequence[Sequence[CatalogCommand]]) -> list[Future[Executed | None]]:
        """As `execute` for each, and none begins after one that has failed: its future fails with
        CatalogNotRunError. The waits until versions are active overlap.
        """
        failed = False

        def save(commands: Sequence[CatalogCommand]) -> Future[_Saved]:
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

    def _save(self, commands: Sequence[CatalogCommand], attempt: int) -> Future[_Saved]:
        running = self._runner.submit(lambda: self._attempt(commands, attempt))
        return futures.then(running, lambda saved: saved)

    def _attempt(self, commands: Sequence[CatalogCommand], attempt: int) -> Future[_Saved]:
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
            # Of the earliest version, when history was cut above this one meanwhile.
            history = self._history()
            time = (history.find(update.version) or history.earliest).activation_time
            return futures.done(_Saved(Executed(found.applied, update.version, time), time))

        # Either way the version is in the log, and this process goes on when it has read it.
        return futures.then(self._readiness.until(update.version), read)


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


# A process's view of a catalog, and its way to change it (docs/design/catalogs.md#manager).

LOGGER: Final = logging.getLogger(__name__)


def first_update() -> VersionedUpdate:
    """Version 1: the schemas PUBLIC and SYSTEM, active at once."""
    return VersionedUpdate(1, 0, batch(EMPTY, (CreateSchema(PUBLIC), CreateSystemSchema(SYSTEM))).entries)


def _log_error(error: BaseException) -> None:
    LOGGER.error("%s: %s", type(error).__name__, error)


class CatalogManager:
    """Threads inside, futures outside. Between `start` and `close` it follows the log, which its owner closes.

    Reads answer at once from memory. Callbacks of futures, and listeners, run on the manager's threads: they may call
    any method but `close`, and must not wait for a future of the manager. A `timer` may serve several managers and
    stays open, a `runner` is closed with its manager. `report` gets errors that no caller waits for; `last_version`
    reads the number of the log's last version, from the log itself.
    """

    def __init__(
        self,
        log: UpdateLog,
        *,
        settings: Settings | None = None,
        clock: HybridClock | None = None,
        timer: Timer | None = None,
        runner: Runner | None = None,
        last_version: Callable[[], int] | None = None,
        report: Callable[[BaseException], None] = _log_error,
    ) -> None:
        self.settings = settings or Settings()
        self.clock = clock or HybridClock()
        self._log = log
        self._guard = ClockGuard(self.clock, log.writer, self.settings.max_skew)
        self._complete = 0
        """The latest time for which `wait_complete` was done."""
        self._timer = timer or ThreadTimer()
        self._owns_timer = timer is None
        self._runner = runner or ThreadRunner()
        self._last_version = last_version or (lambda: log.recover().version)
        self._report = report
        self._history = START
        self._readiness = Readiness()
        self._waits = ClockWaits(self.clock, self._timer)
        self._listeners = Listeners(report)
        self._feed = futures.Chain()
        self._watch: Watch | None = None
        self._error: Exception | None = None
        self._execution = Execution(
            log,
            self.clock,
            self._guard,
            self.settings,
            runner=self._runner,
            history=lambda: self._history,
            readiness=self._readiness,
            waits=self._waits,
        )
        self._begun: Future[None] = futures.pending()
        """Done when version 1 is read: before it there is no schema to put anything into."""
        self.initialization: Future[None] = futures.pending()
        """Done when a version is there to use: of a new log version 1, active everywhere."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the log, then follow it; listeners of before get the events of every version that is read. Creates
        version 1 of an empty log. Raises the log's errors, and CatalogStoppedError for a log that contradicts itself.
        """
        with no_collection():
            recovered = self._log.recover()
            for event in recovered.events:
                self._offer(event)
        if self._error is not None:
            raise self._error
        self._watch = self._log.watch(recovered.revision, self._offer, self._stop)
        if recovered.version:
            self._begun.set_result(None)
            self.initialization.set_result(None)
            return
        # Another process may write it first: then there is nothing to do.
        created = self._runner.submit(
            lambda: append_at(self._log, first_update(), self.clock, self._guard, self.settings)
        )
        futures.forward(futures.then(created, lambda _: self._readiness.until(1)), self._begun)
        futures.forward(futures.then(self._begun, self._first_active), self.initialization)

    def close(self) -> None:
        """Stop following the log. What callers wait for ends with CatalogClosedError; reads still answer."""
        if self._error is None:
            self._error = CatalogClosedError()
        if self._watch is not None:
            self._watch.close()
        self._readiness.stop(CatalogClosedError())
        self._waits.close()
        self._runner.close()
        if self._owns_timer:
            self._timer.close()

    def _first_active(self, _: None) -> Future[None]:
        first = self._history.find(1) or self._history.earliest
        return self._waits.until(moved(first.activation_time, self.settings.max_skew))

    # --- changes ------------------------------------------------------------------------------------------------------

    def execute(self, commands: CatalogCommand | Sequence[CatalogCommand]) -> Future[Executed | None]:
        """Run a command, or a list of them as one version: all or none. The answer comes when every process shows it.

        CatalogValidationError when the rules refuse it, CatalogConflictError when other processes were faster in each
        attempt, the log's errors. The answer to an empty list is None.
        """
        asked = list(commands) if isinstance(commands, Sequence) else [commands]
        if self._error is not None:
            return futures.failed(self._error)
        return futures.then(self._begun, lambda _: self._execution.execute(asked))

    def execute_in_turn(self, batches: Sequence[Sequence[CatalogCommand]]) -> list[Future[Executed | None]]:
        """As `execute` for each list, a version each, without waiting for one to be active before the next begins. None
        begins after one that has failed: its future fails with CatalogNotRunError.
        """
        if self._error is not None:
            return [futures.failed(self._error) for _ in batches]
        found: list[Future[Executed | None]] = [futures.pending() for _ in batches]

        def begin(begun: Future[None]) -> None:
            error = begun.exception()
            running = [] if error is not None else self._execution.execute_in_turn(batches)
            for index, target in enumerate(found):
                futures.forward(running[index] if running else futures.failed(error or CatalogClosedError()), target)

        self._begun.add_done_callback(begin)
        return found

    def compact(self, version: int, token: int, *, trim: bool = False) -> Future[SnapshotOutcome]:
        """Cut history before `version`, with the fencing token of the coordinator; `trim`: without column sets that no
        retained version reaches. A process that reads rows of older column sets needs them. CatalogNotFoundError for a
        version that is not retained.
        """
        return self._runner.submit(lambda: self._compact(version, token, trim))

    def _compact(self, version: int, token: int, trim: bool) -> SnapshotOutcome:
        if self._error is not None:
            raise self._error
        snapshot = self._history.catalog(version).snapshot()
        return self._log.save_snapshot(trimmed(snapshot) if trim else snapshot, token)

    # --- reads --------------------------------------------------------------------------------------------------------

    @property
    def history(self) -> CatalogHistory:
        """All retained versions, as they are now."""
        return self._history

    @property
    def earliest(self) -> Catalog:
        """The first retained version."""
        return self._history.earliest

    @property
    def latest(self) -> Catalog:
        """The last version that this process has read; it may not be active, or ready, yet."""
        return self._history.latest

    def catalog(self, version: int) -> Catalog:
        """The version of this number, active or not; CatalogNotFoundError when it is not retained."""
        return self._history.catalog(version)

    def active(self, at: int) -> Catalog:
        """The version to use at a hybrid timestamp; CatalogNotFoundError before the earliest."""
        return self._history.active(at)

    def active_version(self, at: int) -> int:
        """Number of `active(at)`."""
        return self._history.active(at).version

    def ready(self, version: int) -> Future[None]:
        """Done when all listeners have finished with the events of `version`."""
        return self._readiness.until(version)

    def wait_complete(self, at: int) -> Future[None]:
        """Done when `active(at)` is final: no update that is active at `at` can follow."""
        settings = self.settings
        until = moved(at, settings.max_skew + settings.slowest_append - settings.delay)
        last = futures.then(self._waits.until(until), lambda _: self._runner.submit(self._last_version))
        ready = futures.then(last, self._readiness.until)
        ready.add_done_callback(lambda done: self._completed(at) if done.exception() is None else None)
        return ready

    def _completed(self, at: int) -> None:
        self._complete = max(at, self._complete)

    # --- events -------------------------------------------------------------------------------------------------------

    def listen(self, kind: EventKind, listener: Listener) -> None:
        """Call `listener` for each event of a kind, from the version on that is applied next."""
        self._listeners.add(kind, listener)

    def unlisten(self, kind: EventKind, listener: Listener) -> None:
        """No further event for `listener`."""
        self._listeners.remove(kind, listener)

    # --- what the log delivers ----------------------------------------------------------------------------------------

    def _offer(self, event: LogEvent) -> None:
        self._feed.add(lambda: self._apply(event)).add_done_callback(self._applied)

    def _applied(self, finished: Future[None]) -> None:
        error = finished.exception()
        if error is not None and self._error is None:
            self._stop(error)

    def _apply(self, event: LogEvent) -> Future[None]:
        if self._error is not None:
            raise self._error
        before = self._history
        if event.activation_time <= self._complete and not isinstance(event.event, Snapshot):
            # To apply it would change what `active` has answered, and promised to be final.
            raise self._guard.late(event)
        self._history = before.followed_by(event)
        if isinstance(event.event, Snapshot):
            latest = self._history.latest.version
            skipped = [VersionsSkipped(event.revision, latest, before.latest.version)]
            # A process that starts with a snapshot has skipped nothing: it has no state of before.
            fired = self._listeners.fire(skipped if latest > before.latest.version > 0 else ())
        else:
            off = self._guard.receive(event)
            if off is not None:
                self._report(off)
            latest = event.event.version
            fired = self._listeners.fire(events_of(event.event, event.timestamp, event.revision))
        fired.add_done_callback(lambda _: self._readiness.reach(latest))
        return fired

    def _stop(self, error: BaseException) -> None:
        """The log cannot be followed any further: reads answer with what is known, changes fail."""
        stopped = CatalogStoppedError(self._history.latest.version, str(error))
        stopped.__cause__ = error
        self._error = stopped
        self._readiness.stop(stopped)
        self._report(stopped)
