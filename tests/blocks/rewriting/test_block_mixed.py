"""Sources that differ from each other, and objects that others meddle with: what comes out is exactly the rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.api.enums import JobReason
from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.index.tombstones import condemn
from compaction.blocks.model import RowFingerprint, block_path
from compaction.blocks.registration.describe import describe
from compaction.blocks.registration.foreign import assigned_id
from compaction.blocks.store import BlockStore, BlockStoreConnection
from support.blocks.block_stores import block_id, content, fill, read, upload
from support.blocks.blocks import assert_tidy, claim, clean, job_of, orphans, parquet, rows, run
from support.processes.worker_ports import FakeLease, ThreadEngine


def test_sources_of_several_orders(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """One is sorted by time only, one not at all, one says that it is sorted and is not."""
    ids = list(fill(block_store, range(3)))
    backwards = rows(100, start=300).take(pa.array(range(99, -1, -1)))
    others = {
        4: parquet(rows(100, start=400).sort_by("time"), sorted_by=["time"]),
        5: parquet(rows(100, start=500).take(pa.array([*range(50, 100), *range(50)]))),
        6: parquet(backwards, sorted_by=["service", "time"]),
    }
    for number, data in others.items():
        path = f"acme/0/{block_id(number)}.parquet"
        block_store.objects.put(path, data)
        ids += block_store.register([path], tenant="acme", shard=0).new
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    assert run(connection, job, engine).outcome is ReportOutcome.SUCCEEDED
    (made,) = block_store.live().blocks
    assert content(block_store) == before
    assert made.sort_key == ("service", "time")
    table = read(block_store, made.path)
    assert table.equals(table.sort_by([("service", "ascending"), ("time", "ascending")]))


def test_schemas_that_have_grown(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """A column more, a wider type: the registered fingerprints still add up, and anybody counts the same."""
    old, new = rows(100), rows(100, start=100)
    new = new.set_column(2, "value", pa.array(range(1 << 40, (1 << 40) + 100), pa.int64()))
    new = new.append_column("note", pa.array([None, "x"] * 50))
    paths = [upload(block_store, number, table=table) for number, table in enumerate((old, new))]
    ids = block_store.register(paths, tenant="acme", shard=0).new
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    assert run(connection, job, engine).outcome is ReportOutcome.SUCCEEDED
    (made,) = block_store.live().blocks
    table = read(block_store, made.path)
    assert table.schema.names == ["service", "time", "value", "note"]
    assert (made.fingerprint, fingerprint(table)) == (fingerprint(old) + fingerprint(new),) * 2
    assert block_store.describe(made.path, tenant="acme", shard=0, level=1, verify=True) == made
    assert made.fingerprint != RowFingerprint()


def test_an_upload_that_is_taken_for_an_orphan(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Whoever collects orphans condemned it just before the commit: refused, uncharged, done by the next attempt."""
    ids = fill(block_store, range(3))
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)

    class Hasty(FakeLease):
        def ensure_held(self) -> None:
            super().ensure_held()
            condemn(block_store.index, orphans(block_store), now=block_store.now())

    report = run(connection, job, engine, lease=Hasty())
    assert (report.outcome, report.reason, report.charged) == (ReportOutcome.FAILED, JobReason.STORE_UNREADABLE, False)
    assert "orphan" in report.message
    assert orphans(block_store) == ()
    claim(block_store, job, 2)
    assert run(connection, job, engine, token=2).outcome is ReportOutcome.SUCCEEDED
    assert content(block_store) == before
    assert_tidy(block_store)


def test_an_object_that_is_put_back_while_it_is_merged(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """Another version of the same bytes: nobody is to blame."""
    ids = fill(block_store, range(3))
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)

    class Restoring(FakeLease):
        def ensure_held(self) -> None:
            super().ensure_held()
            if self.checks == 3:
                path = block_store.live().blocks[1].path
                block_store.objects.put(path, block_store.objects.get(path))

    report = run(connection, job, engine, lease=Restoring())
    assert (report.outcome, report.skipped) == (ReportOutcome.SUCCEEDED, ())
    assert content(block_store) == before
    assert_tidy(block_store)


