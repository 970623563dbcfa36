"""How each column is written: every encoding that its type can have is tried on a sample, compressed and as it is, and
the cheapest of those that are about as small as the smallest wins.

Measured with `make bench` (blocks): a fifth fewer bytes than the defaults of Parquet's writers, at half the
CPU time, because a dictionary is not begun for a column that outgrows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.merge.schema import without_dictionary

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
    """How one column is written. `bytes_per_row` and `dictionary_bytes`: of the sample, compressed."""

    encoding: str
    compressed: bool
    bytes_per_row: float

    def __str__(self) -> str:
        return self.encoding + ("+ZSTD" if self.compressed else "")


def candidates(kind: pa.DataType) -> tuple[str, ...]:
    """The encodings that a column of this type may have, the cheapest to read first; empty: let the writer decide.

    An encoding stands here only if Spark (both of its readers), DuckDB, Polars and pyarrow of the last years read it
    for every type that has it (docs/adr/0210-encodings-that-everybody-reads.md): tests/rewrite/spark/test_blocks.py and
    tests/stores/blocks/merge/test_readers.py show it. Two are left out although they are often smaller:

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
        allowed = tuple(one for one in allowed if one == DICTIONARY)
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
    for name in sorted(tried, key=lambda one: cheapest[one].bytes_per_row - smallest[one].bytes_per_row):
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
    return min((one for one in options if one.bytes_per_row <= most), key=lambda one: one.compressed)


def _common(options: Sequence[ColumnEncoding]) -> float:
    """Bytes per row as every writer could have it: compressed, in no encoding of differences."""
    common = [one.bytes_per_row for one in options if one.compressed and not one.encoding.startswith("DELTA")]
    return min(common or map(_size, options))


def _allowed(sample: pa.Table, field: pa.Field, declared: pa.Schema, *, int96: bool) -> tuple[str, ...]:
    """What is tried on a column of the sample; the empty encoding is the writer's choice."""
    allowed = candidates_of(declared.field(field.name), coded=pa.types.is_dictionary(field.type))
    if int96 and pa.types.is_timestamp(field.type):
        allowed = tuple(one for one in allowed if one != "DELTA_BINARY_PACKED")
    if len(allowed) > 1 and not _repeats(sample.column(field.name)):
        allowed = tuple(one for one in allowed if one != DICTIONARY)
    return allowed or ("",)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary is worth trying: to fill one, and to read it, costs for each value that it has."""
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
    """How many of so many rows the encodings are tried on: to try them all costs as much as to write them thrice."""
    return max(_LEAST_SAMPLE_ROWS, min(_MOST_SAMPLE_ROWS, rows // _SAMPLE_SHARE))


def batch_rows(sample: pa.Table) -> int:
    """How many rows the writer encodes at a time, which is also how exactly it keeps to the size of a page.

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
        "column_encoding": {name: one for name, one in encodings.items() if one not in ("", DICTIONARY)} or None,
    }


def writer_options(schema: pa.Schema, encodings: Mapping[str, ColumnEncoding], *, level: int) -> dict[str, Any]:
    """Arguments of pyarrow's writer. Nested columns keep its defaults, with a dictionary for each leaf."""
    by_leaf: dict[str, ColumnEncoding] = {}
    for field in schema:
        for path in leaf_paths(field):
            one = encodings[field.name]
            by_leaf[path] = one if one.encoding else ColumnEncoding(DICTIONARY, one.compressed, one.bytes_per_row)
    return {
        **_options({path: one.encoding for path, one in by_leaf.items()}),
        "compression": {path: "zstd" if one.compressed else "none" for path, one in by_leaf.items()},
        "compression_level": {path: level for path, one in by_leaf.items() if one.compressed} or None,
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
