"""Connections and what is tried again: a database that is away or closed to us; and secrets stay secrets."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from compaction.exceptions import DatabaseError, DatabaseUnavailableError, DatabaseUrlError
from compaction.local.servers.postgres import PostgresServer
from compaction.stores.database.engine import Database


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
