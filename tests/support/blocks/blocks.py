"""Parquet blocks made for tests."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.api.job.job_status import JobReport
from compaction.api.policy.block_store import BlockStoreReference, IndexReference
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.index.tombstones import unknown_paths
from compaction.blocks.merge.footers import MergeInput
from compaction.blocks.model import parse_block_path
from compaction.blocks.rewriting.report import BlockJob
from compaction.blocks.rewriting.rewriter import BlockRewriter
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.blocks.sweep import orphan_collector
from compaction.blocks.sweep.cleaning import sweep
from compaction.storage.secrets import GivenSecrets
from compaction.worker.ports import Engine, HeldLease
from support.processes.worker_ports import FakeLease

ULID = "01JD0000000000000000000000"
PATH = f"acme/0/{ULID}.parquet"


def rows(count: int, *, start: int = 0) -> pa.Table:
    """Sorted by (service, time): services a, b, ... of 10 rows each."""
    numbers = np.arange(start, start + count)
    names = pa.array([f"s{number:04}" for number in range(start // 10, (start + count + 9) // 10)])
    columns = {
        "service": names.take(pa.array(numbers // 10 - start // 10)),
        "time": pa.array(numbers).cast(pa.timestamp("us", "UTC")),
        "value": pa.array(np.arange(count, dtype=np.int32)),
    }
    return pa.table(columns)


def padded(count: int, width: int) -> pa.Array:
    """Numbers as text of so many characters."""
    return pc.utf8_lpad(pa.array(np.arange(count)).cast(pa.string()), width, "0")


def parquet(table: pa.Table, metadata: BlockMetadata | None = None, **options: Any) -> bytes:
    """The file; `sorted_by`: names that go into `sorting_columns`."""
    names = options.pop("sorted_by", None)
    if names:
        options["sorting_columns"] = [pq.SortingColumn(table.schema.get_field_index(name)) for name in names]
    group = options.pop("row_group_size", 1 << 20)
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=group)
        if metadata is not None:
            writer.add_key_value_metadata(metadata.encode())
    return file.getvalue()


def with_footer(footer: bytes, *, body: bytes = b"") -> bytes:
    """A file of any footer at all."""
    return b"PAR1" + body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def footer_of(data: bytes) -> bytes:
    size = int.from_bytes(data[-8:-4], "little")
    return data[-8 - size : -8]


# A merge in plain Python, to which the real one must be equal; rows as dicts, files as bytes in memory.

Row = dict[str, Any]


def order_of(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    """Python's order of these is the order of the rows: numbers, then NaN, then null; strings by their bytes."""
    return tuple(_place(row.get(name)) for name in key)


def _place(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (2,)
    if isinstance(value, float) and math.isnan(value):
        return (1,)
    return (0, value.encode() if isinstance(value, str) else value)


def merged(files: Iterable[Sequence[Row]], key: Sequence[str]) -> list[Row]:
    """All rows in the order of (key, file, row)."""
    return sorted((row for rows in files for row in rows), key=lambda row: order_of(row, key))


def keep_last(rows: Sequence[Row], key: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """(rows that are kept, rows that are dropped) of rows in order."""
    kept: list[Row] = []
    dropped: list[Row] = []
    for row, after in zip_longest(rows, rows[1:]):
        same = after is not None and order_of(row, key) == order_of(after, key)
        (dropped if same else kept).append(row)
    return kept, dropped


def table_of(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """The rows as a table."""
    return pa.table([pa.array([row.get(field.name) for row in rows], field.type) for field in schema], schema=schema)


def shown(rows: Iterable[Row]) -> list[str]:
    """Rows as text, so that NaN equals NaN and -0.0 is not 0.0."""
    return [repr(row) for row in rows]


def parquet_of(table: pa.Table, *, key: Sequence[str] = (), **options: Any) -> bytes:
    """The table as a file; `key`: the sort order it declares."""
    sink = io.BytesIO()
    order = pq.SortingColumn.from_ordering(table.schema, [(name, "ascending") for name in key]) if key else None
    pq.write_table(table, sink, sorting_columns=order, **options)
    return sink.getvalue()


def block(data: bytes, name: str = "block", **options: Any) -> MergeInput:
    """The file as an input."""
    opened: Callable[[], io.BytesIO] = lambda: io.BytesIO(data)  # noqa: E731
    return MergeInput(name=name, open=opened, **options)


# Jobs of block stores for tests: claimed and run as a worker runs them, and what must be true afterwards.

JOB = "job-1"
MEBIBYTE = 1 << 20


def secrets_of(connection: BlockStoreConnection) -> GivenSecrets:
    """The Secrets of the policy in whose jobs the store is named."""
    values = {"index": {"url": connection.index_url}, "credentials": dict(connection.options)}
    return GivenSecrets(values, "the test")


def reference_of(connection: BlockStoreConnection) -> BlockStoreReference:
    return BlockStoreReference(
        url=connection.url,
        credentials_secret_name="credentials" if connection.options else None,
        index=IndexReference(secret_name="index"),
    )


def job_of(connection: BlockStoreConnection, ids: Sequence[str], **changes: Any) -> BlockJob:
    """A job that makes blocks of level 1 for tenant acme, shard 0."""
    values: dict[str, Any] = {"name": JOB, "level": 1, "memory_bytes": 64 * MEBIBYTE, "tenant": "acme", "shard": 0}
    return BlockJob(store=reference_of(connection), blocks=tuple(sorted(ids)), **values | changes)


def claim(store: BlockStore, job: BlockJob, token: int) -> None:
    store.claim(job=job.name, token=token, sources=job.blocks, output_level=job.level)


def run(
    connection: BlockStoreConnection,
    job: BlockJob,
    engine: Engine,
    *,
    token: int = 1,
    lease: HeldLease | None = None,
    patience: float = 5.0,
    bytes_per_second: int | None = None,
) -> JobReport:
    """One attempt, as a worker makes it."""
    rewriter = BlockRewriter(engine, holder=f"worker-{token}", secrets=secrets_of(connection), patience=patience)
    lease = lease or FakeLease(token=token, bytes_per_second=bytes_per_second)
    return rewriter.attempt(job, token=token, lease=lease)


def paths(store: BlockStore) -> set[str]:
    """All objects of the store that could be blocks."""
    return {info.path for info in store.objects.list() if parse_block_path(info.path) is not None}


def orphans(store: BlockStore) -> tuple[str, ...]:
    """Objects that no block refers to."""
    return unknown_paths(store.index, sorted(paths(store)))


def clean(store: BlockStore) -> None:
    """What the coordinator does in time: a month later, by everybody's clock, it sweeps and collects."""
    month = timedelta(days=30)
    now = store.now() + int(month.total_seconds()) * 1_000_000
    assert sweep(store.objects, store.index, now=now, grace=0).failed == {}
    with patch.object(orphan_collector, "_store_now", lambda objects: datetime.now(UTC) + month):
        assert orphan_collector.collect_orphans(store.objects, store.index, now=now).failed == {}


def assert_tidy(store: BlockStore) -> None:
    """After cleaning, the objects are those of the live blocks, no more and no fewer."""
    clean(store)
    assert paths(store) == {block.path for block in store.live().blocks}
