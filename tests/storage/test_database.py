"""Connections and what is tried again: a database that is away or closed to us; and secrets stay secrets."""

from __future__ import annotations

import gc
import socket
import sqlite3
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, text

from compaction.blocks.index.tables import IndexDatabase
from compaction.local.cluster.certs import Authority, ensure_authority
from compaction.staging.kv.sql import KeyValueDatabase
from compaction.storage.database import Database
from compaction.storage.errors import (
    DatabaseError,
    DatabaseUnavailableError,
    DatabaseUnreachableError,
    DatabaseUrlError,
)
from tools.servers.postgres import PostgresServer


def ask(connection: Connection) -> int:
    return int(connection.execute(text("SELECT 1")).scalar_one())


@pytest.mark.parametrize(
    "url",
    [
        "", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///x.db?mode=ro", "mysql://u:hunter2@h/d",
        "postgresql://u:hunter2@h", "u:hunter2@h/db", "postgresql://u:hunter2@h:port/db",
    ],
)  # fmt: skip
def test_urls_that_lead_to_no_database(url: str) -> None:
    with pytest.raises(DatabaseUrlError) as caught:
        Database.open(url)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_the_connection_strings_of_libpq_and_of_lakefs(postgres: PostgresServer) -> None:
    url = postgres.url("postgres")
    assert url.startswith("postgresql://")
    database = Database.open(url.replace("postgresql://", "postgres://", 1))
    assert database.read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar()) == 1
    database.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_connection_that_is_in_use_is_closed_when_its_user_has_done_with_it(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Seen beside a load: it went back to a pool that was closed before, and stayed open."""
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/kv.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url("postgres")
    database = Database.open(url)
    with database.snapshot() as connection:
        assert ask(connection) == 1
        raw = connection.connection.dbapi_connection
        assert raw is not None
        database.close()
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        raw.cursor().execute("SELECT 1")


def test_a_refused_login_is_no_reason_to_try_again(postgres: PostgresServer) -> None:
    wrong = postgres.url("postgres").replace(postgres.password, "hunter2")
    database = Database.open(wrong, sleep=lambda seconds: pytest.fail("it was tried again"))
    with pytest.raises(DatabaseError, match="refused the login") as caught:
        database.read(ask)
    shown = "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in shown + repr(caught.value) + database.name
    database.close()


def test_a_database_that_is_away_is_asked_until_the_patience_ends() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    database = Database.open(
        "postgresql://u:hunter2@127.0.0.1:1/db?password=hunter3", patience=60, clock=lambda: now[0], sleep=sleep
    )
    with pytest.raises(DatabaseUnavailableError, match="refused the connection") as caught:
        database.read(ask)
    assert 50 < now[0] <= 60
    assert "hunter" not in "".join(traceback.format_exception(caught.value))
    database.close()


@contextmanager
def answering_with_tls(authority: Authority | None, *, host: str = "127.0.0.1") -> Iterator[int]:
    """The port of a server that goes as far as TLS, as PostgreSQL does; None: one that says it has none."""
    with socket.create_server((host, 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.recv(8)  # SSLRequest
                        connection.sendall(b"N" if authority is None else b"S")
                        if authority is not None:
                            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                            context.load_cert_chain(*authority.server)
                            with context.wrap_socket(connection, server_side=True) as secure:
                                secure.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", [Database, IndexDatabase, KeyValueDatabase])
def test_a_server_that_is_not_trusted_is_no_reason_to_try_again(tmp_path: Path, kind: type[Database]) -> None:
    ours = ensure_authority(tmp_path / "ours")
    other = ensure_authority(tmp_path / "other").ca.read_text()

    def refused(port: int, authorities: str, *, host: str = "127.0.0.1", options: str = "") -> str:
        url = f"postgresql://u:hunter2@{host}:{port}/db{options}"
        database = kind.open(url, authorities=authorities, sleep=lambda seconds: pytest.fail("it was tried again"))
        with pytest.raises(DatabaseUnreachableError) as caught:
            database.read(ask)
        database.close()
        return str(caught.value)

    with answering_with_tls(ours) as port:
        assert "of an authority that is not trusted here: name the authority in caBundle" in refused(port, other)
        missing = "?sslmode=verify-full&sslrootcert=/nowhere/ca.crt"
        assert "correct sslrootcert in the URL" in refused(port, other, options=missing), "the URL's own words count"
        trusted = kind.open(f"postgresql://u@127.0.0.1:{port}/db", authorities=ours.ca.read_text(), patience=0)
        with pytest.raises(DatabaseUnavailableError) as caught:
            trusted.read(ask)
        assert not isinstance(caught.value, DatabaseUnreachableError), "it came as far as the login"
        trusted.close()
    # The server's certificate names localhost and 127.0.0.1, and no other address of this machine.
    with answering_with_tls(ours, host="127.0.0.2") as port:
        assert "a certificate of another host" in refused(port, ours.ca.read_text(), host="127.0.0.2")
    with answering_with_tls(None) as port:
        assert "does not speak TLS: turn it on there" in refused(port, other)


def test_a_url_that_opens_nothing_leaves_no_directory_of_authorities(tmp_path: Path) -> None:
    """One that is left to the collector is a warning, which is an error here."""
    with pytest.raises(DatabaseUrlError):
        Database.open("mysql://u@h/d", authorities=ensure_authority(tmp_path).ca.read_text())
    gc.collect()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path}/missing/index.db")
    with pytest.raises(DatabaseUnavailableError, match="Check the file"):
        database.read(ask)
    database.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "index.db").write_bytes(b"PAR1" * 1000)
    database = Database.open(f"sqlite:///{tmp_path}/index.db")
    with pytest.raises(DatabaseError, match="not a database"):
        database.read(ask)
    database.close()
