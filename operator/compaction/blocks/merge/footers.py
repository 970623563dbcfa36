"""Footers of the inputs of a merge, and the settings and results of one. Plain frozen data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from io import SEEK_END, RawIOBase
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.errors import UnreadableBlockError
from compaction.blocks.format.footer_keys import texts_in
from compaction.blocks.format.footer_shape import structs
from compaction.blocks.format.int96 import Int96Error, Int96Reading, arrow_schema, reading_of
from compaction.blocks.format.logical import LOGICAL_KEY, LeafMeaning, leaf_meanings, placed, with_texts
from compaction.blocks.format.thrift import FooterError, decode_up_to
from compaction.blocks.merge.columns import is_codable
from compaction.blocks.merge.schema import without_dictionary
from compaction.blocks.model import RowFingerprint
from compaction.unexpected import lack_of

# Settings, inputs and results of a merge. Plain frozen data.
#
# Units: bytes and rows.

MEBIBYTE: Final = 1 << 20
MIN_MEMORY: Final = 16 * MEBIBYTE
OWN_MEMORY: Final = 96 * MEBIBYTE
"""What a process takes for a merge besides `memory_bytes`, whatever these are: code, codecs, what allocators keep."""


Moved = Callable[[int], None]
"""Called with numbers of rows as work on them is done."""
OpenFile = Callable[[], str | IO[bytes] | RawIOBase]
"""Gives a file to read: its path, or an open one that we close."""


def nobody(rows: int) -> None:
    """A `Moved` that reports nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """The settings of a merge of blocks.

    `sort_key`: columns by which the output is sorted; at least one. `memory_bytes`: what the merge may hold at a time,
    of Arrow memory. `row_group_bytes`: of a row group in the output file, encoded; `max_group_rows` caps its rows.
    `deduplicate`: of rows with an equal sort key only the last is kept, that is of the latest input and the latest row
    in it. `compression_level`: of zstd. `scratch`: where runs are spilled; the system's temporary directory by default.
    """

    sort_key: tuple[str, ...]
    memory_bytes: int = 512 * MEBIBYTE
    row_group_bytes: int = 8 * MEBIBYTE
    max_group_rows: int = 1 << 20
    deduplicate: bool = False
    compression_level: int = 1
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if not self.sort_key or len(set(self.sort_key)) != len(self.sort_key):
            raise ValueError("a sort key names one or more columns, each once")
        if self.memory_bytes < MIN_MEMORY:
            raise ValueError(f"a merge takes at least {MIN_MEMORY} bytes of memory")
        if self.row_group_bytes < 1 or self.max_group_rows < 1:
            raise ValueError("row groups have at least one row")


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeInput:
    """One Parquet file. `open` returns it again each time: a path, or a seekable binary file that we close.

    `sort_key`: by what its rows are known to be sorted, empty when they are not; None: what its footer says.
    `fingerprint`: of its rows, when it is known; else it is computed while merging. `first`, `last`: only the rows
    whose first key column is at least `first` and below `last` (strings and binaries: bytes; integers and times: the
    number), None is no bound; rows with a null there belong to the part without `last`.
    """

    name: str
    open: OpenFile
    sort_key: tuple[str, ...] | None = None
    fingerprint: RowFingerprint | None = None
    first: int | bytes | None = None
    last: int | bytes | None = None


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Rows that were dropped for a later one with the same key; `examples`: the keys of the first of them."""

    fingerprint: RowFingerprint = field(default_factory=RowFingerprint)
    examples: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of a merge into one file. `read`: all rows of the inputs; `written` is what the output must read back
    as.

    `sorted_first`: inputs that were not sorted; `spilled`: bytes written to scratch; `passes`: how often rows were
    merged, 1 unless there were too many inputs for the memory. `encodings`: of each column, as chosen.
    """

    schema: pa.Schema
    read: RowFingerprint
    duplicates: Duplicates
    row_groups: int
    sorted_first: tuple[str, ...]
    spilled: int
    passes: int
    encodings: Mapping[str, str]

    @property
    def written(self) -> RowFingerprint:
        """The rows of the output."""
        return self.read - self.duplicates.fingerprint


