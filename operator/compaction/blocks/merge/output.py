"""Writes the merged rows as Parquet: row groups by encoded bytes, page indexes where there are pages to tell apart, the
sort order declared.

The first rows are the sample on which encodings and the size of row groups are chosen. A coded column is written as a
dictionary that holds only what the row group uses, without its strings ever being expanded; readers see the columns
that the inputs declare (the Arrow schema that is stored is theirs; none is stored if no input has one).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.format.int96 import READING_KEY, Int96Reading, WrittenTimes
from compaction.blocks.format.logical import LOGICAL_KEY, RAW, text_with, texts_of, with_texts
from compaction.blocks.merge import encodings
from compaction.blocks.merge.columns import Columns, Rows
from compaction.blocks.merge.encodings import ColumnEncoding
from compaction.blocks.merge.footers import ARROW_SCHEMA
from compaction.blocks.merge.meanings import Meanings
from compaction.blocks.merge.settings import MergeSettings

_BLOOM_FPP: Final = 0.05
_MIN_GROUP_ROWS: Final = 1024
_MANY_ROWS: Final = 1 << 14
"""Rows of a part from which on what the writer does once for each costs nothing beside them."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What was chosen on the sample. `page_index`: whether a column of a row group has more than one page."""

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
        self._leaves = [encodings.leaf_paths(field) for field in columns.schema]
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
        chosen = encodings.choose(
            sample, self._declared.schema, level=self._settings.compression_level, int96=self._declared.int96
        )
        per_row = sum(one.bytes_per_row for one in chosen.values()) or 1.0
        wanted = max(_MIN_GROUP_ROWS, int(self._settings.row_group_bytes / per_row))
        arrow_row = max(1, self._waiting_bytes() // max(1, self._count))
        fitting = max(1, self._pending_bytes // arrow_row)
        group_rows = encodings.whole_pages(min(wanted, fitting, self._settings.max_group_rows))
        self.layout = Layout(chosen, group_rows, page_index=group_rows > encodings.batch_rows(sample))
        kinds = [
            pa.dictionary(pa.int32(), field.type) if self._is_dictionary(place, chosen) else field.type
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
            write_batch_size=encodings.batch_rows(sample),
            **encodings.writer_options(self._columns.schema, chosen, level=self._settings.compression_level),
        )

    def _is_dictionary(self, place: int, chosen: Mapping[str, ColumnEncoding]) -> bool:
        return (
            place in self._columns.memos and chosen[self._columns.schema.names[place]].encoding == encodings.DICTIONARY
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
        """How the INT96 of the file is read, by the paths of its columns; empty if it has none."""
        wanted = zip((path for paths in self._leaves for path in paths), self._meanings.wanted(), strict=True)
        return {**self._times.states(), **{path: RAW for path, one in wanted if one is not None and one.raw_times}}

    def _int96_said(self) -> dict[bytes, bytes]:
        readings = self._readings()
        return {READING_KEY: Int96Reading(readings).said()} if readings else {}

    def _with_bounds(self) -> bool | list[str]:
        """The leaves that get statistics: of types without an order the bounds would be those of their bytes."""
        leaves = [path for paths in self._leaves for path in paths]
        wanted = self._meanings.wanted()
        found = [path for path, one in zip(leaves, wanted, strict=True) if one is None or one.ordered]
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
