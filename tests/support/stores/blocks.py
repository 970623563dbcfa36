"""Parquet blocks made for tests."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.stores.blocks.format.metadata import BlockMetadata

ULID = "01JD0000000000000000000000"
PATH = f"acme/0/{ULID}.parquet"


def rows(count: int, *, start: int = 0) -> pa.Table:
    """Sorted by (service, time): services a, b, ... of 10 rows each."""
    services = [f"s{number // 10:04}" for number in range(start, start + count)]
    times = pa.array(range(start, start + count), pa.timestamp("us", "UTC"))
    return pa.table({"service": services, "time": times, "value": pa.array(range(count), pa.int32())})


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
