"""A history of the reference, run through our manager; what differs (docs/design/catalogs.md#histories)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compaction.catalogs.codec import canonical
from compaction.catalogs.errors import CatalogValidationError
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager.clock import HybridClock
from compaction.catalogs.manager.events import CatalogEvent, EventKind
from compaction.catalogs.manager.executing import Executed
from compaction.catalogs.manager.futures import outcome_of
from compaction.catalogs.manager.manager import CatalogManager
from compaction.catalogs.manager.runners import InlineRunner
from compaction.catalogs.manager.settings import Settings
from compaction.catalogs.replay import showing, steps
from compaction.catalogs.replay.differences import MISSING, Difference, differences
from compaction.catalogs.replay.log import ReplayLog


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step and how ours differs from it; no differences when it does not."""

    line: int
    name: str
    differences: tuple[Difference, ...]


def replay(path: Path) -> Iterator[StepReport]:
    """Each step of a history. It goes on after a difference: ours keeps its own way.

    Raises CatalogHistoryError, which names file and line, when the file is no history.
    """
    run = _Replay()
    for step in steps.steps(path):
        yield StepReport(step.line, step.name, tuple(run.differences(step)))


class JumpingTime:
    """Time that passes when it is waited for: the timer moves the clock by the wait, and runs the action at once."""

    def __init__(self) -> None:
        self._milliseconds = 0

    def now(self) -> int:
        return self._milliseconds

    def after(self, milliseconds: int, action: Callable[[], None]) -> None:
        self._milliseconds += milliseconds
        action()

    def close(self) -> None:
        """Nothing waits."""


_ANY_SKEW: Final = 100 * 365 * 24 * 3_600_000
"""Milliseconds. The timestamps of a history are those of its writers; the clock here has nothing to do with them."""


class _Replay:
    def __init__(self) -> None:
        self._log = ReplayLog()
        self._settings = Settings(delay=0, max_skew=_ANY_SKEW)
        self._events: list[CatalogEvent] = []
        self._manager = self._new_manager(self._events)
        self._latest = 0
        self._first: Any = None

    def differences(self, step: steps.Step) -> Iterator[Difference]:
        self._log.begin(step.transactions)
        self._events.clear()
        self._first = None
        ran = outcome_of(lambda: self._run(step.operation))
        failed = ran.exception()
        result = showing.error(failed) if failed is not None else ran.result()
        manager = self._manager
        found = {
            "result": result,
            "firstResult": self._first,
            "events": [showing.event(one) for one in self._events] or MISSING,
            "decoded": [canonical.event(one) for one in self._log.events] or MISSING,
            "earliest": manager.earliest.version,
            "latest": manager.latest.version,
            **self._changed(),
        }
        expected = dict(step.expected)
        expected.pop("engine", None)
        for name in ("result", "firstResult"):
            expected[name] = showing.without_message(expected.get(name))
        for name in sorted({*expected, *found}):
            yield from differences(name, expected.get(name, MISSING), found.get(name, MISSING))
        theirs, ours = ([_transaction(one) for one in every] for every in (step.transactions, self._log.written))
        yield from differences("txns", theirs, ours)

    def _changed(self) -> dict[str, Any]:
        """The latest version, when the step changed it."""
        latest = self._manager.latest
        if latest.version == self._latest:
            return {}
        self._latest = latest.version
        return {"catalog": canonical.catalog(latest), "catalogSha256": canonical.fingerprint(latest)}

    def _run(self, operation: steps.Operation) -> Any:
        """The result as a history shows it; raises what the step comes to."""
        match operation:
            case steps.Configure(delay):
                self._settings = Settings(delay=delay, max_skew=_ANY_SKEW)
                self._start()
                return None
            case steps.Execute(commands):
                return self._execute(self._manager, commands)
            case steps.Interleave(first, commands):
                return self._interleave(first, commands)
            case steps.Compact(version):
                saved = self._manager.compact(version, 1, trim=False)
                return saved.result(0) is SnapshotOutcome.SAVED
            case steps.Restart():
                self._start()
                return self._versions()
            case steps.ActiveAt(at):
                return self._manager.active_version(at)
            case steps.ListVersions():
                return self._versions()
            case steps.ListKeys():
                return self._log.keys()
            case steps.Advance():
                return None

    def _start(self) -> None:
        self._manager.close()
        self._manager = self._new_manager(self._events)
        self._manager.start()

    def _new_manager(self, heard: list[CatalogEvent]) -> CatalogManager:
        time = JumpingTime()
        manager = CatalogManager(
            self._log,
            settings=self._settings,
            clock=HybridClock(time.now),
            timer=time,
            runner=InlineRunner(),
            report=lambda _: None,
        )
        for kind in EventKind:
            if kind is not EventKind.VERSIONS_SKIPPED:
                manager.listen(kind, heard.append)
        return manager

    def _execute(self, manager: CatalogManager, commands: steps.Commands) -> Any:
        if isinstance(commands, CatalogValidationError):
            raise commands
        answer: Future[Executed | None] = manager.execute(commands)
        done = answer.result(0)
        if done is None:
            return None
        return {"applied": list(done.applied), "time": done.time, "version": done.version}

    def _interleave(self, first: steps.Commands, commands: steps.Commands) -> Any:
        def run_first() -> None:
            other = self._new_manager([])
            other.start()
            ran = outcome_of(lambda: self._execute(other, first))
            failed = ran.exception()
            self._first = ran.result() if failed is None else showing.error(failed)
            other.close()

        self._log.before_append = run_first
        try:
            return self._execute(self._manager, commands)
        finally:
            # It has not run when the commands had nothing to write.
            self._log.before_append = None

    def _versions(self) -> list[list[Any]]:
        return [[one.version, one.activation_time, canonical.fingerprint(one)] for one in self._manager.history]


def _transaction(one: steps.Transaction) -> dict[str, Any]:
    return {
        "succeeded": one.succeeded,
        "revision": one.revision,
        "timestamp": one.timestamp,
        "puts": {key: data.hex() for key, data in one.puts},
        "removes": list(one.removes),
    }
