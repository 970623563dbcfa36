"""A process or a connection that dies at one statement of a database: every statement and commit counted, one the last.

The way in is SQLAlchemy's dialect, below everything that a store does: what it sees are the errors of the driver.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar
from unittest.mock import patch

from sqlalchemy import event

from compaction.storage.database import Database

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
    from support.depth import each_call  # with Hypothesis, of which processes that only die have no need

    last = len(calls) - 1
    return [*((number, When.BEFORE, calls[number]) for number in each_call(calls)), (last, When.AFTER, calls[last])]
