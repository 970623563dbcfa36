"""Parquet blocks made for tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.format.metadata import BlockMetadata

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
