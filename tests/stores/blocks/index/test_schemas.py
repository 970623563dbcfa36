"""The index keeps each schema once, for whatever path a block came in; those of an older index are missing at first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from alembic import command
from sqlalchemy import Connection, insert, text

from compaction.blocks.index.claims import claim
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.migrations.upgrading import migrations
from compaction.blocks.index.queued import read_queue
from compaction.blocks.index.registering import BlockReplacement, register
from compaction.blocks.index.registering import replace as commit
from compaction.blocks.index.rows import add_schemas, read_schemas, row_of
from compaction.blocks.index.tables import BLOCKS, HEAD, NEWEST_SCHEMA, IndexDatabase
from compaction.blocks.schema.classes import schema_of_text, schema_text
from compaction.blocks.store import VERSION_TABLE, BlockStore, BlockStoreConnection, ensure_schema
from support.stores.block_index import IDENTITY, NOON, a_block, block_id, blocks_of, output_of
from support.stores.block_stores import fill, read

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
    commit(index, BlockReplacement("j", 1, ids, (output,), "done"), now=NOON)
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
