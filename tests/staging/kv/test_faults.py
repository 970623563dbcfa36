"""Connections that die and answers that are lost, at each statement; and writers that race."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import text

from compaction.staging.errors import PredicateFailedError
from compaction.staging.kv.port import Presence
from compaction.staging.kv.sql import KeyValueDatabase, SqlKeyValueStore, open_key_value_store
from compaction.storage.errors import DatabaseUnavailableError
from support.clocks import PATIENCE_SECONDS
from support.faults.store_faults import Fault, Interrupted, When
from support.staging.staging_repos import rows_of
from tools.servers.postgres import PostgresServer

Call = Callable[[SqlKeyValueStore], object]

CALLS: dict[str, tuple[Call, list[tuple[bytes, bytes]]]] = {
    "set": (lambda kv: kv.set("p", b"a", b"new"), [(b"a", b"new"), (b"b", b"2")]),
    "swap": (lambda kv: kv.set_if("p", b"a", b"new", b"1"), [(b"a", b"new"), (b"b", b"2")]),
    "add": (lambda kv: kv.set_if("p", b"c", b"new", Presence.ABSENT), [(b"a", b"1"), (b"b", b"2"), (b"c", b"new")]),
    "update": (lambda kv: kv.set_if("p", b"a", b"new", Presence.PRESENT), [(b"a", b"new"), (b"b", b"2")]),
    "swap all": (
        lambda kv: kv.set_all_if([("p", b"a", b"new", b"1"), ("p", b"b", b"new", b"2")]),
        [(b"a", b"new"), (b"b", b"new")],
    ),
    "delete": (lambda kv: kv.delete("p", b"a"), [(b"b", b"2")]),
    "set_many": (lambda kv: kv.set_many("p", [(b"c", b"3"), (b"a", b"9")]), [(b"a", b"9"), (b"b", b"2"), (b"c", b"3")]),
    "delete_many": (lambda kv: kv.delete_many("p", [b"a", b"b"]), []),
    "get": (lambda kv: kv.get("p", b"a"), [(b"a", b"1"), (b"b", b"2")]),
    "get_many": (lambda kv: kv.get_many("p", [b"b", b"a", b"c"]), [(b"a", b"1"), (b"b", b"2")]),
    "scan": (lambda kv: rows_of(kv, "p"), [(b"a", b"1"), (b"b", b"2")]),
}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_that_is_lost_at_any_statement(kv: SqlKeyValueStore, name: str, when: When) -> None:
    """The call is repeated until it is answered, and what the first try wrote does not make the second one fail."""
    call, expected = CALLS[name]
    kv.set_many("p", [(b"a", b"1"), (b"b", b"2")])
    with Interrupted(kv.database) as counted:
        answer = call(kv)
    assert counted.calls
    for at in range(len(counted.calls)):
        kv.delete_many("p", [b"a", b"b", b"c"])
        kv.set_many("p", [(b"a", b"1"), (b"b", b"2")])
        with Interrupted(kv.database, at=at, when=when, fault=Fault.LOST) as faulty:
            assert call(kv) == answer
        assert len(faulty.calls) > at
        assert rows_of(kv, "p") == expected


def test_a_repeated_try_fails_when_another_writer_came_between(kv: SqlKeyValueStore) -> None:
    kv.set("p", b"k", b"0")

    def sleep(seconds: float) -> None:
        kv.set("p", b"k", b"another")

    database = KeyValueDatabase(kv.database.engine, patience=30, lock_seconds=10, clock=time.monotonic, sleep=sleep)
    with Interrupted(database, at=0, when=When.BEFORE, fault=Fault.LOST), pytest.raises(PredicateFailedError):
        SqlKeyValueStore(database).set_if("p", b"k", b"1", b"0")
    assert kv.get("p", b"k") == b"another"


@pytest.mark.parametrize("round_", range(3))
def test_one_of_many_writers_wins(kv_url: str, round_: int) -> None:
    stores = [open_key_value_store(kv_url) for _ in range(2)]
    stores[0].set("p", b"swap", b"0")
    for key, expected in ((b"add", Presence.ABSENT), (b"swap", b"0")):
        barrier = threading.Barrier(8)
        winners: list[bytes] = []

        def write(number: int, key: bytes = key, expected: Presence | bytes = expected) -> None:
            value = b"writer %d" % number
            barrier.wait(PATIENCE_SECONDS)  # noqa: B023
            try:
                stores[number % 2].set_if("p", key, value, expected)
            except PredicateFailedError:
                return
            winners.append(value)  # noqa: B023

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [stores[0].get("p", key)] == winners
    for store in stores:
        store.close()


def test_writers_of_many_rows_do_not_block_each_other(kv_url: str) -> None:
    """They pass the same keys in different orders."""
    stores = [open_key_value_store(kv_url, patience=60) for _ in range(2)]
    keys = [b"%03d" % number for number in range(300)]
    errors: list[BaseException] = []

    def write(store: SqlKeyValueStore, order: list[bytes]) -> None:
        try:
            for number in range(15):
                store.set_many("p", [(key, b"%d" % number) for key in order])
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [
        threading.Thread(target=write, args=(stores[0], keys)),
        threading.Thread(target=write, args=(stores[1], keys[::-1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert rows_of(stores[0], "p") == [(key, b"14") for key in keys]
    for store in stores:
        store.close()


def test_scans_while_rows_come_and_go(kv_url: str) -> None:
    """What stays is seen once and in order, whatever happens around it."""
    reader, writer = open_key_value_store(kv_url), open_key_value_store(kv_url, patience=60)
    stays = [b"%04d/stays" % number for number in range(400)]
    reader.set_many("p", [(key, b"") for key in stays])
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            keys = [b"%04d/goes" % ((number * 37 + place * 11) % 400) for place in range(20)]
            writer.set_many("p", [(key, b"x") for key in keys])
            writer.delete_many("p", keys)
            number += 1

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(10):
            seen = [key for page in reader.scan("p", page=16) for key, _ in page]
            assert seen == sorted(set(seen))
            assert [key for key in seen if key.endswith(b"stays")] == stays
    finally:
        stop.set()
        thread.join()
    reader.close()
    writer.close()


WRITES = [name for name, (_, rows) in CALLS.items() if name not in {"get", "get_many", "scan", "add"}]


@pytest.mark.parametrize("name", WRITES)
def test_a_lock_that_is_never_given(kv: SqlKeyValueStore, kv_url: str, name: str) -> None:
    """A writer that stopped in the middle of a transaction: others report it, and do not hang."""
    kv.set_many("p", [(b"a", b"1"), (b"b", b"2")])
    database = KeyValueDatabase.open(kv_url, patience=0.3, lock_seconds=0.05)
    store = SqlKeyValueStore(database)
    with kv.database.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("COMMIT")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SELECT 1 FROM kv WHERE partition_key = 'p' FOR UPDATE"))
        with pytest.raises(DatabaseUnavailableError, match="did not answer in time"):
            CALLS[name][0](store)
        assert rows_of(store, "p") == [(b"a", b"1"), (b"b", b"2")]
    CALLS[name][0](store)
    assert rows_of(store, "p") == CALLS[name][1]
    store.close()


def test_a_backend_that_is_killed_while_a_write_waits(postgres: PostgresServer, postgres_kv: str) -> None:
    url = postgres.url(postgres_kv)
    holder, store = open_key_value_store(url), open_key_value_store(url)
    store.set("killed", b"k", b"0")
    failed: list[BaseException] = []

    def swap() -> None:
        try:
            store.set_if("killed", b"k", b"1", b"0")
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    thread = threading.Thread(target=swap)
    with holder.database.engine.begin() as connection:
        connection.execute(text("SELECT 1 FROM kv WHERE partition_key = 'killed' FOR UPDATE"))
        thread.start()
        waiting = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted"
        until = time.monotonic() + PATIENCE_SECONDS
        while not postgres.execute(waiting, database=postgres_kv):
            assert time.monotonic() < until, "the write does not wait for the lock"
    thread.join()
    assert failed == []
    assert store.get("killed", b"k") == b"1"
    holder.set("killed", b"k", b"2")
    with pytest.raises(PredicateFailedError):
        store.set_if("killed", b"k", b"3", b"1")
    holder.delete("killed", b"k")
    holder.close()
    store.close()


def test_a_database_that_is_away_is_named_without_its_password() -> None:
    store = open_key_value_store("postgresql://u:hunter2@127.0.0.1:1/db", patience=0.01)
    assert "hunter2" not in store.name
    with pytest.raises(DatabaseUnavailableError, match=r'Key-value store database "db" at .* refused'):
        store.get("p", b"k")
    store.close()
