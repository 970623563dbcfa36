"""The order of what a merge writes: that of the sources, or the one that was asked for; declared in its footer."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.api.job.job_status import ReportOutcome
from compaction.blocks.model import block_path
from compaction.blocks.store import BlockStore, BlockStoreConnection
from support.processes.worker_ports import ThreadEngine
from support.stores.block_index import block_id
from support.stores.block_jobs import claim, job_of, run
from support.stores.block_stores import content
from support.stores.blocks import parquet, rows

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
