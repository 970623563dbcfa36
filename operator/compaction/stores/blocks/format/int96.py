"""INT96: how Spark writes timestamps by default, in days and nanoseconds of the day.

pyarrow reads it as 64-bit nanoseconds, which go from 1677 to 2262: 9999-12-31, a usual end of validity, would become
another date without an error, and both sides of a proof would read the same wrong one. In microseconds it is exact
unless there are digits beyond them. So a file is read in microseconds where these hold every value, else in
nanoseconds where those do; a column that neither holds is read as the 12 bytes that it is, and written as such. Spark
has microseconds only, and our own files say what they have; of others the columns are read to find out.

A merge writes INT96 again where its sources have nothing else: as 64-bit nanoseconds Spark could not read them at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.stores.blocks.format.footer_shape import FIXED
from compaction.stores.blocks.format.logical import TIMES_IN_DAYS, LeafMeaning
from compaction.stores.blocks.format.thrift_edit import I32, parse, written

SPARK_PREFIX: Final = b"org.apache.spark."
"""Of keys in the metadata of files that Spark has written; merges of such files keep one of them."""
SPARK_VERSION: Final = b"org.apache.spark.version"
"""Spark reads old dates by it: without it, as those of another calendar, or not at all."""
READING_KEY: Final = b"compaction.dev.int96"
"""In our own files: how their INT96 is read (`Int96Reading.said`)."""
MAGIC: Final = b"PAR1"
_PHYSICAL: Final = "INT96"
_SECOND: Final = 1_000_000_000
_BATCH_ROWS: Final = 1 << 16
_FAR: Final = {"us": (1 << 63) // 1_000_000, "ns": (1 << 63) // _SECOND}
"""Seconds around 1970 that 64 bits hold in a unit, about: what is nearer is exact."""
_WIDTH: Final = 12
_SCHEMA, _GROUPS, _COLUMNS, _META = 2, 4, 1, 3
_TYPE, _LENGTH, _NAME, _CHILDREN, _PATH, _STATISTICS = 1, 2, 4, 5, 3, 12
"""Fields of parquet.thrift: of the footer down to a chunk; of a node, and of a chunk's metadata."""


class Int96Error(ValueError):
    """The values of a column are not what its file promises: says which column, and why."""


@dataclass(frozen=True, slots=True)
class Int96Reading:
    """How the INT96 of a file is read: in this unit, None where it has none; `raw`: paths of the columns (of Parquet)
    that are read as bytes.
    """

    unit: str | None = None
    raw: frozenset[str] = frozenset()

    @property
    def options(self) -> dict[str, Any]:
        """Options of pyarrow's reader."""
        return {} if self.unit is None else {"coerce_int96_timestamp_unit": self.unit}

    def said(self) -> bytes:
        """For the file's own metadata."""
        return json.dumps({"unit": self.unit, "raw": sorted(self.raw)}).encode()

    def metadata(self, metadata: pq.FileMetaData, footer: bytes) -> pq.FileMetaData:
        """What pyarrow is given as the file's metadata: of its `footer`, in which raw columns are bytes."""
        if not self.raw:
            return metadata
        raw = with_physical_type(footer, self.raw, FIXED)
        framed = MAGIC + raw + len(raw).to_bytes(4, "little") + MAGIC
        return pq.ParquetFile(pa.BufferReader(framed), thrift_string_size_limit=len(framed)).metadata

    def meanings(self, leaves: Sequence[LeafMeaning]) -> list[LeafMeaning]:
        """The leaves, raw ones of a meaning that no bytes have."""
        return [
            replace(one, text=f"{one.text} {TIMES_IN_DAYS}".strip(), beyond_arrow=True) if one.name in self.raw else one
            for one in leaves
        ]


def reading_of(metadata: pq.FileMetaData, source: Any) -> Int96Reading:
    """How the INT96 of this file is read; `source`: the file, whose columns of that type are read when nothing else
    tells. Raises Int96Error, and what pyarrow raises.
    """
    keys = metadata.metadata or {}
    if not has_int96(metadata):
        return Int96Reading()
    if READING_KEY in keys:
        try:
            said = json.loads(keys[READING_KEY])
            return Int96Reading(said["unit"] if said["unit"] in _FAR else "us", frozenset(map(str, said["raw"])))
        except (ValueError, KeyError, TypeError):
            raise Int96Error(f"its metadata {READING_KEY.decode()} is not what we write") from None
    if any(key.startswith(SPARK_PREFIX) for key in keys):
        return Int96Reading("us")
    return _read(metadata, source)


