"""Whole block stores for tests: the fixtures `connection` and `block_store`, each on both stacks (SQLite and a folder,
PostgreSQL and S3), and blocks uploaded into them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.index.live_blocks import EVERYTHING, BlockFilter
from compaction.blocks.model import block_path
from compaction.blocks.store import BlockStore, BlockStoreConnection
from support.programs import needs, needs_of
from support.stores.block_index import block_id, empty_postgres
from support.stores.blocks import parquet, rows
from support.stores.s3 import S3, running_s3
from tools.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory, versitygw_program: Path) -> Iterator[S3]:
    """A real S3 server for the whole session."""
    with running_s3(tmp_path_factory.mktemp("s3"), versitygw_program) as running:
        yield running


@pytest.fixture
def s3(request: pytest.FixtureRequest, s3_server: S3) -> S3:
    """The S3 server, for a test that is known to need it before it runs."""
    assert "versitygw" in needs_of(request.node), 'getfixturevalue("s3") needs the marker of support.programs'
    return s3_server


@pytest.fixture(params=["folder", pytest.param("s3", marks=needs("versitygw"))])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> BlockStoreConnection:
    """How to reach an empty store of the test's own: a folder with SQLite, S3 with PostgreSQL."""
    return empty_folder(request, tmp_path) if request.param == "folder" else empty_bucket(request)


def empty_folder(request: pytest.FixtureRequest, place: Path) -> BlockStoreConnection:
    """An empty store in a folder, with SQLite."""
    file = place / "index.db"
    shutil.copyfile(request.getfixturevalue("_sqlite_template"), file)
    return BlockStoreConnection(f"file://{place}/objects", f"sqlite:///{file}")


def empty_bucket(request: pytest.FixtureRequest) -> BlockStoreConnection:
    """An empty store on S3, with PostgreSQL."""
    server: S3 = request.getfixturevalue("s3")
    postgres: PostgresServer = request.getfixturevalue("postgres")
    name = request.getfixturevalue("postgres_index")
    empty_postgres(postgres, name)
    return BlockStoreConnection(f"{server.bucket()}/blocks", postgres.url(name), server.gateway.options())


@pytest.fixture
def block_store(connection: BlockStoreConnection) -> Iterator[BlockStore]:
    """An empty store of the test's own."""
    store = BlockStore.open(connection)
    yield store
    store.close()


def upload(store: BlockStore, number: int, *, tenant: str = "acme", shard: int = 0, **options: Any) -> str:
    """Upload block `number` of 100 sorted rows (or `table`), unregistered; returns its path."""
    table = options.pop("table", None)
    table = rows(100, start=100 * number) if table is None else table
    path = block_path(tenant, shard, block_id(number))
    store.objects.put(path, parquet(table, sorted_by=["service", "time"], **options))
    return path


def fill(store: BlockStore, numbers: Sequence[int], *, tenant: str = "acme", shard: int = 0) -> tuple[str, ...]:
    """Upload and register blocks by their numbers; returns their ids."""
    paths = [upload(store, number, tenant=tenant, shard=shard) for number in numbers]
    return store.register(paths, tenant=tenant, shard=shard).new


def fill_units(store: BlockStore, numbers: Sequence[int]) -> None:
    """The same of blocks whose times are milliseconds, microseconds and nanoseconds in turn."""
    for number in numbers:
        table, kind = rows(100, start=100 * number), pa.timestamp(("ms", "us", "ns")[number % 3], "UTC")
        table = table.set_column(1, "time", table["time"].cast(pa.int64()).cast(kind))
        store.register([upload(store, number, table=table)], tenant="acme", shard=0)


def content(store: BlockStore, which: BlockFilter = EVERYTHING) -> list[tuple[Any, ...]]:
    """All rows that readers see, in an order of their own."""
    tables = [read(store, block.path) for block in store.live(which).blocks]
    return sorted(
        (row for table in tables for row in zip(*map(pa.ChunkedArray.to_pylist, table.columns), strict=True)),
        key=repr,
    )


def read(store: BlockStore, path: str) -> pa.Table:
    """One object as a table."""
    return pq.read_table(pa.BufferReader(store.objects.get(path)))