# Facts from the footers of the inputs: schema, sort order, bounds of the first key column, dictionaries, what it takes
# to read a row group.
#
# Everything here is a hint for speed and memory, except the schema: order is checked again on the rows themselves.

ARROW_SCHEMA: Final = b"ARROW:schema"
"""The key under which Arrow's writers keep their schema in a Parquet file, and its readers look for it."""

FRAME_BYTES: Final = 8
"""Behind a footer: its length and the magic."""
SCHEMA_FIELD: Final = 2
Bound = int | bytes
_UNITS: Final = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_MEASURED: Final = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})


@contextmanager
def reading(block: str) -> Iterator[None]:
    """Turns what pyarrow says of a bad file into UnreadableBlockError; errors of our own pass. Raises
    LackOfResourcesError where it is not about the file.
    """
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, Int96Error, FooterError) as error:
        if lack := lack_of(error, block):
            raise lack from error
        raise UnreadableBlockError(block, str(error)) from error


@dataclass(frozen=True, slots=True)
class OpenedFooter:
    """An input and its metadata; `groups`: the row groups that may hold rows of the part that is asked for. `leaves`:
    numbers of the top-level columns that are not nested, among the leaves of the schema. `stored_bytes`: of the row
    groups' pages as they lie in the file. `reading_bytes`: of memory that it takes to have the file open, besides the
    rows; `whole_bytes`: that it takes to read a row group at once, which is done one column after the other. `int96`:
    how timestamps that are stored so are read. `meanings`: of the leaves, by their paths in `schema`.
    """

    input: MergeInput
    metadata: pq.FileMetaData
    schema: pa.Schema
    groups: tuple[int, ...]
    leaves: Mapping[str, int]
    stored_bytes: int
    reading_bytes: int
    whole_bytes: int
    meanings: Mapping[str, LeafMeaning] = field(default_factory=dict)
    int96: Int96Reading = field(default_factory=Int96Reading)

    @property
    def named_schema(self) -> tuple[str, pa.Schema]:
        """The input's name and its schema, with what its leaves mean beyond their Arrow types."""
        others = {key: value for key, value in (self.schema.metadata or {}).items() if key != LOGICAL_KEY}
        said = with_texts(self.schema, texts_in(self.meanings, others)).metadata or {}
        return self.input.name, self.schema.with_metadata({**others, **said} or None)

    @property
    def rows(self) -> int:
        """Rows of these row groups."""
        return sum(self.metadata.row_group(group).num_rows for group in self.groups)

    @property
    def has_arrow_schema(self) -> bool:
        """Return whether the writer of the file says what the columns are in Arrow; else that is read off the Parquet
        types.
        """
        return ARROW_SCHEMA in (self.metadata.metadata or {})

    def chunks(self, column: str) -> Iterator[pq.ColumnChunkMetaData]:
        """The chunks of a top-level column that is not nested; none when there is no such column."""
        leaf = self.leaf(column)
        if leaf is not None:
            for group in self.groups:
                yield self.metadata.row_group(group).column(leaf)

    def leaf(self, column: str) -> int | None:
        """The number of the column among the leaves of the schema."""
        return self.leaves.get(column)

    def is_sorted_by(self, key: Sequence[str]) -> bool:
        """Return whether the rows are declared as sorted by the key: by the caller that gave the input, else by every
        row group.
        """
        if self.input.sort_key is not None:
            return self.input.sort_key[: len(key)] == tuple(key)
        return all(self._group_is_sorted(group, key) for group in self.groups)

    def _group_is_sorted(self, group: int, key: Sequence[str]) -> bool:
        row_group = self.metadata.row_group(group)
        order = row_group.sorting_columns[: len(key)]
        if [column.column_index for column in order] != [self.leaf(name) for name in key]:
            return False
        for column in order:
            statistics = row_group.column(column.column_index).statistics
            has_nulls = statistics is None or not statistics.has_null_count or statistics.null_count > 0
            if column.descending or (column.nulls_first and has_nulls):
                return False
        return True

    def span(self, column: str) -> tuple[Bound | None, Bound | None]:
        """Nothing in the column is below the one, nothing above the other; None where that is not known. Nulls come
        last, so where there may be some nothing is known of the end.
        """
        bounds = [bound for group in self.groups if (bound := self.bounds(group, column)) is not None]
        if not bounds or len(bounds) < len(self.groups):
            return None, None
        most = None if self._may_be_null(column) else max(bound[1] for bound in bounds)
        return min(bound[0] for bound in bounds), most

    def _may_be_null(self, column: str) -> bool:
        found = [chunk.statistics for chunk in self.chunks(column)]
        return any(item is None or not item.has_null_count or item.null_count > 0 for item in found)

    def bounds(self, group: int, column: str) -> tuple[Bound, Bound] | None:
        """Smallest and largest value of a row group's column, nulls left out, as the file has them."""
        return _bounds(self.metadata, self.schema, group, column, self.leaf(column))

    @contextmanager
    def opened(self, coded: Sequence[str]) -> Iterator[pq.ParquetFile]:
        """The file, to be read page by page with their checksums; `coded`: columns that come as dictionaries.

        Raises UnreadableBlockError where it cannot be opened; what reading it raises is the caller's (`reading`).
        """
        with reading(self.input.name):
            source = self.input.open()
        try:
            with reading(self.input.name):
                file = pq.ParquetFile(
                    source,
                    metadata=self.metadata,
                    read_dictionary=list(coded),
                    pre_buffer=False,
                    page_checksum_verification=True,
                    **self.int96.options,
                )
            with file:
                yield file
        finally:
            if not isinstance(source, str):
                source.close()

    def decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of the file, read as the file is opened, to the types of its schema. Raises Int96Error."""
        return self.int96.decoded(batch, self.schema)

    @contextmanager
    def source(self) -> Iterator[IO[bytes] | RawIOBase]:
        """The file, to be read at."""
        source = self.input.open()
        with open(source, "rb") if isinstance(source, str) else source as file:
            yield file

    def total_bytes(self) -> int:
        """Bytes of the row groups' pages after decompression."""
        return sum(self.metadata.row_group(group).total_byte_size for group in self.groups)

    def largest_group_rows(self) -> int:
        """Rows of the largest row group."""
        return max((self.metadata.row_group(group).num_rows for group in self.groups), default=0)

    def is_measured(self, column: str) -> bool:
        """Return whether the bytes of the column's pages are about those of its values: in no dictionary, no common
        prefixes left out.
        """
        leaf = self.leaf(column)
        return leaf is not None and all(
            not chunk.has_dictionary_page and set(chunk.encodings) <= _MEASURED for chunk in self.chunks(column)
        )


