"""Rule 1: what is not known is refused, and named; rows of branches change in one field only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.staging.errors import (
    CorruptMessageError,
    CorruptRangeError,
    LiveStoreRefusedError,
    MissingRangeError,
    RepositoryReadOnlyError,
    SchemaVersionError,
    UnknownRefError,
)
from compaction.staging.format.messages import BranchData, bytes_field, read_fields
from compaction.staging.kv.sql import SqlKeyValueStore, open_key_value_store
from compaction.staging.lakefs.control import TokenMergeSettings, stop_merging
from compaction.staging.lakefs.merging import merge_branch
from compaction.staging.lakefs.planning import TokenInspection, inspect_branches, plan_merge
from compaction.staging.lakefs.repository import LiveRepository, open_live_repository, read_branch_row
from compaction.staging.refs.branches import RepositoryRecord
from compaction.staging.tree.storage import RangeStorage
from staging.lakefs.conftest import QuietClock, WatchedStore
from support.staging.lakefs_server import LakeFsServer, big_content
from support.staging.staging_repos import TestClock
from tools.servers.postgres import PostgresServer

COMMIT = "c" * 64


def test_a_server_of_the_known_version_is_opened(live: LiveRepository, server: LakeFsServer) -> None:
    assert (live.name, live.partition, live.namespace) == ("example", server.partition, "s3://bucket/example")
    assert live.used_tokens() == {server.branch().staging_token}


def test_sqlite_is_refused(tmp_path: Path) -> None:
    store = open_key_value_store(f"sqlite:///{tmp_path}/kv.db")
    store.migrate()
    with pytest.raises(LiveStoreRefusedError, match="PostgreSQL only"):
        open_live_repository(store, "example")
    store.close()


TABLES = {
    "other columns": "CREATE TABLE other (partition_key BYTEA, key BYTEA NOT NULL, value BYTEA NOT NULL,"
    " PRIMARY KEY (partition_key, key)) PARTITION BY HASH (partition_key)",
    "no partitions": "CREATE TABLE other (partition_key BYTEA NOT NULL, key BYTEA NOT NULL, value BYTEA NOT NULL,"
    " PRIMARY KEY (partition_key, key))",
    "no children": "CREATE TABLE other (partition_key BYTEA NOT NULL, key BYTEA NOT NULL, value BYTEA NOT NULL,"
    " PRIMARY KEY (partition_key, key)) PARTITION BY HASH (partition_key)",
    "another key": "CREATE TABLE other (partition_key BYTEA NOT NULL, key BYTEA NOT NULL, value BYTEA NOT NULL,"
    " PRIMARY KEY (key, partition_key)) PARTITION BY HASH (partition_key)",
}


@pytest.mark.parametrize("table", TABLES)
def test_another_layout_is_refused(postgres: PostgresServer, table: str) -> None:
    name = postgres.create()
    store = open_key_value_store(postgres.url(name), table="other")
    with pytest.raises(LiveStoreRefusedError, match='no table "other"'):
        open_live_repository(store, "example")
    postgres.execute(TABLES[table], database=name)
    with pytest.raises(LiveStoreRefusedError, match='"other" has another layout'):
        open_live_repository(store, "example")
    store.close()


def test_a_table_of_another_name_with_the_layout_is_opened(postgres: PostgresServer, ranges: RangeStorage) -> None:
    store = open_key_value_store(postgres.url(postgres.create()), table="Lake-kv")
    store.migrate()
    LakeFsServer(store, ranges).create({})
    assert [branch.branch for branch in inspect_branches(open_live_repository(store, "example", ranges=ranges))] == [
        "main"
    ]
    store.close()


CALLS: list[Callable[[LiveRepository], Any]] = [
    lambda live: list(inspect_branches(live)),
    lambda live: plan_merge(live, "main"),
    lambda live: merge_branch(live, "main"),
]


@pytest.mark.parametrize("version", [b"3", b"5", b"04", b"", None])
def test_another_schema_is_refused_at_each_call(live: LiveRepository, server: LakeFsServer, version: bytes) -> None:
    """Also when servers are upgraded while a merger runs."""
    server.put_sealed({"a": "1"}, {"a": "2"})
    if version is None:
        server.kv.delete("kv-internal-metadata", b"kv/schema/version")
    else:
        server.kv.set("kv-internal-metadata", b"kv/schema/version", version)
    before = server.row()
    for call in CALLS:
        with pytest.raises(SchemaVersionError):
            call(live)
    assert server.row() == before


REPOSITORIES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "in deletion": ({"state": 1}, LiveStoreRefusedError, "not active"),
    "an unknown state": ({"state": 7}, LiveStoreRefusedError, "not active"),
    "read-only": ({"read_only": True}, RepositoryReadOnlyError, "read-only"),
    "ours": ({"compactable": True}, LiveStoreRefusedError, "of this project"),
    "another name": ({"id": "other"}, LiveStoreRefusedError, "lacks its name"),
    "created again": ({"instance_uid": "another"}, LiveStoreRefusedError, "created again"),
}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_another_repository_is_refused_at_each_call(live: LiveRepository, server: LakeFsServer, name: str) -> None:
    change, error, words = REPOSITORIES[name]
    server.put_sealed({"a": "1"}, {"a": "2"})
    row = server.kv.get("graveler", b"repos/example")
    assert row is not None
    server.kv.set("graveler", b"repos/example", replace(RepositoryRecord.decode(row), **change).encode())
    before = server.row()
    for call in CALLS:
        with pytest.raises(error, match=words):
            call(live)
    assert server.row() == before
    server.kv.delete("graveler", b"repos/example")
    with pytest.raises(UnknownRefError):
        live.check()


def test_an_unknown_branch(live: LiveRepository) -> None:
    for call in (plan_merge, merge_branch):
        with pytest.raises(UnknownRefError):
            call(live, "absent")


BRANCHES: dict[str, BranchData] = {
    "is of branch": BranchData(id="other", commit_id=COMMIT, staging_token="s"),
    "no id of a commit": BranchData(id="main", commit_id="HEAD", staging_token="s"),
    "is empty, or": BranchData(id="main", commit_id=COMMIT, staging_token=""),
    "or in its row twice": BranchData(id="main", commit_id=COMMIT, staging_token="s", sealed_tokens=("t", "t")),
    "in its row": BranchData(id="main", commit_id=COMMIT, staging_token="s", sealed_tokens=("t", "s")),
}


@pytest.mark.parametrize("words", BRANCHES)
def test_a_branch_that_no_server_writes_is_refused(live: LiveRepository, server: LakeFsServer, words: str) -> None:
    server.kv.set(server.partition, b"branches/main", BRANCHES[words].encode())
    server.create_branch("other", COMMIT)
    with pytest.raises(LiveStoreRefusedError, match=words):
        merge_branch(live, "main")
    found = list(inspect_branches(live))
    assert [item.branch for item in found] == ["main", "other"]
    assert words in found[0].problem
    assert not found[1].problem


def test_a_field_twice_is_refused(live: LiveRepository, server: LakeFsServer) -> None:
    row = server.row()
    assert row is not None
    server.kv.set(server.partition, b"branches/main", row + bytes_field(3, b"another"))
    with pytest.raises(LiveStoreRefusedError, match="field 3 more than once"):
        live.branch("main")


TOKENS = st.lists(st.text("abc", min_size=1, max_size=200), min_size=1, max_size=6, unique=True)


@given(tokens=TOKENS, hidden=st.booleans(), data=st.data())
def test_only_the_tokens_of_a_row_change(tokens: list[str], hidden: bool, data: st.DataObject) -> None:
    """Whatever the order of the fields is."""
    fields = [
        bytes_field(1, b"main"),
        bytes_field(2, COMMIT.encode()),
        bytes_field(3, b"staging"),
        *(bytes_field(4, token.encode()) for token in tokens),
        *([b"\x28\x01"] if hidden else []),
    ]
    raw = b"".join(data.draw(st.permutations(fields)))
    row = read_branch_row(raw, name="main", repository="example")
    merged = row.with_sealed(["merged"])
    assert merged.count(bytes_field(4, b"merged")) == 1
    others = [field.raw for field in read_fields(raw) if field.number != 4]
    assert [field.raw for field in read_fields(merged) if field.number != 4] == others
    again = read_branch_row(merged, name="main", repository="example")
    assert replace(again.data, sealed_tokens=row.sealed) == row.data
    assert again.sealed == ("merged",)
    assert row.with_sealed(row.sealed) == raw or _places(raw) != sorted(_places(raw))
    sealed = read_branch_row(row.with_seal("fresh"), name="main", repository="example")
    assert sealed.data == replace(row.data, staging_token="fresh", sealed_tokens=("staging", *row.sealed))


def _places(raw: bytes) -> list[int]:
    """Where sealed tokens stand beside each other, ascending numbers without gaps."""
    places = [number for number, item in enumerate(read_fields(raw)) if item.number == 4]
    return places if places == list(range(places[0], places[0] + len(places))) else [1, 0]


def test_a_seal_is_what_the_server_writes(server: LakeFsServer, kv: SqlKeyValueStore) -> None:
    row = server.row()
    assert row is not None
    ours = read_branch_row(row, name="main", repository="example").with_seal("fresh")
    data = BranchData.decode(row)
    assert ours == replace(data, staging_token="fresh", sealed_tokens=(data.staging_token,)).encode()


# What is reported before anything is merged, without a single write.


def test_inspection(live: LiveRepository, server: LakeFsServer, clock: TestClock) -> None:
    server.create_branch("other", server.branch().commit_id)
    newer, older = server.put_sealed({"a": None, "b": "1", "c": None}, {"a": "1"})
    server.delete("e")
    main, other = inspect_branches(live)
    assert (main.branch, main.commit_id, main.hidden) == ("main", server.branch().commit_id, False)
    assert main.sealed == (TokenInspection(newer, 3, 2, more=False), TokenInspection(older, 1, 0, more=False))
    assert main.staging == TokenInspection(server.branch().staging_token, 1, 1, more=False)
    assert (main.statements_per_get, other.statements_per_get) == (4, 2)
    assert main.row_bytes == len(server.row() or b"")
    assert main.unchanged_seconds is None
    merge_branch(live, "main")
    clock.now += 100
    assert next(inspect_branches(live)).unchanged_seconds == 100
    server.seal()
    assert next(inspect_branches(live)).unchanged_seconds is None


@pytest.mark.parametrize(("limit", "rows", "more"), [(1999, 1999, True), (2000, 2000, False), (2001, 2000, False)])
def test_rows_are_counted_up_to_a_limit(
    live: LiveRepository, server: LakeFsServer, limit: int, rows: int, more: bool
) -> None:
    server.put_sealed(big_content("t", range(2000)))
    found = next(inspect_branches(live, limit=limit)).sealed[0]
    assert (found.rows, found.more) == (rows, more)


def test_a_plan_says_what_the_merge_does(live: LiveRepository, server: LakeFsServer, store: WatchedStore) -> None:
    server.put_sealed({"a": "2", "n": None}, {"a": "1", "b": None, "n": "n"}, {"o": None})
    rows = server.rows_of(server.branch().sealed_tokens)
    plan = plan_merge(live, "main")
    assert {name for name, _ in store.calls} == {"scan"}, "nothing is written"
    assert server.rows_of(server.branch().sealed_tokens) == rows
    outcome = merge_branch(live, "main")
    assert (plan.tokens, plan.reason) == (outcome.tokens, "")
    assert (plan.rows_before, plan.rows_after) == (outcome.rows_before, outcome.rows_after) == (6, 2)
    assert (plan.hidden_rows, plan.tombstones, plan.idle_tombstones) == (2, 1, 2)
    assert (plan.statements_before, plan.statements_after) == (5, 3)
    sizes = (outcome.row_bytes_before, outcome.row_bytes_after)
    assert (plan.row_bytes_before, plan.row_bytes_after) == sizes
    assert len(server.row() or b"") == outcome.row_bytes_after


def test_a_plan_says_why_nothing_would_be_merged(live: LiveRepository, server: LakeFsServer) -> None:
    plan = plan_merge(live, "main")
    assert (plan.reason, plan.rows_before, plan.statements_before, plan.statements_after) == (
        "it has 0 tokens to merge, 2 are the least",
        0,
        2,
        2,
    )
    server.put_sealed({"a": "1"}, {"a": "2"})
    stop_merging(server.kv, "")
    assert plan_merge(live, "main").reason == "merging is stopped (stopped)"


def test_a_plan_with_a_seal(live: LiveRepository, server: LakeFsServer) -> None:
    server.put_sealed({"a": "1"})
    server.set("a", "2")
    assert plan_merge(live, "main").reason == "it has 1 tokens to merge, 2 are the least"
    row = server.row()
    plan = plan_merge(live, "main", TokenMergeSettings(seals=True))
    assert (server.row(), plan.reason) == (row, "")
    assert plan.tokens == (server.branch().staging_token, *server.branch().sealed_tokens)
    outcome = merge_branch(live, "main", TokenMergeSettings(seals=True))
    assert (plan.tokens, plan.rows_after) == (outcome.tokens, outcome.rows_after) == (outcome.tokens, 1)
    server.refused_commit()
    assert plan_merge(live, "main").reason == "its sealed tokens grow (1 to 2 within 60 s)"


def test_what_cannot_be_read_is_named(live: LiveRepository, server: LakeFsServer, clock: QuietClock) -> None:
    """A damaged row of a token, then the commit's tree: nothing of the branch changes."""
    token = server.put_sealed({"a": None}, {"a": "2"})[1]
    server.kv.set(token, b"k", bytes_field(1, b"other"))
    for call in (plan_merge, merge_branch):
        with pytest.raises(CorruptMessageError, match=f"{token}: row 'k'"):
            call(live, "main")
    assert token in next(inspect_branches(live)).problem
    server.kv.delete(token, b"k")
    for info in live.ranges.ranges(server.tree_of(server.branch())):
        live.ranges.objects.put(live.ranges.path(info.id), b"damaged")
        live.ranges.forget(info.id)
    for call in (plan_merge, merge_branch):
        with pytest.raises((CorruptRangeError, MissingRangeError)):
            call(live, "main")
    assert len(server.branch().sealed_tokens) == 2
