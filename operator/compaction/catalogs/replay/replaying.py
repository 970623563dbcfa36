"""Runs a recorded history through our manager, and shows where it differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from compaction.catalogs.codec import canonical
from compaction.catalogs.errors import CatalogNotFoundError, CatalogValidationError
from compaction.catalogs.log.port import SnapshotOutcome
from compaction.catalogs.manager import events
from compaction.catalogs.manager.clock import HybridClock
from compaction.catalogs.manager.events import CatalogEvent, EventKind
from compaction.catalogs.manager.futures import InlineRunner, outcome_of
from compaction.catalogs.manager.history import Settings
from compaction.catalogs.manager.manager import CatalogManager, Executed
from compaction.catalogs.replay import recorded
from compaction.catalogs.replay.parsing import ERRORS
from compaction.catalogs.replay.recorded import ReplayLog

# Places in which two values of JSON differ.

MOST: Final = 20
"""Differences that are listed of one value."""
_LONGEST: Final = 160
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class MissingValue:
    """In place of a value that is not there."""

    def __str__(self) -> str:
        return "nothing"


MISSING: Final = MissingValue()


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """`path`: keys and positions with points between them, from the name of a field on."""

    path: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.path}: the history has {_text(self.expected)}, this catalog {_text(self.found)}"


def differences(path: str, expected: Any, found: Any) -> list[ReplayDifference]:
    """The innermost values that differ, MOST of them; the last counts the others."""
    every = list(_differences(path, expected, found))
    if len(every) <= MOST:
        return every
    rest = len(every) - MOST
    return [*every[:MOST], ReplayDifference(f"{path} and {rest} more", every[MOST].expected, every[MOST].found)]


def _differences(path: str, expected: Any, found: Any) -> Iterator[ReplayDifference]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from _differences(f"{path}.{key}", expected.get(key, MISSING), found.get(key, MISSING))
    elif isinstance(expected, list) and isinstance(found, list):
        for at in range(max(len(expected), len(found))):
            wanted = expected[at] if at < len(expected) else MISSING
            other = found[at] if at < len(found) else MISSING
            yield from _differences(f"{path}.{at}", wanted, other)
    elif type(expected) is not type(found) or expected != found:
        yield ReplayDifference(path, expected, found)


def _text(value: object) -> str:
    shown = str(value) if isinstance(value, MissingValue) else json.dumps(value, sort_keys=True)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."


# Events and errors as a history shows them (docs/design/catalogs.md#histories).

Json = dict[str, Any]
_ERRORS: Final[Mapping[type, str]] = {**ERRORS, CatalogNotFoundError: "CatalogNotFoundException"}


def shown_error(exception: BaseException) -> Json:
    """The class alone: messages are each side's own. An error that the reference does not have bears our name."""
    return {"error": _ERRORS.get(type(exception), type(exception).__name__)}


def without_message(result: Any) -> Any:
    """A result of the reference, an error reduced to its class."""
    if isinstance(result, dict) and isinstance(result.get("error"), dict):
        return {"error": result["error"].get("class")}
    return result


def shown_event(item: events.CatalogEvent) -> Json:
    """With the name of the reference's class of parameters."""
    name, show = _SHOWN[type(item)]
    return {
        "catalogVersion": item.version,
        "causalityToken": item.revision,
        "event": item.kind.value,
        "params": f"{name}EventParameters",
        **show(item),
    }


def _table(item: Any) -> Json:
    return {"tableId": item.table_id}


def _index(item: Any) -> Json:
    return {"indexId": item.index_id}


def _zone(item: Any) -> Json:
    return {"zoneId": item.zone_id}


_SHOWN: Final[Mapping[type, tuple[str, Callable[[Any], Json]]]] = {
    events.TableCreated: ("CreateTable", lambda item: {"tableDescriptorId": item.table.id, "tableId": item.table.id}),
    events.TableDropped: ("DropTable", _table),
    events.TableRenamed: ("RenameTable", lambda item: {"newTableName": item.name, "tableId": item.table_id}),
    events.ColumnsAdded: ("AddColumn", _table),
    events.ColumnsDropped: ("DropColumn", _table),
    events.ColumnAltered: ("AlterColumn", _table),
    events.TablePropertiesAltered: ("AlterTableProperties", _table),
    events.IndexCreated: ("CreateIndex", lambda item: {"indexDescriptorId": item.index.id}),
    events.IndexBuilding: ("StartBuildingIndex", _index),
    events.IndexAvailable: ("MakeIndexAvailable", _index),
    events.IndexStopping: ("StoppingIndex", _index),
    events.IndexRemoved: ("RemoveIndex", _index),
    events.ZoneCreated: ("CreateZone", lambda item: {"zoneDescriptorId": item.zone.id}),
    events.ZoneAltered: ("AlterZone", lambda item: {"zoneDescriptorId": item.zone.id}),
    events.ZoneDropped: ("DropZone", _zone),
    # The reference has no class of its own for it.
    events.DefaultZoneSet: ("DropZone", _zone),
    events.SystemViewCreated: ("CreateSystemView", lambda item: {"descriptorId": item.view.id}),
}