def read_footer(block: MergeInput, sort_key: Sequence[str], *, look: bool = False) -> OpenedFooter:
    """Read an input's metadata; without a sort key, of the whole file. `look`: `int96.reading_of`. Raises
    UnreadableBlockError.
    """
    with reading(block.name):
        source = block.open()
        with pq.ParquetFile(source, pre_buffer=False) as file:
            raw = _raw_footer(source)
            int96 = reading_of(file.metadata, raw, source, look=look)
            metadata = int96.metadata(file.metadata, raw)
            schema = arrow_schema(metadata, file.schema_arrow, source, int96)
            nodes = structs(decode_up_to(raw, SCHEMA_FIELD), SCHEMA_FIELD, "its schema")
            meanings = placed(int96.meanings(leaf_meanings(nodes)), schema)
            schema = int96.schema(schema, meanings)
            if not isinstance(source, str):
                source.close()
        leaves = _leaves(metadata)
        groups = [group for group in range(metadata.num_row_groups) if metadata.row_group(group).num_rows]
        if sort_key:
            key, leaf = sort_key[0], leaves.get(sort_key[0])
            groups = [group for group in groups if _may_hold(block, _bounds(metadata, schema, group, key, leaf))]
    sizes = [_Size.of(metadata.row_group(group)) for group in groups]
    reading_bytes = max((siz.compressed + siz.raw for siz in sizes), default=0)
    whole_bytes = max((siz.compressed + siz.widest for siz in sizes), default=0)
    stored_bytes = sum(siz.compressed for siz in sizes)
    return OpenedFooter(
        block, metadata, schema, tuple(groups), leaves, stored_bytes, reading_bytes, whole_bytes, meanings, int96=int96
    )


