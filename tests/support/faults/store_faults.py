"""A process or a connection that dies at one statement of a database: every statement and commit counted, one the last.

The way in is SQLAlchemy's dialect, below everything that a store does: what it sees are the errors of the driver.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Generic, TypeVar
from unittest.mock import patch
from urllib.parse import urlsplit

import obstore
import pytest
from sqlalchemy import event

from compaction.storage.database import Database
from compaction.storage.objects.store import ObjectStorage
from support.timing import each_call

D = TypeVar("D", bound=Database)


class Death(BaseException):
    """The process is gone: not an Exception, nothing may catch it."""


class Fault(Enum):
    """What happens at the chosen call."""

    DEATH = "the process dies"
    LOST = "the connection is lost"


class When(Enum):
    """Before the statement reaches the database, or after it was carried out and before the answer arrives."""

    BEFORE = "before"
    AFTER = "after"


@dataclass
class Interrupted(AbstractContextManager["Interrupted[D]"], Generic[D]):
    """Interrupts call number `at` (0-based) of all databases given, once; without `at` it only counts (`calls`)."""

    database: D
    at: int | None = None
    when: When = When.BEFORE
    fault: Fault = Fault.DEATH
    calls: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Interrupted[D]:
        engine = self.database.engine
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            listener = self._statement(name)
            event.listen(engine, name, listener)
            self._stack.callback(event.remove, engine, name, listener)
        commit = engine.dialect.do_commit

        def do_commit(connection: Any) -> None:
            self._call("COMMIT", connection, lambda: commit(connection))

        self._stack.enter_context(patch.object(engine.dialect, "do_commit", do_commit))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _statement(self, name: str) -> Callable[..., bool]:
        def listener(cursor: Any, statement: str, *rest: Any) -> bool:
            context = rest[-1]
            parameters = rest[:-1]
            connection = context.root_connection.connection.driver_connection if context else cursor.connection
            run = cursor.executemany if name == "do_executemany" else cursor.execute
            self._call(" ".join(statement.split()[:3]), connection, lambda: run(statement, *parameters))
            return True

        return listener

    def _call(self, name: str, connection: Any, run: Callable[[], object]) -> None:
        number = len(self.calls)
        self.calls.append(name)
        if number == self.at and self.when is When.BEFORE:
            self._end(connection)
        run()
        if number == self.at:
            self._end(connection)

    def _end(self, connection: Any) -> None:
        raw = getattr(connection, "driver_connection", None) or connection
        if self.fault is Fault.DEATH:
            if isinstance(raw, sqlite3.Connection):
                raw.rollback()  # the end of a process releases its locks; a closed connection with a cursor does not
            raw.close()
            raise Death
        if isinstance(raw, sqlite3.Connection):
            # A file does not go away; somebody else has it locked. What was not committed is rolled back by our side.
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        raw.pgconn.finish()
        raw.execute("SELECT 1")


def interruptions(calls: list[str]) -> list[tuple[int, When, str]]:
    """(number, moment, name) of an undisturbed run's calls; before a call is the same as after the last one."""
    from support.timing import each_call  # with Hypothesis, of which processes that only die have no need

    last = len(calls) - 1
    return [*((number, When.BEFORE, calls[number]) for number in each_call(calls)), (last, When.AFTER, calls[last])]


# A key-value store and an object storage that end the process, as far as the code can tell, at one of their calls.

KV_CALLS = ("get", "set", "set_if", "delete", "set_many", "delete_many", "scan")
OBJECT_CALLS = ("put", "delete", "head", "get_range", "list")


class Moment(Enum):
    """Whether the call of the crash was made."""

    BEFORE = auto()
    AFTER = auto()


class Killed(BaseException):
    """The process ends here. No error of the program: nothing handles it."""


class Fate:
    """Notes the names of calls, and ends everything at the call number `at` (None: never) and at each one after it.

    With `lost`, the answer of that one call gets lost instead: it was carried out, and the error is raised.
    """

    def __init__(
        self, at: int | None = None, when: Moment = Moment.BEFORE, *, lost: Callable[[str], Exception] | None = None
    ) -> None:
        self.names: list[str] = []
        self.at = at
        self.when = when
        self.lost = lost

    @property
    def calls(self) -> list[str]:
        """The names of the calls, in order."""
        return self.names

    def guard(self, target: Any, names: tuple[str, ...]) -> Any:
        """A stand-in for `target` whose calls count."""
        return _Guarded(self, target, names)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that counts."""

        def guarded(*args: Any, **kwargs: Any) -> Any:
            number = len(self.names)
            self.names.append(name)
            if self.at is None or number < self.at or (self.lost is not None and number > self.at):
                return call(*args, **kwargs)
            if self.lost is not None:
                _carried_out(call(*args, **kwargs))
                raise self.lost(name)
            if number == self.at and self.when is Moment.AFTER:
                _carried_out(call(*args, **kwargs))
            raise Killed

        return guarded


def _carried_out(result: Any) -> None:
    """A scan has not begun before its first page."""
    if hasattr(result, "__next__"):
        next(iter(result), None)


class _Guarded:
    def __init__(self, fate: Fate, target: Any, names: tuple[str, ...]) -> None:
        self._fate, self._target, self._names = fate, target, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._fate.around(name, found) if name in self._names else found


# Objects that look old to their store, and stores that die at one call: for tests of what is deleted by age.

DAY = 86_400

Aging = Callable[[ObjectStorage, str, float], None]
"""`age(objects, path, seconds)`: the object was last written so long ago."""
CALLS = ("get", "head", "put", "delete", "list")


@pytest.fixture
def age(request: pytest.FixtureRequest) -> Aging:
    """Both servers keep their objects as files."""

    def set_age(objects: ObjectStorage, path: str, seconds: float) -> None:
        file = root_of(request, objects) / path
        then = file.stat().st_mtime - seconds
        os.utime(file, (then, then))

    return set_age


def root_of(request: pytest.FixtureRequest, objects: ObjectStorage) -> Path:
    """The folder in which the objects are files."""
    parts = urlsplit(objects.url)
    if parts.scheme != "s3":
        return Path(objects.url)
    buckets: Path = request.getfixturevalue("s3").gateway.buckets
    return buckets / parts.netloc / parts.path.strip("/")


@dataclass
class DyingStore:
    """The process dies at call number `at` (0-based) of any object store; without `at` calls are only counted.

    A deletion of many that dies in the middle has deleted the first half of them.
    """

    at: int | None = None
    when: When = When.BEFORE
    calls: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> DyingStore:
        for name in CALLS:
            self._stack.enter_context(patch.object(obstore, name, self._wrapped(name, getattr(obstore, name))))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any, **options: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if number == self.at and self.when is When.BEFORE:
                if name == "delete" and not isinstance(arguments[1], str):
                    call(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise Death
            answer = call(*arguments, **options)
            if number == self.at:
                raise Death
            return answer

        return dying


def deaths(calls: list[str]) -> list[tuple[int, When]]:
    """Before each call, and after each that writes."""
    return [
        (number, when)
        for number in each_call(calls)
        for when in (When.BEFORE, When.AFTER)
        if when is When.BEFORE or calls[number] in {"put", "delete"}
    ]
