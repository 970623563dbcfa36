"""The layout in PostgreSQL is lakeFS's, and scans of a token that statistics know nothing of stay scans."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import text

from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from tools.servers.postgres import PostgresServer


@pytest.fixture
def name(postgres: PostgresServer) -> str:
    return postgres.create()


def test_layout(postgres: PostgresServer, name: str) -> None:
    """Many at once create it, as servers do that start together."""
    stores = [open_key_value_store(postgres.url(name)) for _ in range(4)]
    threads = [threading.Thread(target=store.migrate) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stores[0].set("repo-main:1", b"a\xff", b"v")
    columns = postgres.execute(
        "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = 'kv'"
        " ORDER BY ordinal_position",
        database=name,
    )
    assert columns == [(column, "bytea", "NO") for column in ("partition_key", "key", "value")]
    children = postgres.execute(
        "SELECT c.relname::text, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c"
        " ON c.oid = i.inhrelid WHERE i.inhparent = 'kv'::regclass",
        database=name,
    )
    assert sorted(children) == sorted(
        (f"kv_{child}", f"FOR VALUES WITH (modulus 100, remainder {child})") for child in range(100)
    )
    shown = postgres.execute("SELECT partition_key, key, value FROM kv_v", database=name)
    assert shown == [("repo-main:1", "a\\377", b"v")]
    for store in stores:
        store.close()


def test_set_up_waits_for_a_server_that_sets_up(postgres: PostgresServer, name: str) -> None:
    """lakeFS locks the FNV-1a hash (32 bits) of "lakefs:kv"."""
    server, store = open_key_value_store(postgres.url(name)), open_key_value_store(postgres.url(name))
    done = threading.Event()

    def migrate() -> None:
        store.migrate()
        done.set()

    thread = threading.Thread(target=migrate)
    with server.database.engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(4109714936)"))
        thread.start()
        assert not done.wait(0.3)
    thread.join()
    assert done.is_set()
    server.close()
    store.close()


def test_a_page_is_read_from_the_index(kv: SqlKeyValueStore) -> None:
    """Without statistics the database would sort all that is left of the token for each page."""
    if kv.database.engine.dialect.name != "postgresql":
        return
    kv.set_many("p", [(b"%08d" % number, bytes(100)) for number in range(3000)])
    statement = "EXPLAIN SELECT key, value FROM kv WHERE partition_key = 'p' AND key > '1' ORDER BY key LIMIT 1000"
    plan = kv.database.alone(lambda connection: [row[0] for row in connection.execute(text(statement))])
    assert not [line for line in plan if "Sort" in line or "Bitmap" in line], plan
