"""Writes the merged rows as Parquet, each column in the encoding that proved smallest on a sample."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.format.int96 import READING_KEY, Int96Reading, WrittenTimes
from compaction.blocks.format.logical import LOGICAL_KEY, RAW, text_with, texts_of, with_texts
from compaction.blocks.merge.columns import Columns, Rows
from compaction.blocks.merge.footers import ARROW_SCHEMA, MergeSettings
from compaction.blocks.merge.meanings import Meanings
from compaction.blocks.merge.schema import without_dictionary

# The encoding of each column: every one that its type can have is tried on a sample, compressed and as it is, and the
# cheapest of those that are about as small as the smallest wins.
#
# Measured with `make bench` (blocks): a fifth fewer bytes than the defaults of Parquet's writers, at half the CPU
# time, because a dictionary is not begun for a column that outgrows it.

DICTIONARY: Final = "DICTIONARY"
_MOST_SAMPLE_ROWS: Final = 1 << 16
_LEAST_SAMPLE_ROWS: Final = 1 << 12
_SAMPLE_SHARE: Final = 16
_ROWS_PER_VALUE: Final = 4
_WORTH: Final = 1.1
"""An encoding that is cheaper to write, and to read each time, may be so much larger than the smallest one."""
_BELOW: Final = 0.99
"""Of what common encodings take: the rest is for indexes, checksums and what the sample did not show."""
_PAGE_BYTES: Final = 1 << 20
_PAGE_ROWS: Final = 20_000
"""Of a page at most, as the writer has it by default."""
_LEAST_BATCH_ROWS: Final = 64


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """The encoding of one column. `bytes_per_row` and `dictionary_bytes`: of the sample, compressed."""

    encoding: str
    compressed: bool
    bytes_per_row: float

    def __str__(self) -> str:
        return self.encoding + ("+ZSTD" if self.compressed else "")


def candidates(kind: pa.DataType) -> tuple[str, ...]:
    """The encodings that a column of this type may have, the cheapest to read first; empty: let the writer decide.

    An encoding stands here only if Spark (both of its readers), DuckDB, Polars and pyarrow of the last years read it
    for every type that has it (docs/adr/0210-encodings-that-everybody-reads.md): tests/worker/spark/test_blocks.py and
    tests/blocks/merge/test_readers.py show it. Two are left out although they are often smaller:

    * BYTE_STREAM_SPLIT. Spark's vectorised reader refuses it up to 3.5 for every type and unsigned integers in 4.3;
      DuckDB refuses it for everything but floats up to 1.2, and for decimals, float16 and fixed-size binaries in 2.0.
    * DELTA_LENGTH_BYTE_ARRAY. Spark's vectorised reader up to 3.5 returns wrong texts without an error.
    """
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return (DICTIONARY, "PLAIN", "DELTA_BYTE_ARRAY")
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return (DICTIONARY, "PLAIN", "DELTA_BINARY_PACKED")
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return (DICTIONARY, "PLAIN")
    return ()


def candidates_of(declared: pa.Field, *, coded: bool) -> tuple[str, ...]:
    """The same for a column that is `declared` to readers. `coded`: its values repeat, so nothing is tried.

    What is declared as a dictionary is read as one: pyarrow cannot do that with DELTA_BYTE_ARRAY, older versions of
    Polars can only where the values lie in one.
    """
    allowed = candidates(without_dictionary(declared.type))
    if coded or pa.types.is_dictionary(declared.type):
        allowed = tuple(item for item in allowed if item == DICTIONARY)
    return allowed


def choose(sample: pa.Table, declared: pa.Schema, *, level: int, int96: bool = False) -> dict[str, ColumnEncoding]:
    """An encoding for each column of the sample, by name. `declared`: the types that readers see.
    `int96`: timestamps are stored so, which is no number that differences could be taken of.
    """
    allowed = {field.name: _allowed(sample, field, declared, int96=int96) for field in sample.schema}
    tried: dict[str, list[ColumnEncoding]] = {name: [] for name in allowed}
    for turn in range(max(map(len, allowed.values()), default=0)):
        trial = {name: encodings[turn] for name, encodings in allowed.items() if turn < len(encodings)}
        for name, both in _try(sample.select(list(trial)), trial, level=level).items():
            tried[name] += both
    return _within(tried)


def _within(tried: Mapping[str, Sequence[ColumnEncoding]]) -> dict[str, ColumnEncoding]:
    """The smallest of each, or what is cheaper for as long as the whole stays below what it would take in the
    encodings that every writer has: columns that cost the fewest bytes first.
    """
    smallest = {name: min(options, key=_size) for name, options in tried.items()}
    cheapest = {name: _cheapest(options) for name, options in tried.items()}
    room = sum(_BELOW * _common(options) - smallest[name].bytes_per_row for name, options in tried.items())
    chosen = dict(smallest)
    for name in sorted(tried, key=lambda item: cheapest[item].bytes_per_row - smallest[item].bytes_per_row):
        room -= cheapest[name].bytes_per_row - smallest[name].bytes_per_row
        if room < 0:
            break
        chosen[name] = cheapest[name]
    return chosen


def _size(option: ColumnEncoding) -> float:
    return option.bytes_per_row


def _cheapest(options: Sequence[ColumnEncoding]) -> ColumnEncoding:
    """Of those that are about as small as the smallest: to compress costs more than any encoding."""
    most = _WORTH * min(map(_size, options))
    return min((option for option in options if option.bytes_per_row <= most), key=lambda option: option.compressed)


def _common(options: Sequence[ColumnEncoding]) -> float:
    """Bytes per row as every writer could have it: compressed, in no encoding of differences."""
    common = [
        option.bytes_per_row for option in options if option.compressed and not option.encoding.startswith("DELTA")
    ]
    return min(common or map(_size, options))


def _allowed(sample: pa.Table, field: pa.Field, declared: pa.Schema, *, int96: bool) -> tuple[str, ...]:
    """Return the encodings that are tried on a column of the sample; the empty encoding is the writer's choice."""
    allowed = candidates_of(declared.field(field.name), coded=pa.types.is_dictionary(field.type))
    if int96 and pa.types.is_timestamp(field.type):
        allowed = tuple(item for item in allowed if item != "DELTA_BINARY_PACKED")
    if len(allowed) > 1 and not _repeats(sample.column(field.name)):
        allowed = tuple(item for item in allowed if item != DICTIONARY)
    return allowed or ("",)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Return whether a dictionary is worth trying: to fill one, and to read it, costs for each value that it has."""
    return int(pc.count_distinct(column).as_py()) * _ROWS_PER_VALUE <= len(column)


def _try(
    columns: pa.Table, encodings: Mapping[str, str], *, level: int
) -> dict[str, tuple[ColumnEncoding, ColumnEncoding]]:
    """Write all of them into memory, each in its encoding: what they take as they are, and compressed."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, columns.schema, compression="zstd", compression_level=level, **_options(encodings)
    ) as writer:
        writer.write_table(columns, row_group_size=max(1, columns.num_rows))
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    chunks = iter([group.column(leaf) for leaf in range(group.num_columns)])
    rows = max(1, columns.num_rows)
    found = {}
    for field in columns.schema:
        mine, encoding = list(islice(chunks, len(leaf_paths(field)))), encodings[field.name]
        small = sum(chunk.total_compressed_size for chunk in mine)
        large = sum(chunk.total_uncompressed_size for chunk in mine)
        found[field.name] = (
            ColumnEncoding(encoding, compressed=False, bytes_per_row=large / rows),
            ColumnEncoding(encoding, compressed=True, bytes_per_row=small / rows),
        )
    return found