# A history of the reference, run through our manager; what differs (docs/design/catalogs.md#histories).


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step and how ours differs from it; no differences when it does not."""

    line: int
    name: str
    differences: tuple[ReplayDifference, ...]


def replay(path: Path) -> Iterator[StepReport]:
    """Each step of a history. It goes on after a difference: ours keeps its own way.

    Raises CatalogHistoryError, which names file and line, when the file is no history.
    """
    run = _Replay()
    for step in recorded.steps(path):
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

    def differences(self, step: recorded.Step) -> Iterator[ReplayDifference]:
        self._log.begin(step.transactions)
        self._events.clear()
        self._first = None
        ran = outcome_of(lambda: self._run(step.operation))
        failed = ran.exception()
        result = shown_error(failed) if failed is not None else ran.result()
        manager = self._manager
        found = {
            "result": result,
            "firstResult": self._first,
            "events": [shown_event(item) for item in self._events] or MISSING,
            "decoded": [canonical.event(item) for item in self._log.events] or MISSING,
            "earliest": manager.earliest.version,
            "latest": manager.latest.version,
            **self._changed(),
        }
        expected = dict(step.expected)
        expected.pop("engine", None)
        for name in ("result", "firstResult"):
            expected[name] = without_message(expected.get(name))
        for name in sorted({*expected, *found}):
            yield from differences(name, expected.get(name, MISSING), found.get(name, MISSING))
        theirs, ours = ([_transaction(item) for item in every] for every in (step.transactions, self._log.written))
        yield from differences("txns", theirs, ours)

    def _changed(self) -> dict[str, Any]:
        """The latest version, when the step changed it."""
        latest = self._manager.latest
        if latest.version == self._latest:
            return {}
        self._latest = latest.version
        return {"catalog": canonical.catalog(latest), "catalogSha256": canonical.fingerprint(latest)}

    def _run(self, operation: recorded.Operation) -> Any:
        """The result as a history shows it; raises what the step comes to."""
        match operation:
            case recorded.Configure(delay):
                self._settings = Settings(delay=delay, max_skew=_ANY_SKEW)
                self._start()
                return None
            case recorded.Execute(commands):
                return self._execute(self._manager, commands)
            case recorded.Interleave(first, commands):
                return self._interleave(first, commands)
            case recorded.Compact(version):
                saved = self._manager.compact(version, 1, trim=False)
                return saved.result(0) is SnapshotOutcome.SAVED
            case recorded.Restart():
                self._start()
                return self._versions()
            case recorded.ActiveAt(at):
                return self._manager.active_version(at)
            case recorded.ListVersions():
                return self._versions()
            case recorded.ListKeys():
                return self._log.keys()
            case recorded.Advance():
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

    def _execute(self, manager: CatalogManager, commands: recorded.Commands) -> Any:
        if isinstance(commands, CatalogValidationError):
            raise commands
        answer: Future[Executed | None] = manager.execute(commands)
        done = answer.result(0)
        if done is None:
            return None
        return {"applied": list(done.applied), "time": done.time, "version": done.version}

    def _interleave(self, first: recorded.Commands, commands: recorded.Commands) -> Any:
        def run_first() -> None:
            other = self._new_manager([])
            other.start()
            ran = outcome_of(lambda: self._execute(other, first))
            failed = ran.exception()
            self._first = ran.result() if failed is None else shown_error(failed)
            other.close()

        self._log.before_append = run_first
        try:
            return self._execute(self._manager, commands)
        finally:
            # It has not run when the commands had nothing to write.
            self._log.before_append = None

    def _versions(self) -> list[list[Any]]:
        return [[item.version, item.activation_time, canonical.fingerprint(item)] for item in self._manager.history]


def _transaction(transaction: recorded.RecordedTransaction) -> dict[str, Any]:
    return {
        "succeeded": transaction.succeeded,
        "revision": transaction.revision,
        "timestamp": transaction.timestamp,
        "puts": {key: data.hex() for key, data in transaction.puts},
        "removes": list(transaction.removes),
    }
