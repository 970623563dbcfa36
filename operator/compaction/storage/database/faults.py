"""What an error of a database means: try again, or tell whom.

Two questions only. Can the same transaction succeed when it starts again (a lost connection, a lock that was not given
in time, a server that restarts)? And what does a person need to know? Messages never hold credentials.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from compaction.storage.errors import (
    DatabaseError,
    DatabaseLoginError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
    DatabaseUnreachableError,
)

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
    """Whether the whole transaction should start again."""
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
