"""INT96: how Spark writes timestamps by default, in days and nanoseconds of the day.

pyarrow reads it as 64-bit nanoseconds, which go from 1677 to 2262: 9999-12-31, a usual end of validity, would become
another date without an error, and both sides of a proof would read the same wrong one. In microseconds it is exact
unless there are digits beyond them. So each column is read in a unit that holds every value of it: most columns are
exact in either, and are merged with columns of both; a column that neither holds is read as the 12 bytes that it is,
and written as such. Our own files say what they have; of others the columns are read to find out. Spark has
microseconds only, so where nanoseconds are no question its files are not read for that.

pyarrow reads all INT96 of a file in one unit. Columns that need the other one are read as bytes, too, and then taken
for the times that they are (`Int96Reading.decoded`).

A merge writes INT96 again where its sources have nothing else: as 64-bit nanoseconds Spark could not read them at all.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.format.footer_shape import FIXED, INT96
from compaction.blocks.format.logical import (
    EITHER,
    RAW,
    LeafMeaning,
    escaped,
    leaf_arrays,
    list_of,
    with_leaf_types,
    with_reading,
)
from compaction.blocks.format.thrift_edit import I32, parse, written

SPARK_PREFIX: Final = b"org.apache.spark."
"""Of keys in the metadata of files that Spark has written; merges of such files keep one of them."""
SPARK_VERSION: Final = b"org.apache.spark.version"
"""Spark reads old dates by it: without it, as those of another calendar, or not at all."""
READING_KEY: Final = b"compaction.dev.int96"
"""In our own files: how their INT96 is read (`Int96Reading.said`)."""
MAGIC: Final = b"PAR1"
_PHYSICAL: Final = "INT96"
_MICROSECOND: Final = 1_000
_SECOND: Final = 1_000_000_000
_DAY: Final = 86_400
_EPOCH: Final = 2_440_588
"""The Julian day of 1970-01-01."""
_BATCH_ROWS: Final = 1 << 16
_FAR: Final = {"us": (1 << 63) // 1_000_000, "ns": (1 << 63) // _SECOND}
"""Seconds around 1970 that 64 bits hold in a unit, about: what is nearer is exact."""
_STATES: Final = (*_FAR, EITHER, RAW)
_WIDTH: Final = 12
_STORED: Final = np.dtype([("nanoseconds", "<u8"), ("day", "<u4")])
"""As pyarrow takes it: of days before 4713 BC it makes others."""
_SCHEMA, _GROUPS, _COLUMNS, _META = 2, 4, 1, 3
_TYPE, _LENGTH, _NAME, _CHILDREN, _PATH, _STATISTICS = 1, 2, 4, 5, 3, 12
"""Fields of parquet.thrift: of the footer down to a chunk; of a node, and of a chunk's metadata."""

Numbers = npt.NDArray[np.int64]


class Int96Error(ValueError):
    """The values of a column are not what its file promises: says which column, and why."""


