"""A store and its index belong together; what the facade adds to the index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compaction.blocks.errors import BlockConflictError, BlockFormatError, BlockStoreError, IndexMismatchError
from compaction.blocks.index.live_blocks import live_blocks
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.model import parse_block_path
from compaction.blocks.owners import IDENTITY_PATH
from compaction.blocks.store import BlockStore, BlockStoreConnection, read_identity
from compaction.storage.errors import (
    DatabaseError,
    DatabaseLoginError,
    DatabaseUnavailableError,
    DatabaseUnreachableError,
    ObjectAccessError,
    ObjectMissingError,
    ObjectStoreUnavailableError,
)
from compaction.storage.objects.store import Retrying, open_objects
from compaction.storage.opened import explaining
from support.blocks.block_stores import block_id, content, fill, upload


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


def test_a_lost_index_is_not_an_empty_store(connection: BlockStoreConnection, tmp_path: Path) -> None:
    """A new index knows none of the blocks: whoever collects orphans would delete all of them."""
    store = BlockStore.open(connection)
    fill(store, [1])
    store.close()
    new = replace(connection, index_url=f"sqlite:///{tmp_path}/new.db")
    with pytest.raises(IndexMismatchError, match="rebuild-index"):
        BlockStore.open(new)


def test_the_index_of_another_store_is_refused(connection: BlockStoreConnection, tmp_path: Path) -> None:
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


# What is said of a store that cannot be reached: which server, why, and where its address and keys are written.

PASSWORD = "hunter2"
ENDPOINT = f"http://key:{PASSWORD}@127.0.0.1:9/{PASSWORD}"


def connection(url: str = "s3://bucket/x", **options: str) -> BlockStoreConnection:
    return BlockStoreConnection(url, "sqlite:///x", options, "Secret creds2" if options else "", "Secret idx3")


def explained(error: BlockStoreError, place: BlockStoreConnection) -> str:
    with pytest.raises(type(error)) as raised, explaining(place.address):
        raise error
    assert PASSWORD not in repr(raised.value)
    assert raised.value.__cause__ is None
    return str(raised.value)


@pytest.mark.parametrize(
    ("error", "place", "said"),
    [
        (
            ObjectStoreUnavailableError("_compaction/identity", "the store gave no usable answer (timeout)"),
            connection(aws_endpoint_url=ENDPOINT),
            "s3://bucket/x: http://127.0.0.1:9 gave no usable answer (timeout). "
            'Check "aws_endpoint_url" in Secret creds2 and the network.',
        ),
        (
            ObjectStoreUnavailableError("acme/1", "the store answered 503 SlowDown"),
            connection(endpoint="https://[::1]:9000"),
            "s3://bucket/x/acme/1: https://[::1]:9000 answered 503 SlowDown. "
            'Check "endpoint" in Secret creds2 and the network.',
        ),
        (
            ObjectStoreUnavailableError("s3://bucket/x", "the store gave no usable answer"),
            connection(),
            "s3://bucket/x: the store gave no usable answer. Check the network.",
        ),
        (
            ObjectStoreUnavailableError("", "the store gave no usable answer"),
            connection(endpoint="http://[hunter2"),
            's3://bucket/x: the store gave no usable answer. Check "endpoint" in Secret creds2 and the network.',
        ),
        (
            ObjectAccessError("_compaction/identity", "access denied (403)"),
            connection(access_key_id=PASSWORD),
            "s3://bucket/x: access denied (403). Check the keys in Secret creds2 and the bucket policy.",
        ),
        (
            ObjectAccessError("_compaction/identity", "access denied (403)"),
            connection(),
            "s3://bucket/x: access denied (403). Check the identity and the bucket policy.",
        ),
        (
            ObjectAccessError("a", "the bucket cannot be used (NoSuchBucket)"),
            connection(endpoint=ENDPOINT),
            "s3://bucket/x/a: the bucket cannot be used (NoSuchBucket). Create it or correct the URL.",
        ),
        (
            ObjectAccessError("_compaction/identity", "access denied (permission)"),
            connection("file:///lake"),
            "file:///lake: access denied (permission). Check the folder and its permissions.",
        ),
        (ObjectMissingError("a", "there is no such object"), connection(), "a: there is no such object"),
        (
            DatabaseUnreachableError('Index database "db" at h:1', "refused the connection."),
            connection(),
            'Index database "db" at h:1 refused the connection. Check the URL in Secret idx3.',
        ),
        (
            DatabaseLoginError('Index database "db" at h:1', "refused the login (no password supplied)."),
            connection(),
            'Index database "db" at h:1 refused the login (no password supplied). Check the URL in Secret idx3.',
        ),
        (
            DatabaseUnavailableError(
                'Index database "db" at h:1', "did not answer in time (locked). Repeating is safe."
            ),
            connection(),
            'Index database "db" at h:1 did not answer in time (locked). Repeating is safe.',
        ),
        (DatabaseError("Index database x", "what now"), connection(), "Index database x: what now"),
    ],
)
def test_an_error_says_what_to_check_and_no_secret(
    error: BlockStoreError, place: BlockStoreConnection, said: str
) -> None:
    assert explained(error, place) == said


@pytest.mark.parametrize(
    ("endpoint", "cause"), [("http://127.0.0.1:9", "connection refused"), ("http://nosuch.invalid", "no such host")]
)
def test_a_server_without_an_answer_has_a_cause(endpoint: str, cause: str) -> None:
    options = {"endpoint": endpoint, "region": "x", "access_key_id": "a", "secret_access_key": PASSWORD}
    options |= {"allow_http": "true"}
    objects = open_objects("s3://bucket/x", options=options, retrying=Retrying(tries=1))
    with pytest.raises(ObjectStoreUnavailableError, match=rf"^a: the store gave no usable answer \({cause}\)$"):
        objects.get("a")


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("127.0.0.1:9", 'Index database "db" at 127.0.0.1:9 refused the connection.'),
        ("nosuch.invalid", 'Index database "db" at nosuch.invalid is unreachable (no such host).'),
    ],
)
def test_a_database_without_a_connection_has_a_cause(server: str, said: str) -> None:
    index = IndexDatabase.open(f"postgresql://user:{PASSWORD}@{server}/db", patience=0)
    with pytest.raises(DatabaseUnreachableError) as raised:
        live_blocks(index)
    assert str(raised.value) == said