def check_spark(metadata: pq.FileMetaData, source: Any) -> None:
    """Whether what `reading_of` takes for granted of Spark's files is true of this one. Raises Int96Error."""
    keys = metadata.metadata or {}
    if READING_KEY in keys or not any(key.startswith(SPARK_PREFIX) for key in keys) or not has_int96(metadata):
        return
    if (found := _read(metadata, source)) != Int96Reading("us"):
        column = min(found.raw, default="")
        raise Int96Error(
            f"column {column or 'of times'}: times (INT96) that microseconds do not hold, which Spark cannot have: "
            f"write it again with times from the year -290307 to 294246"
        )


def _read(metadata: pq.FileMetaData, source: Any) -> Int96Reading:
    """In the first unit that holds all columns, else in the one that holds the most."""
    paths = [path for leaf in range(metadata.num_columns) if (path := _int96_path(metadata, leaf))]
    exact = {path: _exact_units(metadata, source, path) for path in paths}
    raw = {unit: frozenset(path for path in paths if unit not in exact[path]) for unit in _FAR}
    unit = min(_FAR, key=lambda one: len(raw[one]))
    return Int96Reading(unit, raw[unit])


def _int96_path(metadata: pq.FileMetaData, leaf: int) -> str:
    column = metadata.schema.column(leaf)
    return str(column.path) if column.physical_type == _PHYSICAL else ""


def _exact_units(metadata: pq.FileMetaData, source: Any, column: str) -> set[str]:
    """Seconds hold every day that INT96 has; with them, nanoseconds modulo 2^64 tell the rest of the value."""
    exact = dict.fromkeys(_FAR, True)
    for seconds, nanoseconds in _read_twice(metadata, source, column):
        rest = nanoseconds.view(np.uint64) - seconds.view(np.uint64) * np.uint64(_SECOND)
        far = np.abs(seconds)
        exact["us"] &= not bool((rest % 1000).any()) and bool((far < _FAR["us"]).all())
        exact["ns"] &= bool((rest < _SECOND).all()) and bool((far < _FAR["ns"]).all())
    return {unit for unit, holds in exact.items() if holds}


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


def has_other_timestamps(metadata: pq.FileMetaData) -> bool:
    """Whether any column of timestamps is stored otherwise."""
    return any(metadata.schema.column(leaf).logical_type.type == "TIMESTAMP" for leaf in range(metadata.num_columns))


def arrow_schema(metadata: pq.FileMetaData, schema: pa.Schema, source: Any, reading: Int96Reading) -> pa.Schema:
    """The schema as the file is read: `schema`, unless it has INT96. `metadata`: what `reading` makes of it."""
    options = reading.options
    return pq.ParquetFile(source, metadata=metadata, **options).schema_arrow if options else schema


def with_physical_type(footer: bytes, paths: Collection[str], kind: int) -> bytes:
    """The footer, in which the columns of these paths are INT96 or, of the same width, FIXED. Both are stored alike,
    PLAIN or in a dictionary. Their bounds go: they are in another order.
    """
    parsed = parse(footer)
    open_nodes: list[tuple[bytes, int]] = []
    for place, node in enumerate(parsed[_SCHEMA][1][1]):
        if open_nodes:
            open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] - 1)
        children = node.get(_CHILDREN, (I32, 0))[1]
        if children or not place:
            open_nodes.append((node[_NAME][1], children))
        elif b".".join([*(name for name, _ in open_nodes[1:]), node[_NAME][1]]).decode(errors="replace") in paths:
            node[_TYPE] = (I32, kind)
            node.pop(_LENGTH, None)
            if kind == FIXED:
                node[_LENGTH] = (I32, _WIDTH)
        while open_nodes and open_nodes[-1][1] == 0:
            open_nodes.pop()
    for group in parsed[_GROUPS][1][1]:
        for chunk in group[_COLUMNS][1][1]:
            meta = chunk[_META][1]
            if b".".join(meta[_PATH][1][1]).decode(errors="replace") in paths:
                meta[_TYPE] = (I32, kind)
                meta.pop(_STATISTICS, None)
    return written(parsed)