@dataclass(frozen=True, slots=True)
class Int96Reading:
    """The unit in which each INT96 column of a file is read, by its path in Parquet: in "us" or "ns", where this unit
    alone holds its values, in EITHER of them, or as RAW bytes. `assumed`: nothing was read to know it. `beside_others`:
    other timestamps of the file are not INT96.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    assumed: bool = False
    beside_others: bool = False

    @property
    def unit(self) -> str | None:
        """In which pyarrow reads those that are not read as bytes: the one that more of them need."""
        units = list(self.columns.values())
        return ("ns" if units.count("ns") > units.count("us") else "us") if units else None

    @property
    def as_bytes(self) -> frozenset[str]:
        """Paths of the columns that pyarrow reads as bytes."""
        return frozenset(path for path, unit in self.columns.items() if unit not in (self.unit, EITHER))

    @property
    def options(self) -> dict[str, Any]:
        """Options of pyarrow's reader."""
        return {} if self.unit is None else {"coerce_int96_timestamp_unit": self.unit}

    def said(self) -> bytes:
        """For the file's own metadata."""
        return json.dumps(dict(sorted(self.columns.items()))).encode()

    def metadata(self, metadata: pq.FileMetaData, footer: bytes) -> pq.FileMetaData:
        """Return the metadata of the file that pyarrow is given: of its `footer`, in which some columns are bytes."""
        return _with_bytes(footer, self.as_bytes) if self.as_bytes else metadata

    def meanings(self, leaves: Sequence[LeafMeaning]) -> list[LeafMeaning]:
        """The leaves, with how they are read. Beside other timestamps INT96 is written as these are: so it is like one
        of them, of the unit in which it is read, and none of Spark's is merged with what becomes 64-bit nanoseconds.
        """
        return [
            with_reading(leaf, unit, told=unit == RAW or not self.beside_others)
            if (unit := self.columns.get(leaf.name)) is not None
            else leaf
            for leaf in leaves
        ]

    def schema(self, schema: pa.Schema, meanings: Mapping[str, LeafMeaning]) -> pa.Schema:
        """The schema of what `decoded` returns; `schema`: of what pyarrow reads, `meanings`: its leaves by path."""
        times = {
            path: pa.timestamp(self.columns[item.name])
            for path, item in meanings.items()
            if item.name in self.as_bytes and not item.raw_times
        }
        fields = [item.with_type(with_leaf_types(item.type, escaped(item.name), times)) for item in schema]
        return pa.schema(fields, metadata=schema.metadata) if times else schema

    def decoded(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Convert a batch that pyarrow has read, some columns of the file, to the types of its schema. Raises
        Int96Error.
        """
        if self.as_bytes <= {path for path, unit in self.columns.items() if unit == RAW}:
            return batch
        names = batch.schema.names
        columns = [_decoded(item, schema.field(name).type) for name, item in zip(names, batch.columns, strict=True)]
        fields = [item.with_type(column.type) for item, column in zip(batch.schema, columns, strict=True)]
        return pa.record_batch(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


@dataclass(slots=True)
class WrittenTimes:
    """The units that hold the times of the columns that are being written as INT96, by their paths in Parquet."""

    exact: dict[str, set[str]] = field(default_factory=dict)

    def add(self, column: pa.Array, paths: Sequence[str]) -> None:
        """Take in values of a top column; `paths`: of its leaves."""
        for path, leaf in zip(paths, leaf_arrays(column), strict=True):
            if pa.types.is_timestamp(leaf.type):
                exact, unit = self.exact.setdefault(path, set(_FAR)), leaf.type.unit
                if exact != {unit} and not _is_exact_in_both(leaf.drop_null().cast(pa.int64()).to_numpy(), unit):
                    exact &= {unit}

    def states(self) -> dict[str, str]:
        """The way in which each column is read, by its path."""
        return {path: _state(exact) for path, exact in self.exact.items()}


def _is_exact_in_both(numbers: Numbers, unit: str) -> bool:
    if unit == "ns":
        return not bool((numbers % _MICROSECOND).any())
    seconds = _SECOND // _MICROSECOND
    return not len(numbers) or (
        int(numbers.min()) >= (1 - _FAR["ns"]) * seconds and int(numbers.max()) < _FAR["ns"] * seconds
    )


def _state(exact: Collection[str]) -> str:
    return EITHER if len(exact) == len(_FAR) else next(iter(exact), RAW)


def reading_of(metadata: pq.FileMetaData, footer: bytes, source: Any, *, look: bool = True) -> Int96Reading:
    """Return the way in which the INT96 columns of a file are read; `footer`: its raw bytes, `source`: the file, whose
    columns of that type are read when nothing else says it. Without `look` a file of Spark is taken to need
    microseconds. Raises what pyarrow raises.
    """
    paths = [path for leaf in range(metadata.num_columns) if (path := _int96_path(metadata, leaf))]
    if not paths:
        return Int96Reading()
    columns = _said(metadata, paths)
    assumed = columns is None and not look and _is_of_spark(metadata)
    if assumed:
        columns = dict.fromkeys(paths, "us")
    elif columns is None:
        as_bytes = _with_bytes(footer, paths)
        columns = {path: _state(_exact_units(as_bytes, source, path)) for path in paths}
    return Int96Reading(columns, assumed=assumed, beside_others=has_other_timestamps(metadata))


def _said(metadata: pq.FileMetaData, paths: Collection[str]) -> Mapping[str, str] | None:
    """Return the reading that the file itself states, if it states one for exactly these columns: a program that
    rewrote the file may have kept the key only.
    """
    try:
        said = json.loads((metadata.metadata or {}).get(READING_KEY, b"null"))
    except (ValueError, RecursionError):
        return None
    return (
        said
        if isinstance(said, dict) and said.keys() == set(paths) and set(map(str, said.values())) <= set(_STATES)
        else None
    )


def _is_of_spark(metadata: pq.FileMetaData) -> bool:
    keys = metadata.metadata or {}
    return READING_KEY not in keys and any(key.startswith(SPARK_PREFIX) for key in keys)


def check_spark(metadata: pq.FileMetaData, reading: Int96Reading) -> None:
    """Check that the assumption about Spark's files holds for this one, whose columns were read. Raises Int96Error."""
    other = sorted(path for path, unit in reading.columns.items() if unit in ("ns", RAW))
    if other and _is_of_spark(metadata):
        raise Int96Error(
            f"column {other[0]}: times (INT96) that microseconds do not hold, which Spark cannot have: "
            f"write it again with times from the year -290307 to 294246"
        )


def _int96_path(metadata: pq.FileMetaData, leaf: int) -> str:
    column = metadata.schema.column(leaf)
    return str(column.path) if column.physical_type == _PHYSICAL else ""


def _with_bytes(footer: bytes, paths: Collection[str]) -> pq.FileMetaData:
    changed = with_physical_type(footer, paths, FIXED)
    framed = MAGIC + changed + len(changed).to_bytes(4, "little") + MAGIC
    return pq.ParquetFile(pa.BufferReader(framed), thrift_string_size_limit=len(framed)).metadata


def _exact_units(as_bytes: pq.FileMetaData, source: Any, path: str) -> set[str]:
    """The units that hold every value of a column."""
    exact = set(_FAR)
    file = pq.ParquetFile(source, metadata=as_bytes)
    for group in range(as_bytes.num_row_groups):
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[path], use_threads=False):
            for leaf in (leaf for column in batch.columns for leaf in leaf_arrays(column) if _is_stored(leaf)):
                exact = {unit for unit in exact if _holds(unit, *_parts(leaf.drop_null()))}
    return exact


