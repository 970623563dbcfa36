"""Whole block stores for tests: the fixtures `connection` and `block_store`, each on both stacks (SQLite and a folder,
PostgreSQL and S3), and blocks uploaded into them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import Connection, Table, delete, insert, select, update
from ulid import ULID

from compaction.blocks.index.live_blocks import EVERYTHING, BlockFilter
from compaction.blocks.index.tables import HEAD, METADATA, NEWEST_SCHEMA, IndexChange, IndexDatabase
from compaction.blocks.model import Block, RowFingerprint, block_path
from compaction.blocks.store import VERSION_TABLE, BlockStore, BlockStoreConnection, ensure_schema
from support.blocks.blocks import parquet, rows
from support.object_stores import S3, running_s3
from support.programs import needs, needs_of
from tools.servers.postgres import PostgresServer, start_postgres

# Indexes of block stores for tests: the fixtures `index_url` and `index` (each test runs on SQLite and PostgreSQL),
# blocks to fill them with, and what must be true of every index at any time.

IDENTITY: Final = "index-of-the-tests"
SECOND: Final = 1_000_000
NOON: Final = 1_700_000_000 * SECOND
"""When the blocks of tests begin, epoch microseconds."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session."""
    with start_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_index(postgres: PostgresServer) -> str:
    name = postgres.create()
    _prepare(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("index") / "template.db"
    _prepare(f"sqlite:///{file}")
    return file


def _prepare(url: str) -> None:
    database = IndexDatabase.open(url)
    ensure_schema(database, identity=IDENTITY)
    database.close()


def empty_postgres(server: PostgresServer, name: str) -> None:
    """The index in this database as it was when it was made, and nobody connected: a new database for each test would
    take longer than the test.
    """
    values = ", ".join(f"{column} = 0" for column in ("version", "arrivals", "token_floor", "forgotten"))
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        *(f"DELETE FROM {table.name}" for table in METADATA.sorted_tables if table is not HEAD),
        f"UPDATE {VERSION_TABLE} SET version_num = '{NEWEST_SCHEMA}'",
        f"UPDATE block_index SET {values}",
        database=name,
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def index_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty index of the test's own."""
    if request.param == "sqlite":
        file = tmp_path / "index.db"
        shutil.copyfile(request.getfixturevalue("_sqlite_template"), file)
        yield f"sqlite:///{file}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    name = request.getfixturevalue("postgres_index")
    empty_postgres(server, name)
    yield server.url(name)


@pytest.fixture
def index(index_url: str) -> Iterator[IndexDatabase]:
    """An empty index of the test's own."""
    database = IndexDatabase.open(index_url)
    yield database
    database.close()


def clear(database: IndexDatabase) -> None:
    """Nothing is in the index any more, and nothing is remembered."""

    def body(change: IndexChange) -> None:
        for table in METADATA.sorted_tables:
            if table is not HEAD:
                change.connection.execute(delete(table))
        change.connection.execute(update(HEAD).values(version=0, arrivals=0, token_floor=0, forgotten=0))

    database.change(body)


@dataclass(frozen=True)
class SavedIndex:
    """An index as it was at a moment: put back, it costs a statement for each table, whatever filled it."""

    rows: dict[Table, list[dict[str, Any]]]

    @classmethod
    def of(cls, database: IndexDatabase) -> SavedIndex:
        with database.snapshot() as connection:
            every = {table: connection.execute(select(table)).mappings() for table in METADATA.sorted_tables}
            return cls({table: [dict(row) for row in rows] for table, rows in every.items()})

    def restore(self, database: IndexDatabase) -> None:
        def body(connection: Connection) -> None:
            for table, kept in self.rows.items():
                if table is HEAD:
                    connection.execute(update(HEAD).values(kept[0]))
                    continue
                connection.execute(delete(table))
                if kept:
                    connection.execute(insert(table), kept)

        database.write(body)


def block_id(number: int, *, at: int = NOON) -> str:
    """A ULID made at `at` (epoch microseconds), number `number` of that moment."""
    return str(ULID.from_bytes((at // 1000).to_bytes(6, "big") + number.to_bytes(10, "big")))


def a_block(number: int, **fields: Any) -> Block:
    """Block number `number`: its rows lie in second `number` after NOON, its fingerprint is its own. Tenant t, shard 0,
    level 0, 10 rows in 100 bytes unless `fields` says otherwise.
    """
    at = fields.pop("at", NOON)
    rows = fields.pop("rows", 10)
    start = NOON + number * SECOND
    values: dict[str, Any] = {
        "id": block_id(number, at=at),
        "tenant": "t",
        "shard": 0,
        "level": 0,
        "min_time": start,
        "max_time": start + SECOND - 1,
        "bytes": 100,
        "fingerprint": RowFingerprint(rows, number * 0x1234567890ABCDEF + 1),
        "sort_key": ("service", "timestamp"),
        "schema_id": "s1",
    } | fields
    path = f"{values['tenant']}/{values['shard']}/{values['id']}.parquet"
    return Block(rows=values["fingerprint"].rows, **{"path": path} | values)


def blocks_of(*numbers: int, **fields: Any) -> list[Block]:
    """One block for each number."""
    return [a_block(number, **fields) for number in numbers]


def output_of(number: int, sources: list[Block], **fields: Any) -> Block:
    """What a correct merge of the sources is: their rows, their times, one level higher."""
    first = sources[0]
    whole = RowFingerprint()
    for source in sources:
        whole += source.fingerprint
    values: dict[str, Any] = {
        "tenant": first.tenant,
        "shard": first.shard,
        "level": first.level + 1,
        "min_time": min(source.min_time for source in sources),
        "max_time": max(source.max_time for source in sources),
        "fingerprint": whole,
    }
    return a_block(number, **values | fields)


def tables(database: IndexDatabase) -> dict[str, list[dict[str, Any]]]:
    """All that is in the index, for comparison: without the marks of calls and the count of changes."""
    with database.snapshot() as connection:
        content = {}
        for table in METADATA.sorted_tables:
            rows = [dict(row) for row in connection.execute(select(table)).mappings()]
            for row in rows:
                for name in ("claim", "version", "claim_version", "gone_version", "forgotten", "added", "ended"):
                    row.pop(name, None)
            content[table.name] = sorted(rows, key=lambda row: str(sorted(row.items(), key=lambda item: item[0])))
    return content


def check(database: IndexDatabase) -> None:
    """What is true of every index between any two changes."""
    content = tables(database)
    blocks = {row["id"]: row for row in content["blocks"]}
    jobs = {row["job"]: row for row in content["jobs"]}
    claimed = {(row["job"], row["block"]) for row in content["job_sources"]}
    quarantined = {row["block"] for row in content["quarantine"]}
    buried = {row["block"] for row in content["tombstones"]}
    assert buried == {name for name, row in blocks.items() if row["state"] == "tombstoned"}
    assert quarantined <= {name for name, row in blocks.items() if row["state"] == "live"}
    for name, row in blocks.items():
        waits = row["state"] == "live" and name not in quarantined
        assert (row["arrival"] is not None) == waits, f"{name}: {row['state']}, but its place is {row['arrival']}"
        if row["job"] is not None:
            assert jobs[row["job"]]["state"] == "claimed", f"{name} belongs to {jobs[row['job']]}"
            assert (row["job"], name) in claimed
    places = [row["arrival"] for row in blocks.values() if row["arrival"] is not None]
    assert len(places) == len(set(places))
    assert max(places, default=0) <= content["block_index"][0]["arrivals"]
    assert len(content["block_index"]) == 1
    live = {row["path"] for row in blocks.values() if row["state"] != "deleted"}
    assert not live & {row["path"] for row in content["condemned"]}, "an object in use is being deleted"


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
