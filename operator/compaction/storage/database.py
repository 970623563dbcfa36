"""A SQL database that holds what a store knows: connections, transactions, what is tried again, and whom to tell."""

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
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from compaction.storage.errors import (
    DatabaseError,
    DatabaseLoginError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
    DatabaseUnreachableError,
    DatabaseUrlError,
)

# The meaning of an error of a database: try again, or tell whom.
#
# Two questions only. Can the same transaction succeed when it starts again (a lost connection, a lock that was not
# given in time, a server that restarts)? And what does a person need to know? Messages never hold credentials.

_SQLITE_BUSY: Final = frozenset({5, 6, 15})
"""SQLITE_BUSY, LOCKED, PROTOCOL: another process holds the lock."""
_SQLITE_UNAVAILABLE: Final = frozenset({8, 10, 13, 14})
"""READONLY, IOERR, FULL, CANTOPEN: another try at once would end the same."""
_POSTGRES_AGAIN: Final = ("08", "40", "53", "55P03", "57P0", "57014", "25006", "25P03", "58")
"""SQLSTATEs: connection, serialization and deadlock, resources, lock not given in time, server shutting down or
starting, statement cancelled, read-only (a standby that is not promoted yet), idle too long, the server's own input and
output.
"""
_REFUSED_LOGIN: Final = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist")
"""What is said about a login that will not succeed: errors of connecting have no SQLSTATE."""
_UNREACHABLE: Final = {
    "Connection refused": "refused the connection",
    "failed to resolve host": "is unreachable (no such host)",
    "could not translate host name": "is unreachable (no such host)",
    "No route to host": "is unreachable (no route to the host)",
    "Network is unreachable": "is unreachable (network unreachable)",
    "connection timeout expired": "is unreachable (timeout)",
}
"""What is said when there is no connection, and what it means."""
_TLS: Final = {
    "certificate verify failed": "shows a certificate of an authority that is not trusted here: name the authority in "
    "caBundle, or in sslrootcert of the URL",
    "does not match host name": "shows a certificate of another host: write the host that it names into the URL",
    "does not support SSL": "does not speak TLS: turn it on there, or write sslmode=disable into the URL",
    "root certificate file": "cannot be checked, for want of the authorities: correct sslrootcert in the URL",
}
"""What is said when there is no connection that both sides trust, and what to do: another try ends the same."""
_NO_TABLE: Final = "42P01"


def display(url: URL, holds: str) -> str:
    """A URL for messages: what it leads to, without user, password and options, any of which may be a secret."""
    if url.get_backend_name() == "sqlite":
        return f"{_noun(holds)} {url.database}"
    host = url.host or url.query.get("host") or "its socket"
    place = host if isinstance(host, str) else ",".join(host)
    return f'{_noun(holds)} "{url.database}" at {place}{f":{url.port}" if url.port else ""}'


def _noun(holds: str) -> str:
    return f"{holds} database".capitalize()


def may_succeed_again(error: SQLAlchemyError) -> bool:
    """Return whether the whole transaction should start again."""
    if isinstance(error, PoolTimeoutError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return int(code) & 0xFF in _SQLITE_BUSY
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_POSTGRES_AGAIN)
    # Without a state there was no session; SQLite's own errors have a code, its driver's have none.
    words = str(error.orig)
    return isinstance(error, OperationalError | InterfaceError) and not _refused(words) and not _distrust(words)


def _refused(words: str) -> bool:
    return any(said in words for said in _REFUSED_LOGIN)


def _distrust(words: str) -> str:
    return next((meaning for said, meaning in _TLS.items() if said in words), "")


def translated(error: SQLAlchemyError, database: str, no_tables: str) -> DatabaseError:
    """The error to raise once nothing is tried any more. `no_tables`: what to do when the tables are missing."""
    said = str(getattr(error, "orig", None) or error).strip().splitlines()
    words = said[0] if said else type(error).__name__
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
    if state == _NO_TABLE or words.startswith("no such table"):
        return DatabaseSchemaError(database, f"the tables are missing: {no_tables}")
    # First, because what is said of a missing file of authorities is said of a missing database, too.
    if not state and (distrust := _distrust(words)):
        return DatabaseUnreachableError(database, f"{distrust}.")
    if not state and _refused(words):
        return DatabaseLoginError(database, f"refused the login ({words}).")
    if code in _SQLITE_UNAVAILABLE:
        return DatabaseUnavailableError(
            database, f"cannot be used ({words}). Check the file, its directory and the space on its disk."
        )
    if may_succeed_again(error):
        if not state and (cause := next((cause for mark, cause in _UNREACHABLE.items() if mark in words), "")):
            return DatabaseUnreachableError(database, f"{cause}.")
        return DatabaseUnavailableError(database, f"did not answer in time ({words}). Repeating is safe.")
    return DatabaseError(database, f"the database refused: {words}")


# A SQL database that holds what a store knows: connections, transactions, and what is tried again.
#
# SQLite embedded, PostgreSQL for many writers. In SQLite a transaction that writes has the write lock from its
# beginning (BEGIN IMMEDIATE); in PostgreSQL it runs in READ COMMITTED, so every statement sees what was committed
# before the locks it waited for were released.
#
# A transaction whose connection was lost may have been committed. It starts again, so everything done here is
# idempotent.

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