def _holds(unit: str, seconds: Numbers, nanoseconds: npt.NDArray[np.uint64]) -> bool:
    digits = unit == "ns" or not bool((nanoseconds % np.uint64(_MICROSECOND)).any())
    return digits and bool((np.abs(seconds) < _FAR[unit]).all())


def _parts(stored: pa.Array) -> tuple[Numbers, npt.NDArray[np.uint64]]:
    """Seconds since 1970, which hold every day that there is, and nanoseconds of the second."""
    buffer = stored.buffers()[1]
    if buffer is None or not len(stored):
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    values = np.frombuffer(buffer, _STORED, len(stored), stored.offset * _WIDTH)
    seconds, nanoseconds = np.divmod(values["nanoseconds"], np.uint64(_SECOND))
    return (values["day"].astype(np.int64) - _EPOCH) * _DAY + seconds.astype(np.int64), nanoseconds


def _is_stored(array: pa.Array) -> bool:
    return bool(pa.types.is_fixed_size_binary(array.type) and array.type.byte_width == _WIDTH)


def _decoded(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values, those that were read as bytes in the unit that `kind` says."""
    if array.type.equals(kind):
        return array
    if isinstance(array, pa.ExtensionArray):
        return _decoded(array.storage, kind)
    if _is_stored(array) and pa.types.is_timestamp(kind):
        return _times(array, kind)
    if pa.types.is_struct(kind):
        children = [_decoded(array.field(place), item.type) for place, item in enumerate(kind)]
        # Texts beside the times may have been read as dictionaries.
        fields = [item.with_type(child.type) for item, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        keys, items = _decoded(array.keys, kind.key_type), _decoded(array.items, kind.item_type)
        fields = [kind.key_field.with_type(keys.type), kind.item_field.with_type(items.type)]
        child = pa.StructArray.from_arrays([keys, items], fields=fields)
        whole = pa.map_(keys.type, fields[1])
    elif pa.types.is_nested(kind):
        child = _decoded(array.values, kind.value_type)
        whole = list_of(kind, kind.value_field.with_type(child.type))
    else:
        return array
    buffers = array.buffers()[: whole.num_buffers]
    return pa.Array.from_buffers(whole, len(array), buffers, offset=array.offset, children=[child])


def _times(stored: pa.Array, kind: pa.DataType) -> pa.Array:
    seconds, nanoseconds = _parts(stored)
    there = stored.is_valid().to_numpy(zero_copy_only=False)
    if len(seconds) != len(stored):
        return pa.nulls(len(stored), kind)
    if not _holds(kind.unit, seconds[there], nanoseconds[there]):
        raise Int96Error(f"it says that its times (INT96) are exact in {kind.unit}, and they are not")
    step = 1 if kind.unit == "ns" else _MICROSECOND
    numbers = seconds * np.int64(_SECOND // step) + (nanoseconds // np.uint64(step)).astype(np.int64)
    return pa.array(numbers, pa.int64(), mask=~there).cast(kind)


def has_int96(metadata: pq.FileMetaData) -> bool:
    """Return whether any column is stored as INT96."""
    return any(_int96_path(metadata, leaf) for leaf in range(metadata.num_columns))


def has_other_timestamps(metadata: pq.FileMetaData) -> bool:
    """Return whether any column of timestamps is stored as another type than INT96."""
    return any(metadata.schema.column(leaf).logical_type.type == "TIMESTAMP" for leaf in range(metadata.num_columns))


def arrow_schema(metadata: pq.FileMetaData, schema: pa.Schema, source: Any, reading: Int96Reading) -> pa.Schema:
    """The schema as pyarrow reads the file: `schema`, unless it has INT96. `metadata`: what `reading` makes of it."""
    options = reading.options
    return pq.ParquetFile(source, metadata=metadata, **options).schema_arrow if options else schema


def with_physical_type(footer: bytes, paths: Collection[str], kind: int) -> bytes:
    """The footer, in which the columns of these paths are INT96 or, of the same width, FIXED. Both are stored alike,
    PLAIN or in a dictionary. Their bounds go: they are in another order.
    """
    parsed = parse(footer)
    # The schema is a list in depth-first order: each open node counts the children that are still to come.
    open_nodes: list[tuple[bytes, int]] = []
    for place, node in enumerate(parsed[_SCHEMA][1][1]):
        if open_nodes:
            open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] - 1)
        children = node.get(_CHILDREN, (I32, 0))[1]
        if children or not place:
            open_nodes.append((node[_NAME][1], children))
        elif (
            node[_TYPE][1] in (INT96, FIXED)
            and b".".join([*(name for name, _ in open_nodes[1:]), node[_NAME][1]]).decode(errors="replace") in paths
        ):
            node[_TYPE] = (I32, kind)
            node.pop(_LENGTH, None)
            if kind == FIXED:
                node[_LENGTH] = (I32, _WIDTH)
        while open_nodes and open_nodes[-1][1] == 0:
            open_nodes.pop()
    for group in parsed[_GROUPS][1][1]:
        for chunk in group[_COLUMNS][1][1]:
            meta = chunk[_META][1]
            is_either = meta[_TYPE][1] in (INT96, FIXED)
            if is_either and b".".join(meta[_PATH][1][1]).decode(errors="replace") in paths:
                meta[_TYPE] = (I32, kind)
                meta.pop(_STATISTICS, None)
    return written(parsed)