def sample_rows(rows: int) -> int:
    """Return the number of rows, of so many, on which the encodings are tried: to try them on all rows costs as much as
    to write the rows thrice.
    """
    return max(_LEAST_SAMPLE_ROWS, min(_MOST_SAMPLE_ROWS, rows // _SAMPLE_SHARE))


def batch_rows(sample: pa.Table) -> int:
    """Return the number of rows that the writer encodes at a time, by which it also keeps to the size of a page.

    Its default of 1,024 spends a quarter of the CPU time on what is done once for each batch.
    """
    widest = max((column.nbytes // max(1, len(column)) for column in sample.columns), default=0)
    return max(_LEAST_BATCH_ROWS, min(_PAGE_ROWS, _PAGE_BYTES // max(1, widest)))


def whole_pages(rows: int) -> int:
    """So many rows, less what would be alone on a last page, if that is less than half of it: to write a page of a few
    rows costs as much as a full one.
    """
    alone = rows % _PAGE_ROWS
    return rows if rows < _PAGE_ROWS or 2 * alone >= _PAGE_ROWS else rows - alone


def _options(encodings: Mapping[str, str]) -> dict[str, Any]:
    return {
        "use_dictionary": [name for name, encoding in encodings.items() if encoding == DICTIONARY] or False,
        "column_encoding": {name: item for name, item in encodings.items() if item not in ("", DICTIONARY)} or None,
    }


def writer_options(schema: pa.Schema, encodings: Mapping[str, ColumnEncoding], *, level: int) -> dict[str, Any]:
    """Arguments of pyarrow's writer. Nested columns keep its defaults, with a dictionary for each leaf."""
    by_leaf: dict[str, ColumnEncoding] = {}
    for field in schema:
        for path in leaf_paths(field):
            chosen = encodings[field.name]
            by_leaf[path] = (
                chosen if chosen.encoding else ColumnEncoding(DICTIONARY, chosen.compressed, chosen.bytes_per_row)
            )
    return {
        **_options({path: item.encoding for path, item in by_leaf.items()}),
        "compression": {path: "zstd" if item.compressed else "none" for path, item in by_leaf.items()},
        "compression_level": {path: level for path, item in by_leaf.items() if item.compressed} or None,
    }


def leaf_paths(field: pa.Field) -> Sequence[str]:
    """Paths of the Parquet columns in which a field is stored, in order."""
    if not pa.types.is_nested(field.type):
        return [field.name]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema([field])):
        pass
    schema = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [schema.column(leaf).path for leaf in range(len(schema))]


# Writes the merged rows as Parquet: row groups by encoded bytes, page indexes where there are pages to tell apart,
# the sort order declared.
#
# The first rows are the sample on which encodings and the size of row groups are chosen. A coded column is written as
# a dictionary that holds only what the row group uses, without its strings ever being expanded; readers see the
# columns that the inputs declare (the Arrow schema that is stored is theirs; none is stored if no input has one).

_BLOOM_FPP: Final = 0.05
_MIN_GROUP_ROWS: Final = 1024
_MANY_ROWS: Final = 1 << 14
"""Rows of a part from which on what the writer does once for each costs nothing beside them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout that was chosen on the sample. `page_index`: a column of a row group has more than one page."""

    encodings: Mapping[str, ColumnEncoding]
    group_rows: int
    page_index: bool


@dataclass(frozen=True, slots=True)
class Declared:
    """The types of the columns that Arrow's readers see; `stored`: in the file's metadata. `int96`: timestamps are
    stored so.
    """

    schema: pa.Schema
    stored: bool
    int96: bool


class Output:
    """One file. `pending_bytes`: how much Arrow memory may wait for its row group to be full. `sample_rows`: on how
    many rows the layout is chosen.

    `bloom`: paths of the columns that get a bloom filter.
    """

    def __init__(
        self,
        sink: str | IO[bytes],
        columns: Columns,
        settings: MergeSettings,
        declared: Declared,
        *,
        pending_bytes: int,
        sample_rows: int,
        meanings: Meanings,
        bloom: Sequence[str] = (),
    ) -> None:
        self.row_groups = 0
        self.layout: Layout | None = None
        self._sink = sink
        self._columns = columns
        self._settings = settings
        self._declared = declared
        self._pending_bytes = pending_bytes
        self._sample_rows = sample_rows
        self._bloom = bloom
        self._meanings = meanings
        self._pending: list[Rows] = []
        self._count = 0
        self._writer: pq.ParquetWriter | None = None
        self._schema = columns.schema
        self._leaves = [leaf_paths(field) for field in columns.schema]
        self._times = WrittenTimes()
        self._add_times([pa.nulls(0, field.type) for field in columns.schema])

    def add(self, rows: Rows) -> None:
        """Append rows; writes the row groups that have become full."""
        self._pending.append(rows)
        self._count += rows.count
        if self.layout is None:
            if self._count < self._sample_rows and self._waiting_bytes() < self._pending_bytes // 2:
                return
            self._begin()
        assert self.layout is not None
        while self._count >= self.layout.group_rows:
            self._write(self.layout.group_rows)
        while self._count and self._waiting_bytes() >= self._pending_bytes:
            self._write(self._count)

    def close(self, metadata: Mapping[str, str]) -> None:
        """Write what is left, the metadata and the footer, which is in memory twice while it is written: nothing else
        is then. Raises LogicalTypeLostError.
        """
        if self.layout is None:
            self._begin()
        assert self.layout is not None
        while self._count:
            self._write(min(self._count, self.layout.group_rows))
        assert self._writer is not None
        pa.default_memory_pool().release_unused()
        arrow = {ARROW_SCHEMA.decode(): _arrow_schema(self._declared.schema)} if self._declared.stored else {}
        others = self._declared.schema.metadata or {}  # the writer keeps them only with a schema of its own
        self._writer.add_key_value_metadata({**others, **self._int96_said(), **_encoded(metadata), **_encoded(arrow)})
        self._writer.close()
        with open(self._sink, "r+b") if isinstance(self._sink, str) else nullcontext(self._sink) as file:
            self._meanings.put_into(file)

    def abort(self) -> None:
        """Let go of the file as it is, which is of no use."""
        if self._writer is not None:
            self._writer.close()

    def schema(self) -> pa.Schema:
        """Of the rows, with what the leaves mean as the footer says it, once the file is closed."""
        said, readings = texts_of(self._columns.schema), self._readings()
        leaves = [path for paths in self._leaves for path in paths]
        texts = {
            path: text_with(said.get(path, ""), readings.get(leaf, ""))
            for path, leaf in zip(self._meanings.paths, leaves, strict=True)
        }
        metadata = {key: value for key, value in (self._columns.schema.metadata or {}).items() if key != LOGICAL_KEY}
        metadata |= with_texts(self._columns.schema, texts).metadata or {}
        return self._columns.schema.with_metadata(metadata or None)

    def _waiting_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._pending)

    def _begin(self) -> None:
        """Choose the layout and write the file's head."""
        sample = self._sample()
        chosen = choose(
            sample, self._declared.schema, level=self._settings.compression_level, int96=self._declared.int96
        )
        per_row = sum(item.bytes_per_row for item in chosen.values()) or 1.0
        wanted = max(_MIN_GROUP_ROWS, int(self._settings.row_group_bytes / per_row))
        arrow_row = max(1, self._waiting_bytes() // max(1, self._count))
        fitting = max(1, self._pending_bytes // arrow_row)
        # `wanted` is by encoded bytes, `fitting` by the memory that the rows of a group take until it is written.
        group_rows = whole_pages(min(wanted, fitting, self._settings.max_group_rows))
        self.layout = Layout(chosen, group_rows, page_index=group_rows > batch_rows(sample))
        kinds = [
            pa.dictionary(pa.int32(), field.type)
            if (place in self._columns.memos and chosen[self._columns.schema.names[place]].encoding == DICTIONARY)
            else field.type
            for place, field in enumerate(self._columns.schema)
        ]
        fields = [field.with_type(kind) for field, kind in zip(self._columns.schema, kinds, strict=True)]
        self._schema = pa.schema(fields, metadata=self._columns.schema.metadata)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            store_schema=False,
            write_page_index=self.layout.page_index,
            use_deprecated_int96_timestamps=self._declared.int96,
            write_page_checksum=True,
            write_statistics=self._with_bounds(),
            sorting_columns=self._sorting(),
            bloom_filter_options=self._bloom_options() or None,
            write_batch_size=batch_rows(sample),
            **writer_options(self._columns.schema, chosen, level=self._settings.compression_level),
        )

    def _sample(self) -> pa.Table:
        """Rows from the middle of what has arrived, as they would be written."""
        count = min(self._count, self._sample_rows)
        joined = self._columns.join(self._pending) if self._pending else None
        if joined is None:
            return self._columns.schema.empty_table()
        self._pending = [joined]
        rows = joined.slice((self._count - count) // 2, count)
        arrays = [
            self._compact(place, part) if self._columns.is_coded(place, part) else part
            for place, part in enumerate(rows.columns)
        ]
        return pa.table(arrays, names=self._columns.schema.names)

    def _write(self, count: int) -> None:
        """Write the first `count` pending rows as one row group. What was pending goes column by column: where it is
        copied, only one column is there twice.
        """
        taken: list[list[pa.Array]] = []
        self._count -= count
        left = count
        while left:
            first = self._pending.pop(0)
            if first.count > left:
                self._pending.insert(0, first.slice(left, first.count - left))
                first = first.slice(0, left)
            taken.append(list(first.columns))
            left -= first.count
            del first
        arrays = []
        for place in range(len(self._schema)):
            arrays.append(self._as_written(place, [columns[place] for columns in taken]))
            for columns in taken:
                columns[place] = None
        assert self._writer is not None
        self._add_times(arrays)
        self._writer.write_table(pa.table(arrays, schema=self._schema), row_group_size=count)
        self.row_groups += 1

    def _as_written(self, place: int, parts: Sequence[pa.Array]) -> pa.Array | pa.ChunkedArray:
        """Parts of many rows are not copied together first: the writer encodes some rows at a time anyway."""
        wanted = self._schema.field(place).type
        if not pa.types.is_dictionary(wanted) and len(parts) * _MANY_ROWS <= sum(map(len, parts)):
            return pa.chunked_array([self._columns.plain(place, part) for part in parts], wanted)
        part = self._columns.joined(place, parts)
        if pa.types.is_dictionary(wanted):
            return self._compact(place, part) if self._columns.is_coded(place, part) else part.dictionary_encode()
        return self._columns.plain(place, part)

    def _compact(self, place: int, codes: pa.Array) -> pa.DictionaryArray:
        """Codes as a dictionary array of the values that are used, and no others."""
        values = self._columns.memos[place].values
        known = codes.fill_null(len(values)) if codes.null_count else codes
        used = np.bincount(known.to_numpy(), minlength=len(values) + 1)[:-1] > 0
        places = np.cumsum(used, dtype=np.int32) - np.int32(1)
        indices = pc.take(pa.array(places), codes, boundscheck=False)
        return pa.DictionaryArray.from_arrays(indices, values.take(pa.array(np.flatnonzero(used))), safe=False)

    def _sorting(self) -> list[pq.SortingColumn]:
        leaves = [path for paths in self._leaves for path in paths]
        return [pq.SortingColumn(leaves.index(name)) for name in self._settings.sort_key]

    def _add_times(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Take in what is written as INT96, to say how it is read."""
        if not self._declared.int96:
            return
        for paths, column in zip(self._leaves, columns, strict=True):
            for part in column.chunks if isinstance(column, pa.ChunkedArray) else (column,):
                self._times.add(part, paths)

    def _readings(self) -> dict[str, str]:
        """Return the readings of the file's INT96 columns, by their paths; empty if it has none."""
        wanted = zip((path for paths in self._leaves for path in paths), self._meanings.wanted(), strict=True)
        return {**self._times.states(), **{path: RAW for path, item in wanted if item is not None and item.raw_times}}

    def _int96_said(self) -> dict[bytes, bytes]:
        readings = self._readings()
        return {READING_KEY: Int96Reading(readings).said()} if readings else {}

    def _with_bounds(self) -> bool | list[str]:
        """The leaves that get statistics: of types without an order the bounds would be those of their bytes."""
        leaves = [path for paths in self._leaves for path in paths]
        wanted = self._meanings.wanted()
        found = [path for path, item in zip(leaves, wanted, strict=True) if item is None or item.ordered]
        return found if len(found) < len(leaves) else True

    def _bloom_options(self) -> dict[str, Any]:
        assert self.layout is not None
        leaves = {path for paths in self._leaves for path in paths}
        return {path: {"ndv": self.layout.group_rows, "fpp": _BLOOM_FPP} for path in self._bloom if path in leaves}


def _encoded(pairs: Mapping[str, str]) -> dict[bytes, bytes]:
    return {key.encode(): value.encode() for key, value in pairs.items()}


def _arrow_schema(schema: pa.Schema) -> str:
    """The schema in the form in which Arrow's readers look for it in a Parquet file."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()
