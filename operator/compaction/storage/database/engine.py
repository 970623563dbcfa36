"""A SQL database that holds what a store knows: connections, transactions, and what is tried again.

SQLite embedded, PostgreSQL for many writers. In SQLite a transaction that writes has the write lock from its beginning
(BEGIN IMMEDIATE); in PostgreSQL it runs in READ COMMITTED, so every statement sees what was committed before the locks
it waited for were released.

A transaction whose connection was lost may have been committed. It starts again, so everything done here is
idempotent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Final, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from compaction.storage.database.faults import display, may_succeed_again, translated
from compaction.storage.errors import DatabaseUrlError

T = TypeVar("T")

DEFAULT_PATIENCE: Final = 30.0
LOCK_SECONDS: Final = 10.0
_FORMS: Final = "use sqlite:///file, or postgresql://host/database"
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
_POSTGRES: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives_idle": 30,
    "tcp_user_timeout": 20_000,  # ms: a machine that vanished is noticed within it
}


class Database:
    """Runs transactions; made by `open`. May be used by many threads. A kind of store derives its own from it."""

    holds: ClassVar[str] = "store"
    """What is in it, for messages and for the name of its connections."""
    no_tables: ClassVar[str] = "they are created when the store is opened"
    """What to do when its tables are missing, for messages."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        authorities: str = "",
        patience: float = DEFAULT_PATIENCE,
        lock_seconds: float = LOCK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Self:
        """The database behind a URL (`sqlite:///dir/index.db`, `postgresql://user:password@host/database`); nothing is
        connected yet. `authorities`: certificates in PEM; then PostgreSQL has to show one that they have signed for its
        host, unless the URL says another sslmode. `patience`: seconds for which a call is repeated while the database
        is away or busy; `lock_seconds`: how long a write waits for those before it, and how long one that stands still
        may keep others waiting.

        Raises:
            DatabaseUrlError
        """
        with ExitStack() as stack:
            file = None
            if authorities:
                # libpq reads them from a file, again at each connection.
                file = Path(stack.enter_context(TemporaryDirectory(prefix="compaction-authorities-"))) / "ca.crt"
                file.write_text(authorities)
            engine = _engine(url, cls.holds, lock_seconds, file)
            found = cls(engine, patience=patience, lock_seconds=lock_seconds, clock=clock, sleep=sleep)
            found._held = stack.pop_all()
        return found

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
        self._held = ExitStack()
        self.name = display(engine.url, self.holds)
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
        """Run `body` on one state of the database. It may run more than once.

        Raises:
            DatabaseUnavailableError, DatabaseSchemaError, DatabaseError
        """

        def once() -> T:
            with self._readers.begin() as connection:
                return body(connection)

        return self._patiently(once)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """One state of the database for as long as the block runs; errors in it are translated, not tried again."""
        try:
            with self._readers.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise translated(error, self.name, self.no_tables) from error

    def write(self, body: Callable[[Connection], T]) -> T:
        """Run `body` as one transaction: all of it happens, or nothing. It may run more than once, also after a commit
        whose answer was lost.

        Raises:
            DatabaseUnavailableError: not possible within the patience; it may have happened nevertheless.
            DatabaseSchemaError, DatabaseError
        """

        def once() -> T:
            with self._writers.begin() as connection:
                if self._postgres:
                    connection.execute(self._limits)
                return body(connection)

        return self._patiently(once)

    def ordered(self, body: Callable[[Connection], T]) -> T:
        """Run `body` in a transaction that may change tables; the only one of its kind. For migrations."""

        def once() -> T:
            with self._writers.begin() as connection:
                if self._postgres:
                    connection.execute(_ONE_AT_A_TIME.bindparams(lock=f"compaction {self.holds}"))
                return body(connection)

        return self._patiently(once)

    def close(self) -> None:
        """Close all connections, those that other threads use when they have done with them. It cannot be used any
        more.
        """
        # Such a one goes back to the pool that it came from, where nothing would close it.
        event.listen(self.engine.pool, "checkin", lambda _connection, record: record.invalidate())
        self.engine.dispose()
        self._held.close()

    def _patiently(self, once: Callable[[], T]) -> T:
        until = self._clock() + self._patience
        wait = _FIRST_WAIT
        while True:
            try:
                return once()
            except SQLAlchemyError as error:
                if not may_succeed_again(error) or self._clock() + wait >= until:
                    raise translated(error, self.name, self.no_tables) from error
            self._sleep(wait * random.uniform(0.5, 1.0))
            wait = min(wait * 2, _LONGEST_WAIT)


_ONE_AT_A_TIME: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:lock, 0))")
_LIMITS: Final = text(
    "SELECT set_config('lock_timeout', :limit, true), set_config('idle_in_transaction_session_timeout', :limit, true)"
)
"""A client that stops in the middle of a change must not stop everybody for good."""


def _engine(url: str, holds: str, lock_seconds: float, authorities: Path | None) -> Engine:
    # The form of libpq and of lakeFS's own connection strings.
    if url.startswith("postgres://"):
        url = url.replace("postgres", "postgresql", 1)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # SQLAlchemy's own words may quote the URL, and with it the password.
        raise DatabaseUrlError(holds, f"its URL cannot be read: {_FORMS}") from None
    match parsed.get_backend_name():
        case "sqlite" if parsed.database and parsed.database != ":memory:" and not parsed.query:
            return _sqlite(parsed, lock_seconds)
        case "postgresql" if parsed.database:
            return _postgres(parsed, holds, lock_seconds, authorities)
        case "sqlite" | "postgresql":
            raise DatabaseUrlError(holds, f"its URL names no file or database: {_FORMS}")
        case other:
            raise DatabaseUrlError(holds, f"{other} cannot hold it: {_FORMS}")


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


def _postgres(url: URL, holds: str, lock_seconds: float, authorities: Path | None) -> Engine:
    wanted = {"application_name": f"compaction-{holds}".replace(" ", "-"), **_POSTGRES}
    if authorities is not None:
        wanted |= {"sslmode": "verify-full", "sslrootcert": str(authorities)}
    defaults = {name: value for name, value in wanted.items() if name not in url.query}
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        hide_parameters=True,
        # Prepared statements do not survive a pooler that gives each transaction another session.
        connect_args={"prepare_threshold": None, **defaults},
        # No column is an hstore: the type would be looked for on the first connection.
        use_native_hstore=False,
        pool_size=5,
        max_overflow=20,
        pool_timeout=lock_seconds,
    )
