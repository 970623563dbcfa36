"""A store and its index belong together; what the facade adds to the index."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.blocks.errors import BlockConflictError, BlockFormatError, IndexMismatchError
from compaction.blocks.model import parse_block_path
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.store import BlockStore, BlockStoreConnection, read_identity
from support.stores.block_index import block_id
from support.stores.block_stores import content, fill, upload


def test_a_new_store_is_bound_once(connection: BlockStoreConnection) -> None:
    first = BlockStore.open(connection)
    identity = read_identity(first.objects)
    fill(first, [1, 2])
    first.close()
    again = BlockStore.open(connection)
    assert identity
    assert read_identity(again.objects) == identity
    assert [block.id for block in again.live().blocks] == [block_id(1), block_id(2)]
    assert parse_block_path(IDENTITY_PATH) is None
    again.close()


def test_a_lost_index_is_not_an_empty_store(connection: BlockStoreConnection, tmp_path) -> None:
    """A new index knows none of the blocks: whoever collects orphans would delete all of them."""
    store = BlockStore.open(connection)
    fill(store, [1])
    store.close()
    new = replace(connection, index_url=f"sqlite:///{tmp_path}/new.db")
    with pytest.raises(IndexMismatchError, match="rebuild-index"):
        BlockStore.open(new)


def test_the_index_of_another_store_is_refused(connection: BlockStoreConnection, tmp_path) -> None:
    store = BlockStore.open(connection)
    fill(store, [1])
    store.close()
    other = BlockStore.open(BlockStoreConnection(f"{tmp_path}/other", f"sqlite:///{tmp_path}/other.db"))
    fill(other, [2])
    other.close()
    with pytest.raises(IndexMismatchError, match="index is that of another store"):
        BlockStore.open(replace(connection, index_url=f"sqlite:///{tmp_path}/other.db"))
    with pytest.raises(IndexMismatchError, match="no object _compaction/identity"):
        BlockStore.open(BlockStoreConnection(f"{tmp_path}/third", f"sqlite:///{tmp_path}/other.db"))


def test_a_damaged_identity_is_named(connection: BlockStoreConnection) -> None:
    store = BlockStore.open(connection)
    store.close()
    store.objects.put(IDENTITY_PATH, b"\xff\xfe")
    with pytest.raises(IndexMismatchError, match="damaged"):
        BlockStore.open(connection)


def test_secrets_do_not_show(connection: BlockStoreConnection) -> None:
    shown = repr(replace(connection, options={"secret_access_key": "hidden"}))
    assert "hidden" not in shown
    assert connection.index_url not in shown


def test_registration_is_all_or_nothing(block_store: BlockStore) -> None:
    good = [upload(block_store, number) for number in (1, 2)]
    bad = "acme/0/" + block_id(3) + ".parquet"
    block_store.objects.put(bad, b"no parquet")
    with pytest.raises(BlockFormatError, match=block_id(3)):
        block_store.register([*good, bad], tenant="acme", shard=0)
    assert block_store.live().blocks == ()
    assert block_store.register(good, tenant="acme", shard=0).new == (block_id(1), block_id(2))
    assert block_store.register(good, tenant="acme", shard=0).known == (block_id(1), block_id(2))
    assert len(content(block_store)) == 200
    upload(block_store, 1, compression="none")
    with pytest.raises(BlockConflictError, match="another content"):
        block_store.register(good[:1], tenant="acme", shard=0)


def test_sources_of_several_levels_make_one_of_the_next(block_store: BlockStore) -> None:
    """A block that found nobody to be merged with climbs without being rewritten."""
    fill(block_store, [1])
    paths = [upload(block_store, 2)]
    block_store.register(paths, tenant="acme", shard=0, level=1)
    claimed = block_store.claim(job="job", token=1, sources=[block_id(1), block_id(2)], output_level=2)
    assert [block.level for block in claimed.sources] == [0, 1]
    record = block_store.job("job")
    assert record is not None
    assert (record.key.level, record.output_level) == (1, 2)
