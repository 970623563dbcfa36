"""INT96: how Spark writes timestamps by default, in days and nanoseconds of the day.

pyarrow reads it as 64-bit nanoseconds, which go from 1677 to 2262: 9999-12-31, a usual end of validity, would become
another date without an error. Spark has microseconds, so its files are read in these and nothing is lost. Of other
unknown writers, and they keep their nanoseconds.

A merge writes INT96 again where its sources have nothing else: as 64-bit nanoseconds Spark could not read them at all.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

SPARK_PREFIX: Final = b"org.apache.spark."
"""Of keys in the metadata of files that Spark has written; merges of such files keep one of them."""
SPARK_VERSION: Final = b"org.apache.spark.version"
"""Spark reads old dates by it: without it, as those of another calendar, or not at all."""
_PHYSICAL: Final = "INT96"


def read_options(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Options of pyarrow's reader for a file with this metadata."""
    keys = metadata.metadata or {}
    if has_int96(metadata) and any(key.startswith(SPARK_PREFIX) for key in keys):
        return {"coerce_int96_timestamp_unit": "us"}
    return {}


def has_int96(metadata: pq.FileMetaData) -> bool:
    """Whether any column is stored so."""
    return any(metadata.schema.column(leaf).physical_type == _PHYSICAL for leaf in range(metadata.num_columns))


def has_other_timestamps(metadata: pq.FileMetaData) -> bool:
    """Whether any column of timestamps is stored otherwise."""
    return any(metadata.schema.column(leaf).logical_type.type == "TIMESTAMP" for leaf in range(metadata.num_columns))


def arrow_schema(metadata: pq.FileMetaData, schema: pa.Schema, source: Any) -> pa.Schema:
    """The schema as the file is read with these options: `schema`, unless it has INT96."""
    options = read_options(metadata)
    return pq.ParquetFile(source, metadata=metadata, **options).schema_arrow if options else schema
