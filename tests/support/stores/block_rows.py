"""A merge in plain Python, to which the real one must be equal; rows as dicts, files as bytes in memory."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.merge.footers import MergeInput

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


def parquet(table: pa.Table, *, key: Sequence[str] = (), **options: Any) -> bytes:
    """The table as a file; `key`: the sort order it declares."""
    sink = io.BytesIO()
    order = pq.SortingColumn.from_ordering(table.schema, [(name, "ascending") for name in key]) if key else None
    pq.write_table(table, sink, sorting_columns=order, **options)
    return sink.getvalue()


def block(data: bytes, name: str = "block", **options: Any) -> MergeInput:
    """The file as an input."""
    opened: Callable[[], io.BytesIO] = lambda: io.BytesIO(data)  # noqa: E731
    return MergeInput(name=name, open=opened, **options)