def test_blocks_that_lie_elsewhere(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """A lake keeps its own names; what is made of it has ours."""
    paths = [f"lake/{number}/part-0.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        block_store.objects.put(path, parquet(rows(100, start=100 * number), sorted_by=["service", "time"]))
    names = {path: assigned_id(block_store.objects.head(path)) for path in paths}
    blocks = [
        describe(block_store.objects, path, tenant="acme", shard=0, level=0, block=name) for path, name in names.items()
    ]
    ids = block_store.register_blocks(blocks).new
    before = content(block_store)
    block_store.objects.put(paths[1], b"no longer a block")
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, len(report.skipped)) == (ReportOutcome.SUCCEEDED, 1)
    block_store.objects.put(paths[1], parquet(rows(100, start=100), sorted_by=["service", "time"]))
    assert content(block_store) == before
    made = next(block for block in block_store.live().blocks if block.level == 1)
    assert made.path == f"acme/0/{made.id}.parquet"
    clean(block_store)
    left = {info.path for info in block_store.objects.list("lake")} | {made.path}
    assert left == {block.path for block in block_store.live().blocks}


# The order of what a merge writes: that of the sources, or the one that was asked for; declared in its footer.

SERVICE_TIME = ("service", "time")


def put(store: BlockStore, number: int, table: pa.Table, *declared: str) -> str:
    """Upload and register a file of row groups of 15 rows: a service lies on both sides of most ends. Its id."""
    path = block_path("acme", 0, block_id(number))
    store.objects.put(path, parquet(table, sorted_by=list(declared), row_group_size=15))
    (block,) = store.register([path], tenant="acme", shard=0).new
    return block


def by_time(count: int) -> pa.Table:
    """Rows in the order of time, and in none of services."""
    table = rows(count)
    return table.set_column(0, "service", pa.array([f"s{number % 7:04}" for number in range(count)]))


def output(store: BlockStore) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """By what the only live block is sorted: as the index has it, and as its footer declares it for others."""
    (block,) = store.live().blocks
    metadata = pq.read_metadata(pa.BufferReader(store.objects.get(block.path)))
    (declared,) = {
        tuple(metadata.schema.column(column.column_index).path for column in metadata.row_group(group).sorting_columns)
        for group in range(metadata.num_row_groups)
    }
    return block.sort_key, declared


def test_files_sorted_by_series_and_time_stay_so(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    """They were taken for unsorted, and came out sorted by time only, because row groups share first keys."""
    ids = [put(block_store, number, rows(100, start=40 * number), *SERVICE_TIME) for number in range(3)]
    before = content(block_store)
    job = job_of(connection, ids)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, "3 blocks merged into 1")
    assert output(block_store) == (SERVICE_TIME, SERVICE_TIME)
    assert content(block_store) == before


@pytest.mark.parametrize(
    ("wanted", "order", "message"),
    [
        ((), ("time",), "sorted by time, as most of its bytes were (1 block had another order)"),
        (SERVICE_TIME, SERVICE_TIME, "sorted by service, time, as sortKey says (1 block had another order)"),
    ],
)
def test_mixed_orders_become_one_and_the_status_says_which_and_why(
    connection: BlockStoreConnection,
    block_store: BlockStore,
    engine: ThreadEngine,
    wanted: tuple[str, ...],
    order: tuple[str, ...],
    message: str,
) -> None:
    ids = [put(block_store, 1, rows(30), *SERVICE_TIME), put(block_store, 2, by_time(2000))]
    before = content(block_store)
    job = job_of(connection, ids, sort_key=wanted)
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert (report.outcome, report.message) == (ReportOutcome.SUCCEEDED, f"2 blocks merged into 1, {message}")
    assert output(block_store) == (order, order)
    assert content(block_store) == before
    assert run(connection, job, engine).message == report.message, "also when the report was lost"


def test_a_wanted_order_that_no_block_can_have_is_named(
    connection: BlockStoreConnection, block_store: BlockStore, engine: ThreadEngine
) -> None:
    ids = [put(block_store, number, rows(10)) for number in range(2)]
    job = job_of(connection, ids, sort_key=("nowhere",))
    claim(block_store, job, 1)
    report = run(connection, job, engine)
    assert report.outcome is ReportOutcome.FAILED
    assert "nowhere" in report.message
