"""Key-value stores for tests: the fixtures `kv_url` and `kv` (each test runs on SQLite and PostgreSQL)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.staging.kv.port import KeyValueStore, Pair
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from tools.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def _postgres_kv_database(postgres: PostgresServer) -> str:
    """The name of a database with a key-value store, which tests use one after the other."""
    name = postgres.create()
    store = open_key_value_store(postgres.url(name))
    store.migrate()
    store.close()
    return name


@pytest.fixture
def postgres_kv(postgres: PostgresServer, _postgres_kv_database: str) -> str:
    """The name of a database with an empty key-value store: no earlier test has a row or a connection in it."""
    postgres.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        "DELETE FROM kv",
        database=_postgres_kv_database,
    )
    return _postgres_kv_database


@pytest.fixture(params=["sqlite", "postgresql"])
def kv_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty key-value store of the test's own."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/kv.db"
        store = open_key_value_store(url)
        store.migrate()
        store.close()
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name: str = request.getfixturevalue("postgres_kv")
    yield server.url(name)


@pytest.fixture
def kv(kv_url: str) -> Iterator[SqlKeyValueStore]:
    """An empty key-value store of the test's own."""
    store = open_key_value_store(kv_url)
    yield store
    store.close()


def rows_of(store: KeyValueStore, partition: str, start: bytes = b"", stop: bytes | None = None) -> list[Pair]:
    """All rows of a scan, with pages small enough that there are several."""
    return [row for page in store.scan(partition, start, stop, page=3) for row in page]
