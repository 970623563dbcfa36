"""The database of an index: connections, transactions in order, and what is tried again.

Changes are made one after the other. Each begins by counting `version` up in the one row of `block_index`: in SQLite
the transaction has the write lock anyway (BEGIN IMMEDIATE), in PostgreSQL the row is locked until the commit (READ
COMMITTED, so every later statement sees all that was committed before the lock was given). So what a change has checked
still holds when it commits, in both databases for the same reason, and a version that a reader sees includes all
smaller ones. The price: changes per second are bounded by commits per second; writers register many blocks at once.

A transaction whose connection was lost may have been committed. It starts again, so everything done here is
idempotent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, select, text, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from compaction.exceptions import IndexSchemaError, IndexUrlError
from compaction.stores.blocks.index.faults import display, may_succeed_again, translated
from compaction.stores.blocks.index.tables import HEAD

T = TypeVar("T")

DEFAULT_PATIENCE: Final = 30.0
LOCK_SECONDS: Final = 10.0
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
_POSTGRES: Final[dict[str, Any]] = {
    "application_name": "compaction-index",
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "tcp_user_timeout": 20_000,  # ms: a machine that vanished is noticed within it
}


@dataclass(slots=True)
class IndexChange:
    """A change under way: no other can start. `version` is its number."""

    connection: Connection
    version: int

    def places(self, count: int) -> range:
        """The next places at the end of the queue."""
        statement = update(HEAD).values(arrivals=HEAD.c.arrivals + count).returning(HEAD.c.arrivals)
        last = self.connection.execute(statement).scalar_one()
        return range(last - count + 1, last + 1)


class IndexDatabase:
    """Runs reads and changes; made by `open_database`. May be used by many threads."""

    def __init__(
        self,
        engine: Engine,
        *,
        patience: float,
        lock_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.engine = engine
        self.name = display(engine.url)
        self._postgres = engine.dialect.name == "postgresql"
        self._readers: Engine = engine
        if self._postgres:
            self._readers = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            self._writers = engine.execution_options(isolation_level="READ COMMITTED")
        else:
            self._writers = engine.execution_options(writes=True)
        self._limits = _LIMITS.bindparams(limit=f"{lock_seconds * 1000:.0f}ms")
        self._patience = patience
        self._clock = clock
        self._sleep = sleep

    def read(self, body: Callable[[Connection], T]) -> T:
        """Run `body` on one state of the index. It may run more than once.

        Raises:
            IndexUnavailableError, IndexSchemaError, BlockIndexError
        """

        def once() -> T:
            with self._readers.begin() as connection:
                return body(connection)

        return self._patiently(once)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """One state of the index for as long as the block runs; errors in it are translated, not tried again."""
        try:
            with self._readers.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise translated(error, self.name) from error

    def change(self, body: Callable[[IndexChange], T]) -> T:
        """Run `body` as one change: all of it happens, or nothing. It may run more than once, also after a commit whose
        answer was lost.

        Raises:
            IndexUnavailableError: not possible within the patience; it may have happened nevertheless.
            IndexSchemaError, BlockIndexError
        """

        def once() -> T:
            with self._writers.begin() as connection:
                if self._postgres:
                    connection.execute(self._limits)
                version = connection.execute(_NEXT_VERSION).scalar_one_or_none()
                if version is None:
                    raise IndexSchemaError(self.name, "the row of `block_index` is missing: restore the database")
                return body(IndexChange(connection, version))

        return self._patiently(once)

    def aside(self, body: Callable[[Connection], T]) -> T:
        """Run `body` as a write that changes nothing of what readers and planners see: it has no version, and waits for
        no change. It may run more than once.

        Raises:
            IndexUnavailableError, IndexSchemaError, BlockIndexError
        """

        def once() -> T:
            with self._writers.begin() as connection:
                if self._postgres:
                    connection.execute(self._limits)
                return body(connection)

        return self._patiently(once)

    def ordered(self, body: Callable[[Connection], T]) -> T:
        """Run `body` in a transaction that may change tables; the only one of its kind. For `schema`."""

        def once() -> T:
            with self._writers.begin() as connection:
                if self._postgres:
                    connection.execute(
                        text("SELECT pg_advisory_xact_lock(hashtextextended('compaction block index', 0))")
                    )
                return body(connection)

        return self._patiently(once)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self.engine.dispose()

    def _patiently(self, once: Callable[[], T]) -> T:
        until = self._clock() + self._patience
        wait = _FIRST_WAIT
        while True:
            try:
                return once()
            except SQLAlchemyError as error:
                if not may_succeed_again(error) or self._clock() + wait >= until:
                    raise translated(error, self.name) from error
            self._sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)


_NEXT_VERSION: Final = update(HEAD).values(version=HEAD.c.version + 1).returning(HEAD.c.version)
_LIMITS: Final = text(
    "SELECT set_config('lock_timeout', :limit, true), set_config('idle_in_transaction_session_timeout', :limit, true)"
)
"""A client that stops in the middle of a change must not stop everybody for good."""


def open_database(
    url: str,
    *,
    patience: float = DEFAULT_PATIENCE,
    lock_seconds: float = LOCK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> IndexDatabase:
    """The database behind an URL (`sqlite:///dir/index.db`, `postgresql://user:password@host/database`); nothing is
    connected yet. `patience`: seconds for which a call is repeated while the database is away or busy; `lock_seconds`:
    how long a change waits for those before it, and how long one that stands still may keep others waiting.

    Raises:
        IndexUrlError
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # SQLAlchemy's own words may quote the URL, and with it the password.
        raise IndexUrlError("index", "its URL cannot be read: sqlite:///file, or postgresql://host/database") from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database and parsed.database != ":memory:" and not parsed.query:
            engine = _sqlite(parsed, lock_seconds)
        case "postgresql" if parsed.database:
            engine = _postgres(parsed, lock_seconds)
        case "sqlite" | "postgresql":
            raise IndexUrlError(
                "index", "its URL names no file or database: sqlite:///file, postgresql://host/database"
            )
        case other:
            raise IndexUrlError("index", f"{other} cannot hold it: use sqlite:///file, or postgresql://host/database")
    return IndexDatabase(engine, patience=patience, lock_seconds=lock_seconds, clock=clock, sleep=sleep)


def _sqlite(url: URL, lock_seconds: float) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"),
        hide_parameters=True,
        connect_args={"timeout": lock_seconds, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: object) -> None:
        # FULL: a commit that was answered survives the loss of power, as with PostgreSQL.
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that begins by reading and then writes would fail at once when another wrote in between.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgres(url: URL, lock_seconds: float) -> Engine:
    defaults = {name: value for name, value in _POSTGRES.items() if name not in url.query}
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        hide_parameters=True,
        # Prepared statements do not survive a pooler that gives each transaction another session.
        connect_args={"prepare_threshold": None, **defaults},
        pool_size=5,
        max_overflow=20,
        pool_timeout=lock_seconds,
    )


def head_version(connection: Connection) -> int:
    """The number of the last change that this reader sees."""
    return int(connection.execute(select(HEAD.c.version)).scalar_one())
