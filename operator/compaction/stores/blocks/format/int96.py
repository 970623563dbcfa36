"""INT96: how Spark writes timestamps by default, in days and nanoseconds of the day.

pyarrow reads it as 64-bit nanoseconds, which go from 1677 to 2262: 9999-12-31, a usual end of validity, would become
another date without an error, and both sides of a proof would read the same wrong one. In microseconds it is exact
unless there are digits beyond them. So a file is read in microseconds where these hold every value, else in
nanoseconds where those do, else not at all. Spark has microseconds only, and our own files say what they have; of
others the columns are read to find out.

A merge writes INT96 again where its sources have nothing else: as 64-bit nanoseconds Spark could not read them at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SPARK_PREFIX: Final = b"org.apache.spark."
"""Of keys in the metadata of files that Spark has written; merges of such files keep one of them."""
SPARK_VERSION: Final = b"org.apache.spark.version"
"""Spark reads old dates by it: without it, as those of another calendar, or not at all."""
UNIT_KEY: Final = b"compaction.dev.int96-unit"
"""In our own files: the unit in which their INT96 is exact."""
_PHYSICAL: Final = "INT96"
_SECOND: Final = 1_000_000_000
_BATCH_ROWS: Final = 1 << 16
_FAR: Final = {"us": (1 << 63) // 1_000_000, "ns": (1 << 63) // _SECOND}
"""Seconds around 1970 that 64 bits hold in a unit, about: what is nearer is exact."""


class Int96Error(ValueError):
    """The values of a column are exact in no unit that we have: says which column, and why."""


def unit_of(metadata: pq.FileMetaData, source: Any) -> str | None:
    """The unit in which the INT96 of this file is read, None where it has none; `source`: the file, whose columns of
    that type are read when nothing else tells.

    Raises Int96Error, and what pyarrow raises.
    """
    columns = [path for leaf in range(metadata.num_columns) if (path := _int96_path(metadata, leaf))]
    keys = metadata.metadata or {}
    if not columns:
        return None
    if (said := keys.get(UNIT_KEY, b"").decode(errors="replace")) in _FAR:
        return said
    if any(key.startswith(SPARK_PREFIX) for key in keys):
        return "us"
    units = {column: _unit_of_column(metadata, source, column) for column in columns}
    return max(units.values(), key=list(_FAR).index)


def _int96_path(metadata: pq.FileMetaData, leaf: int) -> str:
    column = metadata.schema.column(leaf)
    return str(column.path) if column.physical_type == _PHYSICAL else ""


def _unit_of_column(metadata: pq.FileMetaData, source: Any, column: str) -> str:
    """Seconds hold every day that INT96 has; with them, nanoseconds modulo 2^64 tell the rest of the value."""
    exact = dict.fromkeys(_FAR, True)
    for seconds, nanoseconds in _read_twice(metadata, source, column):
        rest = nanoseconds.view(np.uint64) - seconds.view(np.uint64) * np.uint64(_SECOND)
        if bool((rest >= _SECOND).any()):
            raise Int96Error(f"column {column}: the time of a day is not one (INT96)")
        far = np.abs(seconds)
        exact["us"] &= not bool((rest % 1000).any()) and bool((far < _FAR["us"]).all())
        exact["ns"] &= bool((far < _FAR["ns"]).all())
    if not any(exact.values()):
        raise Int96Error(
            f"column {column}: its times (INT96) go beyond what nanoseconds hold (1677 to 2262) and have digits beyond "
            f"microseconds: write it as TIMESTAMP of the unit that it needs"
        )
    return next(unit for unit, holds in exact.items() if holds)


def _read_twice(metadata: pq.FileMetaData, source: Any, column: str) -> Iterator[tuple[Any, Any]]:
    """The values of a column, as numbers: in seconds, and in nanoseconds modulo 2^64."""
    files = [pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit=unit) for unit in ("s", "ns")]
    for group in range(metadata.num_row_groups):
        batches = [
            file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[column], use_threads=False) for file in files
        ]
        for pair in zip(*batches, strict=True):
            for seconds, nanoseconds in zip(*(list(_values(one.column(0))) for one in pair), strict=True):
                yield (*(one.drop_null().view(pa.int64()).to_numpy() for one in (seconds, nanoseconds)),)


def _values(array: pa.Array) -> Iterator[pa.Array]:
    """The timestamps inside of a column."""
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _values(child)
    elif pa.types.is_map(array.type):
        yield from _values(array.keys)
        yield from _values(array.items)
    elif pa.types.is_nested(array.type):
        yield from _values(array.flatten())


def has_int96(metadata: pq.FileMetaData) -> bool:
    """Whether any column is stored so."""
    return any(_int96_path(metadata, leaf) for leaf in range(metadata.num_columns))


def read_options(unit: str | None) -> dict[str, Any]:
    """Options of pyarrow's reader for a file of this unit."""
    return {} if unit is None else {"coerce_int96_timestamp_unit": unit}


def has_other_timestamps(metadata: pq.FileMetaData) -> bool:
    """Whether any column of timestamps is stored otherwise."""
    return any(metadata.schema.column(leaf).logical_type.type == "TIMESTAMP" for leaf in range(metadata.num_columns))


def arrow_schema(metadata: pq.FileMetaData, schema: pa.Schema, source: Any, unit: str | None) -> pa.Schema:
    """The schema as the file is read in this unit: `schema`, unless it has INT96."""
    options = read_options(unit)
    return pq.ParquetFile(source, metadata=metadata, **options).schema_arrow if options else schema