def _raw_footer(source: str | IO[bytes] | RawIOBase) -> bytes:
    """Of a file whose footer the library has read."""
    with nullcontext(source) if not isinstance(source, str) else open(source, "rb") as file:
        file.seek(-FRAME_BYTES, SEEK_END)
        size = int.from_bytes(file.read(4) or b"", "little")
        file.seek(-FRAME_BYTES - size, SEEK_END)
        return file.read(size) or b""


def _may_hold(block: MergeInput, bounds: tuple[Bound, Bound] | None) -> bool:
    """Return whether a row group may hold rows of the part. Nulls lie in no bounds: the part without an end reads them
    all.
    """
    if bounds is None:
        return True
    after = block.last is not None and bounds[0] >= block.last  # type: ignore[operator]
    before = block.last is not None and block.first is not None and bounds[1] < block.first  # type: ignore[operator]
    return not (after or before)


def _bounds(
    metadata: pq.FileMetaData, schema: pa.Schema, group: int, column: str, leaf: int | None
) -> tuple[Bound, Bound] | None:
    if leaf is None or not has_bounds(schema.field(column).type):
        return None
    statistics = metadata.row_group(group).column(leaf).statistics
    if statistics is None or not statistics.has_min_max or not _as_stored(metadata, leaf, schema.field(column).type):
        return None
    least, most = statistics.min_raw, statistics.max_raw
    if isinstance(least, str):
        least, most = least.encode(), most.encode()
    return (least, most)


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether the statistics of a column of this type can be compared with its values: integers with a sign,
    strings, timestamps, dates.
    """
    kind = without_dictionary(kind)
    return bool(
        is_codable(kind) or pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    )


def _as_stored(metadata: pq.FileMetaData, leaf: int, kind: pa.DataType) -> bool:
    """Return whether the file stores timestamps in the unit in which they are read (seconds are stored as
    milliseconds).
    """
    if not pa.types.is_timestamp(kind):
        return True
    logical = json.loads(metadata.schema.column(leaf).logical_type.to_json())
    return bool(_UNITS.get(logical.get("timeUnit", "")) == kind.unit)


def _leaves(metadata: pq.FileMetaData) -> dict[str, int]:
    """Of the columns whose path names one leaf only, and that is not repeated."""
    found: dict[str, int] = {}
    twice = set()
    for leaf in range(metadata.num_columns):
        column = metadata.schema.column(leaf)
        if column.max_repetition_level == 0:
            if column.path in found:
                twice.add(column.path)
            found[column.path] = leaf
    return {path: leaf for path, leaf in found.items() if path not in twice}


class _Size(NamedTuple):
    """Bytes of a row group's pages before decompression and after it; of those of one column after it."""

    compressed: int
    raw: int
    widest: int

    @classmethod
    def of(cls, group: pq.RowGroupMetaData) -> Self:
        chunks = [group.column(leaf) for leaf in range(group.num_columns)]
        raw = [chunk.total_uncompressed_size for chunk in chunks]
        return cls(sum(chunk.total_compressed_size for chunk in chunks), group.total_byte_size, max(raw, default=0))


def bloom_columns(footers: Sequence[OpenedFooter]) -> list[str]:
    """Paths of the columns that have a bloom filter in some input."""
    found: dict[str, None] = {}
    for footer in footers:
        for group in footer.groups:
            row_group = footer.metadata.row_group(group)
            for leaf in range(row_group.num_columns):
                if row_group.column(leaf).bloom_filter_offset is not None:
                    found[row_group.column(leaf).path_in_schema] = None
    return list(found)
