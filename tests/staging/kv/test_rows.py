"""What a key-value store promises of single rows, of many, and of scans; the same of both databases."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import text

from compaction.staging.errors import KeyValueArgumentError, PredicateFailedError
from compaction.staging.kv.port import MAX_KEY_BYTES, MAX_VALUE_BYTES, Expected, Presence
from compaction.staging.kv.sql import LARGEST_PAGE, SqlKeyValueStore, open_key_value_store
from compaction.storage.errors import DatabaseSchemaError
from support.staging.staging_repos import rows_of
from support.timing import examples
from tools.servers.postgres import PostgresServer

KEYS = [
    b"\x00",
    b"\x00\x00",
    b"a",
    b"a\x00",
    b"a/b",
    b"b",
    b"\xc3\x28",
    b"\xfe\xff",
    b"\xff",
    b"\xff\xff",
    b"\xff\xff\x00",
]


def test_rows_are_read_as_they_were_written(kv: SqlKeyValueStore) -> None:
    assert kv.get("p", b"k") is None
    for value in (b"v", b"", b"\x00\xff" * 9, os.urandom(300_000)):
        kv.set("p", b"k", value)
        assert kv.get("p", b"k") == value


def test_partitions_do_not_see_each_other(kv: SqlKeyValueStore) -> None:
    names = ["p", "P", "p/", "pp", "p\x00", "\u00fc", "\udcff\udc00".replace("\udc00", "x"), "repo-main:4f0c"]
    for number, name in enumerate(names):
        kv.set(name, b"k", b"%d" % number)
    for number, name in enumerate(names):
        assert rows_of(kv, name) == [(b"k", b"%d" % number)]
    kv.delete(names[0], b"k")
    assert [kv.get(name, b"k") is None for name in names] == [True] + [False] * 7


def test_a_name_that_is_not_unicode_keeps_its_bytes(kv: SqlKeyValueStore) -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    kv.set(name, b"k", b"v")
    assert kv.get(name, b"k") == b"v"
    assert kv.get("caf\u00e9", b"k") is None


def test_deletion_is_idempotent(kv: SqlKeyValueStore) -> None:
    kv.delete("nowhere", b"k")
    kv.set("p", b"k", b"v")
    kv.delete("p", b"other")
    assert kv.get("p", b"k") == b"v"
    kv.delete("p", b"k")
    kv.delete("p", b"k")
    assert kv.get("p", b"k") is None


def test_writes_under_a_condition(kv: SqlKeyValueStore) -> None:
    with pytest.raises(PredicateFailedError):
        kv.set_if("p", b"k", b"1", Presence.PRESENT)
    with pytest.raises(PredicateFailedError):
        kv.set_if("p", b"k", b"1", b"0")
    with pytest.raises(PredicateFailedError):
        kv.set_if("p", b"k", b"1", b"")
    assert kv.get("p", b"k") is None
    kv.set_if("p", b"k", b"1", Presence.ABSENT)
    with pytest.raises(PredicateFailedError) as caught:
        kv.set_if("p", b"k", b"1", Presence.ABSENT)
    assert (caught.value.partition, caught.value.key) == ("p", b"k")
    kv.set_if("p", b"k", b"2", b"1")
    for stale in (b"1", b"", b"2\x00"):
        with pytest.raises(PredicateFailedError):
            kv.set_if("p", b"k", b"3", stale)
    assert kv.get("p", b"k") == b"2"
    kv.set_if("p", b"k", b"", Presence.PRESENT)
    kv.set_if("p", b"k", b"4", b"")
    kv.set_if("p", b"k", b"4", b"4")
    assert kv.get("p", b"k") == b"4"


def test_scans_are_in_the_order_of_bytes(kv: SqlKeyValueStore) -> None:
    kv.set_many("p", [(key, key[::-1]) for key in reversed(KEYS)])
    kv.set("q", b"a", b"other")
    assert rows_of(kv, "p") == [(key, key[::-1]) for key in sorted(KEYS)]
    for start in (b"", *KEYS, b"a0", b"\xff\xff\xff"):
        for stop in (None, b"", *KEYS, b"a0", b"\xff\xff\xff"):
            expected = [key for key in sorted(KEYS) if start <= key and (stop is None or key < stop)]
            assert [key for key, _ in rows_of(kv, "p", start, stop)] == expected
    assert rows_of(kv, "nothing") == []


@pytest.mark.parametrize("page", [1, 2, 7, 1000, 10**9])
def test_pages_double_up_to_a_limit(kv: SqlKeyValueStore, page: int) -> None:
    rows = [(b"%06d" % number, b"") for number in range(25_000 if page > 100 else 40)]
    kv.set_many("p", rows)
    pages = list(kv.scan("p", page=page))
    assert [row for page in pages for row in page] == rows
    size = min(page, LARGEST_PAGE)
    for item in pages[:-1]:
        assert len(item) == size
        size = min(2 * size, LARGEST_PAGE)
    assert 0 < len(pages[-1]) <= size


def test_large_rows_make_small_pages(kv: SqlKeyValueStore) -> None:
    kv.set_many("p", [(b"%02d" % number, bytes(2 << 20)) for number in range(9)])
    assert [len(page) for page in kv.scan("p", page=3)] == [3, 1, 1, 1, 1, 1, 1]


def test_a_scan_after_a_deleted_tail(kv: SqlKeyValueStore) -> None:
    kv.set_many("p", [(b"%d" % number, b"") for number in range(9)])
    kv.delete_many("p", [b"7", b"8", b"8", b"never"])
    assert [key for key, _ in rows_of(kv, "p", b"5")] == [b"5", b"6"]
    assert rows_of(kv, "p", b"7") == []


def test_many_rows_are_written_over_what_is_there(kv: SqlKeyValueStore) -> None:
    kv.set_many("p", [(b"b", b"old"), (b"c", b"kept")])
    kv.set_many("p", [(b"b", b"1"), (b"a", b"1"), (b"b", b"2")])
    assert rows_of(kv, "p") == [(b"a", b"1"), (b"b", b"2"), (b"c", b"kept")]
    kv.set_many("p", [])
    kv.delete_many("p", [])
    kv.delete_many("p", [b"c", b"a"])
    assert rows_of(kv, "p") == [(b"b", b"2")]


def test_many_rows_are_written_in_chunks(kv: SqlKeyValueStore) -> None:
    rows = [(b"%06d" % number, b"%d" % number) for number in range(12_345)]
    kv.set_many("p", rows)
    assert rows_of(kv, "p") == rows
    kv.delete_many("p", [key for key, _ in rows[1:]])
    assert rows_of(kv, "p") == rows[:1]


@pytest.mark.parametrize("same", [True, False])
def test_deleting_what_a_scan_shows(kv: SqlKeyValueStore, same: bool) -> None:
    for partition in ("p", "q"):
        kv.set_many(partition, [(b"%02d" % number, b"") for number in range(50)])
    seen = []
    for page in kv.scan("p", page=4):
        seen += [key for key, _ in page]
        kv.delete_many("p" if same else "q", [key for key, _ in page])
    assert seen == [b"%02d" % number for number in range(50)]
    assert rows_of(kv, "p" if same else "q") == []


def test_a_page_is_read_when_it_is_asked_for(kv: SqlKeyValueStore) -> None:
    """A scan is no snapshot: what is written ahead of it is seen, what is deleted ahead is not."""
    kv.set_many("p", [(b"a", b""), (b"b", b""), (b"d", b"")])
    scan = kv.scan("p", page=1)
    assert next(scan) == [(b"a", b"")]
    kv.delete("p", b"b")
    kv.set("p", b"c", b"new")
    kv.set("p", b"0", b"behind")
    assert [row for page in scan for row in page] == [(b"c", b"new"), (b"d", b"")]


@pytest.mark.parametrize("partition", ["", "\ud800", b"p"])
def test_partitions_that_are_refused(kv: SqlKeyValueStore, partition: str) -> None:
    with pytest.raises(KeyValueArgumentError, match="partition"):
        kv.get(partition, b"k")
    with pytest.raises(KeyValueArgumentError, match="partition"):
        next(kv.scan(partition))
    with pytest.raises(KeyValueArgumentError, match="partition"):
        kv.set_many(partition, [])


@pytest.mark.parametrize("key", [b"", "k", None])
def test_keys_that_are_refused(kv: SqlKeyValueStore, key: bytes) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: kv.get("repo-main", key),
        lambda: kv.set("repo-main", key, b""),
        lambda: kv.set_if("repo-main", key, b"", Presence.ABSENT),
        lambda: kv.delete("repo-main", key),
        lambda: kv.set_many("repo-main", [(key, b"")]),
        lambda: kv.delete_many("repo-main", [key]),
    )
    for call in calls:
        with pytest.raises(KeyValueArgumentError, match="repo-main"):
            call()


def test_rows_that_are_refused(kv: SqlKeyValueStore) -> None:
    value: bytes
    for value in ("text", None, bytes(MAX_VALUE_BYTES + 1)):  # type: ignore[assignment]
        with pytest.raises(KeyValueArgumentError, match="repo-main: key 'some/key': its value"):
            kv.set("repo-main", b"some/key", value)
        with pytest.raises(KeyValueArgumentError):
            kv.set_many("repo-main", [(b"a", b""), (b"some/key", value)])
    assert rows_of(kv, "repo-main") == []
    with pytest.raises(ValueError, match="page of 0"):
        next(kv.scan("p", page=0))


def test_the_longest_key_is_indexed(kv: SqlKeyValueStore) -> None:
    """Random bytes: PostgreSQL compresses others before it counts them."""
    key = os.urandom(MAX_KEY_BYTES - 1)
    kv.set("p", key, b"v")
    assert rows_of(kv, "p") == [(key, b"v")]
    with pytest.raises(KeyValueArgumentError, match=r"p: key .*\.\.\.: its 2600 bytes"):
        kv.set("p", key + b"x", b"v")
    assert kv.get("p", key + b"x") is None


def test_a_store_without_its_table_says_what_to_do(tmp_path: Path) -> None:
    store = open_key_value_store(f"sqlite:///{tmp_path}/kv.db")
    with pytest.raises(DatabaseSchemaError, match="create a repository in it"):
        store.get("p", b"k")
    store.migrate()
    store.migrate()
    store.set("p", b"k", b"v")
    store.migrate()
    assert store.get("p", b"k") == b"v"
    store.close()


def test_stores_of_several_tables(kv: SqlKeyValueStore) -> None:
    other = SqlKeyValueStore(kv.database, table="Other-table.v2")
    other.migrate()
    kv.set("p", b"k", b"1")
    other.set("p", b"k", b"2")
    assert (kv.get("p", b"k"), other.get("p", b"k")) == (b"1", b"2")
    other.delete("p", b"k")
    for name in ("", "x" * 61, "a\x00b", 'a"b', "a:b", "a%sb"):
        with pytest.raises(KeyValueArgumentError, match="table"):
            SqlKeyValueStore(kv.database, table=name)


def test_a_table_of_another_shape_is_left_alone(kv: SqlKeyValueStore) -> None:
    kv.database.ordered(lambda connection: connection.exec_driver_sql("CREATE TABLE people (name TEXT)") and None)
    try:
        with pytest.raises(DatabaseSchemaError, match=r'"people" is no key-value store \(its columns are name\)'):
            SqlKeyValueStore(kv.database, table="people").migrate()
    finally:
        kv.database.ordered(lambda connection: connection.exec_driver_sql("DROP TABLE people") and None)


def test_rows_of_several_partitions_are_written_together_or_not_at_all(kv: SqlKeyValueStore) -> None:
    kv.set("p", b"a", b"1")
    rows: list[tuple[str, bytes, bytes, Presence | bytes]] = [
        ("p", b"a", b"2", b"1"),
        ("q", b"b", b"3", Presence.ABSENT),
        ("q", b"c", b"4", Presence.PRESENT),
    ]
    with pytest.raises(PredicateFailedError, match="q: 'c'"):
        kv.set_all_if(rows)
    assert (kv.get("p", b"a"), rows_of(kv, "q")) == (b"1", [])
    kv.set_all_if(rows[:2])
    assert (kv.get("p", b"a"), rows_of(kv, "q")) == (b"2", [(b"b", b"3")])
    with pytest.raises(PredicateFailedError, match="p: 'a'"):
        kv.set_all_if(rows[:2])


# Any sequence of calls, compared with a dict; on both databases.

PARTITIONS = st.sampled_from(["p", "p\x00", "\udcff", "repo-main:1"])
SOME_KEYS = st.one_of(
    st.sampled_from([b"\x00", b"a", b"a\x00", b"a\xff", b"b", b"\xff", b"\xff\xff"]), st.binary(min_size=1, max_size=3)
)
VALUES = st.binary(max_size=3)
ROWS = st.lists(st.tuples(SOME_KEYS, VALUES), max_size=8)


class Machine(RuleBasedStateMachine):
    """Calls of one store beside the same of a dict."""

    def __init__(self, store: SqlKeyValueStore) -> None:
        super().__init__()
        self.store = store
        self.model: dict[str, dict[bytes, bytes]] = {name: {} for name in ("p", "p\x00", "\udcff", "repo-main:1")}
        for name in self.model:
            store.delete_many(name, [key for page in store.scan(name) for key, _ in page])

    @rule(partition=PARTITIONS, key=SOME_KEYS, value=VALUES)
    def set(self, partition: str, key: bytes, value: bytes) -> None:
        self.store.set(partition, key, value)
        self.model[partition][key] = value

    @rule(
        partition=PARTITIONS,
        key=SOME_KEYS,
        value=VALUES,
        expected=st.one_of(st.sampled_from(Presence), VALUES, st.none()),
    )
    def set_if(self, partition: str, key: bytes, value: bytes, expected: Expected | None) -> None:
        rows = self.model[partition]
        if expected is None:
            expected = rows.get(key, b"")
        holds = rows.get(key) == expected
        if isinstance(expected, Presence):
            holds = (key in rows) == (expected is Presence.PRESENT)
        try:
            self.store.set_if(partition, key, value, expected)
        except PredicateFailedError:
            assert not holds
            return
        assert holds
        rows[key] = value

    @rule(partition=PARTITIONS, keys=st.lists(SOME_KEYS, max_size=8))
    def get_many(self, partition: str, keys: list[bytes]) -> None:
        rows = self.model[partition]
        assert self.store.get_many(partition, keys) == {key: rows[key] for key in keys if key in rows}

    @rule(partition=PARTITIONS, key=SOME_KEYS)
    def delete(self, partition: str, key: bytes) -> None:
        self.store.delete(partition, key)
        self.model[partition].pop(key, None)

    @rule(partition=PARTITIONS, rows=ROWS)
    def set_many(self, partition: str, rows: list[tuple[bytes, bytes]]) -> None:
        self.store.set_many(partition, rows)
        self.model[partition] |= dict(rows)

    @rule(partition=PARTITIONS, keys=st.lists(SOME_KEYS, max_size=8))
    def delete_many(self, partition: str, keys: list[bytes]) -> None:
        self.store.delete_many(partition, keys)
        for key in keys:
            self.model[partition].pop(key, None)

    @rule(partition=PARTITIONS, key=SOME_KEYS)
    def get(self, partition: str, key: bytes) -> None:
        assert self.store.get(partition, key) == self.model[partition].get(key)

    @rule(
        partition=PARTITIONS,
        start=st.one_of(st.just(b""), SOME_KEYS),
        stop=st.none() | SOME_KEYS,
        page=st.integers(1, 4),
    )
    def scan(self, partition: str, start: bytes, stop: bytes | None, page: int) -> None:
        seen = [row for rows in self.store.scan(partition, start, stop, page=page) for row in rows]
        inside = {k: v for k, v in self.model[partition].items() if start <= k and (stop is None or k < stop)}
        assert seen == sorted(inside.items())

    @invariant()
    def content(self) -> None:
        for partition, rows in self.model.items():
            assert [row for page in self.store.scan(partition) for row in page] == sorted(rows.items())


@pytest.mark.parametrize("steps", [30])
def test_any_sequence_of_calls(kv: SqlKeyValueStore, steps: int) -> None:
    machine: Any = functools.partial(Machine, kv)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(60), stateful_step_count=steps, suppress_health_check=list(HealthCheck), deadline=None
        ),
    )


# The layout in PostgreSQL is lakeFS's, and scans of a token that statistics know nothing of stay scans.


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
