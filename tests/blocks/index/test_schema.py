"""The schema: made by migrations, equal to the tables in both databases, by many at once, and never by an older program
over a newer one.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, insert, text

from compaction.blocks.index.claims import claim
from compaction.blocks.index.live_blocks import live_blocks, streamed
from compaction.blocks.index.migrations.indexes import WITH_INDEXES
from compaction.blocks.index.migrations.upgrading import migrations
from compaction.blocks.index.queued import read_queue
from compaction.blocks.index.registering import BlockReplacement, register
from compaction.blocks.index.registering import replace as commit
from compaction.blocks.index.rows import add_schemas, read_schemas, row_of
from compaction.blocks.index.tables import BLOCKS, HEAD, METADATA, NEWEST_SCHEMA, IndexDatabase
from compaction.blocks.schema.classes import schema_of_text, schema_text
from compaction.blocks.store import VERSION_TABLE, BlockStore, BlockStoreConnection, ensure_schema
from compaction.storage.errors import DatabaseSchemaError, DatabaseUnavailableError
from support.blocks.block_stores import IDENTITY, NOON, a_block, block_id, blocks_of, fill, output_of, read
from support.clocks import PATIENCE_SECONDS, eventually
from tools.servers.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database in which nothing was ever made."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/new%20index.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = server.create()
    yield server.url(name)
    server.drop(name)


def test_migrations_make_the_tables(index: IndexDatabase) -> None:
    with index.snapshot() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, WITH_INDEXES) == []


def test_the_newest_migration_is_the_one_that_the_program_asks_for() -> None:
    assert ScriptDirectory.from_config(migrations()).get_heads() == [NEWEST_SCHEMA]


def test_rules_of_the_tables_are_in_the_database(index: IndexDatabase) -> None:
    """Alembic does not compare checks and conditions of indexes: their names are looked up instead."""
    with index.snapshot() as connection:
        if connection.dialect.name == "sqlite":
            made = connection.execute(text("SELECT group_concat(sql) FROM sqlite_master")).scalar_one()
        else:
            made = connection.execute(
                text(
                    "SELECT string_agg(conname, ' ') || (SELECT string_agg(indexdef, ' ') FROM pg_indexes)"
                    " FROM pg_constraint"
                )
            ).scalar_one()
    checks = [c.name for table in METADATA.tables.values() for c in table.constraints if str(c.name).startswith("ck_")]
    assert len(checks) >= 7
    assert [name for name in checks if str(name) not in made] == []
    assert made.upper().count(" WHERE ") >= 4


def test_an_index_that_exists_keeps_its_identity_and_its_blocks(index: IndexDatabase) -> None:
    register(index, blocks_of(1, 2), now=NOON)
    assert ensure_schema(index, identity="another") == IDENTITY
    assert len(live_blocks(index).blocks) == 2


def test_many_make_it_at_once(empty_url: str) -> None:
    identities: list[str] = []

    def make(name: str) -> None:
        database = IndexDatabase.open(empty_url)
        identities.append(ensure_schema(database, identity=name))
        database.close()

    threads = [threading.Thread(target=make, args=(f"maker-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(identities) == 4
    assert len(set(identities)) == 1


def test_death_while_it_is_made_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class SuddenDeath(BaseException):
        pass

    def die(*args: object, **kwargs: object) -> None:
        raise SuddenDeath

    database = IndexDatabase.open(empty_url)
    with monkeypatch.context() as patch:
        patch.setattr("compaction.blocks.index.migrations.upgrading.insert", die)
        with pytest.raises(SuddenDeath):
            ensure_schema(database, identity="first")
    assert ensure_schema(database, identity="second") == "second"
    database.close()


def test_a_newer_schema_is_left_alone(index: IndexDatabase) -> None:
    with index.engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(DatabaseSchemaError, match="newer version of this program"):
        ensure_schema(index, identity=IDENTITY)


def test_without_a_schema_the_error_says_so(empty_url: str) -> None:
    database = IndexDatabase.open(empty_url)
    with pytest.raises(DatabaseSchemaError, match="the tables are missing"):
        live_blocks(database)
    with pytest.raises(DatabaseSchemaError, match="the tables are missing"):
        register(database, blocks_of(1), now=NOON)
    database.close()


# The index keeps each schema once, for whatever path a block came in; those of an older index are missing at first.

ONE, TWO = (schema_text(pa.schema([("n", kind)])) for kind in (pa.int8(), pa.int64()))


def test_a_registration_brings_the_schema_once(index: IndexDatabase) -> None:
    register(index, [a_block(1, schema=ONE), a_block(2, schema=ONE)], now=NOON)
    register(index, [a_block(3, schema=TWO), a_block(4, schema_id="s2", schema=TWO), a_block(5)], now=NOON)
    assert read_schemas(index, ["s1", "s2", "s3"]) == {"s1": ONE, "s2": TWO}
    assert {block.schema for block in live_blocks(index).blocks} == {""}
    assert [entry.schema_id for entry in read_queue(index).entries] == ["s1", "s1", "s1", "s2", "s1"]


def test_a_schema_is_no_part_of_what_a_block_is(index: IndexDatabase) -> None:
    """A repeated registration is one, whether its footer was read again or not."""
    register(index, blocks_of(1), now=NOON)
    assert register(index, [a_block(1, schema=ONE)], now=NOON).known == (block_id(1),)


def test_outputs_bring_theirs(index: IndexDatabase) -> None:
    sources = blocks_of(1, 2)
    register(index, sources, now=NOON)
    ids = tuple(source.id for source in sources)
    claim(index, job="j", token=1, sources=ids, now=NOON, output_level=1)
    output = replace(output_of(9, sources, schema_id="s9"), schema=TWO)
    commit(index, BlockReplacement("j", 1, ids, (output,), "done"), clock=lambda: NOON)
    assert read_schemas(index, ["s9"]) == {"s9": TWO}


def test_what_is_learnt_is_kept_and_never_changed(index: IndexDatabase) -> None:
    many = {f"s{number:04}": ONE for number in range(1200)}
    add_schemas(index, many)
    add_schemas(index, {"s0001": TWO, "new": TWO})
    add_schemas(index, {})
    assert read_schemas(index, [*many, "new"]) == {**many, "new": TWO}
    assert read_schemas(index, []) == {}


def test_blocks_that_are_read_have_the_schema_of_their_file(connection: BlockStoreConnection) -> None:
    store = BlockStore.open(connection)
    fill(store, [1])
    (block,) = live_blocks(store.index).blocks
    (found,) = read_schemas(store.index, [block.schema_id]).values()
    assert schema_of_text(found).equals(read(store, block.path).schema)
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_index_of_an_older_program_is_brought_up_to_date(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its blocks stay as they are; what their schemas hold is not known yet."""
    url = f"sqlite:///{tmp_path}/old.db"
    if kind == "postgresql":
        server = request.getfixturevalue("postgres")
        url = server.url(server.create())
    database = IndexDatabase.open(url)

    def older(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        head = {"id": 1, "identity": IDENTITY, "version": 7, "arrivals": 1, "token_floor": 0, "forgotten": 0}
        connection.execute(insert(HEAD).values(head))
        state = {"state": "live", "arrival": 1, "enqueued_at": NOON, "version": 7, "changed_at": NOON, "added": 7}
        connection.execute(insert(BLOCKS).values(row_of(a_block(1)) | state))

    database.ordered(older)
    assert ensure_schema(database, identity="another") == IDENTITY
    assert [entry.id for entry in read_queue(database).entries] == [block_id(1)]
    assert read_schemas(database, ["s1"]) == {}
    register(database, [a_block(2, schema=ONE)], now=NOON)
    assert read_schemas(database, ["s1"]) == {"s1": ONE}
    with database.snapshot() as connection:
        made = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one()
    assert made == NEWEST_SCHEMA
    database.close()


# Connections and what is tried again: a database that is away, busy or closed to us; and secrets stay secrets.


def test_a_change_waits_for_the_one_before_it(index: IndexDatabase) -> None:
    """And then sees what that one did."""
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        def body(change: object) -> None:
            entered.set()
            assert go_on.wait(PATIENCE_SECONDS)

        index.change(body)

    first = threading.Thread(target=slow)
    first.start()
    assert entered.wait(PATIENCE_SECONDS)
    before = live_blocks(index).version
    results: list[int] = []
    second = threading.Thread(target=lambda: results.append(index.change(lambda change: change.version)))
    second.start()
    second.join(0.3)
    assert results == []
    go_on.set()
    first.join()
    second.join()
    assert results == [before + 2]


def test_readers_do_not_wait_for_a_change_and_do_not_see_it(index: IndexDatabase) -> None:
    register(index, [a_block(1)], now=NOON)

    def body(change: object) -> int:
        register_inside = live_blocks(index)
        return len(register_inside.blocks)

    assert index.change(body) == 1


def test_a_reader_keeps_its_instant(index: IndexDatabase) -> None:
    register(index, blocks_of(*range(10)), now=NOON)
    with streamed(index) as (version, blocks):
        seen = [next(blocks)]
        register(index, blocks_of(*range(10, 20)), now=NOON)
        seen += blocks
    assert seen == blocks_of(*range(10))
    assert live_blocks(index).version == version + 1


def test_a_change_that_fails_changes_nothing(index: IndexDatabase) -> None:
    class SomethingElse(Exception):
        pass

    def body(change: object) -> None:
        raise SomethingElse

    before = live_blocks(index)
    with pytest.raises(SomethingElse):
        index.change(body)
    assert live_blocks(index) == before


def test_a_lock_that_is_never_given(tmp_path: Path, index_url: str) -> None:
    """Somebody stopped in the middle of a change (a debugger, a frozen machine): others are told, not hung."""
    holder, database = IndexDatabase.open(index_url), IndexDatabase.open(index_url, patience=0.5, lock_seconds=0.05)
    with holder.engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            raw = sqlite3.connect(tmp_path / "index.db", isolation_level=None)
            raw.execute("BEGIN IMMEDIATE")
        else:
            connection.execute(text("SELECT 1 FROM block_index FOR UPDATE"))
        with pytest.raises(DatabaseUnavailableError):
            register(database, [a_block(1)], now=NOON)
        if connection.dialect.name == "sqlite":
            raw.close()

    def written() -> bool:
        try:
            register(database, [a_block(1)], now=NOON)
        except DatabaseUnavailableError:
            return False  # half a second is short beside a load
        return True

    eventually(written, "the index to be written again")
    holder.close()
    database.close()
