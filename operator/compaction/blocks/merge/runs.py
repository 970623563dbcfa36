"""Sorted runs, from which a merge reads: Parquet files that are open page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import RawIOBase
from typing import IO, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.errors import UnreadableBlockError
from compaction.blocks.fingerprint.row_hashes import Fingerprinter
from compaction.blocks.format.thrift import FooterError, Struct, decode_front
from compaction.blocks.merge.columns import Columns, Rows, SteadyDictionaries, is_codable
from compaction.blocks.merge.footers import Bound, Moved, OpenedFooter, nobody, reading
from compaction.blocks.model import RowFingerprint

# The cost of having a file open page by page: its chunks as they are stored, and a page of each decompressed.
#
# A footer says how large a chunk is, not how large its pages are: most writers make pages of a mebibyte, some make
# one page of a whole chunk, and a page has at least one value however large that is. So the headers of all pages are
# read at, which lie between them. This reads a file's large chunks once more, so it is done only where they would
# otherwise have to be taken whole, and inputs be spilled that need not be.

_SMALL: Final = 1 << 20
"""Bytes of a chunk up to which it is not checked: its pages are not smaller by much."""
_HEADER: Final = 16 << 10
"""What most headers of pages take; one may hold the smallest and the largest text of its page, however long these are.
"""
_FURTHER: Final = 16
"""So many times as much is read of a header that did not end there."""
_DICTIONARY: Final = 2
_TYPE, _RAW, _STORED = 1, 2, 3
"""Fields of a page's header."""
_DATA_HEADERS: Final = (5, 8)
"""Fields with what pages of values say, whose field 1 is how many these are."""
_PEEK_ROWS: Final = 64
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}
_AS_STORED: Final = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})

ReadAt = Callable[[int, int], bytes]


class RowsTooLargeError(Exception):
    """A single row or page may take more memory than there is: `column`, `needed` bytes."""

    def __init__(self, column: str, needed: int) -> None:
        super().__init__(column, needed)
        self.column = column
        self.needed = needed


def expanded_bytes(column: pq.ColumnSchema, chunk: pq.ColumnChunkMetaData) -> int:
    """Of a chunk's values in memory, by the footer alone: a run of equal numbers or nulls takes a few bytes in a file.
    Of texts that share a dictionary or beginnings it is too little, and nothing in a footer tells how much they are.
    """
    values = chunk.num_values * _WIDTHS.get(column.physical_type, column.length)
    # Numbers take no more than that, though a dictionary that was given up half way lies in the file besides them.
    return int(max(chunk.total_uncompressed_size, values) if column.physical_type == "BYTE_ARRAY" else values)


def decoded_row(file: pq.ParquetFile, group: int, source: IO[bytes] | RawIOBase, *, room: int) -> int:
    """Bytes of a row of a row group in memory, about: by the footer, by the headers of pages where a single row may be
    large, and by a few rows where texts are stored in less than they are.

    Where the pages cannot be found it is `room`. Raises RowsTooLargeError where a row, or a page, which is decompressed
    as a whole, takes more than that, and what pyarrow raises.
    """
    metadata, found = file.metadata, file.metadata.row_group(group)
    rows = max(1, found.num_rows)
    row, unsure, longest, untold = 0, set(), 1, False
    for leaf in range(found.num_columns):
        column, chunk = metadata.schema.column(leaf), found.column(leaf)
        size = expanded_bytes(column, chunk)
        row += -(-size // rows)
        is_text = column.physical_type == "BYTE_ARRAY" and not set(chunk.encodings) <= _AS_STORED
        repeats = is_text and chunk.num_values * chunk.total_uncompressed_size > room
        nested = column.max_repetition_level and size > room
        if chunk.num_values == 0 or not (repeats or nested or chunk.total_uncompressed_size > room):
            continue
        try:
            dictionary, page, values = _largest_pages(chunk, _reader(source))
        except FooterError:
            # Read row by row, the file shows whether it is damaged: the library says so, we only cannot tell its pages.
            untold = True
            continue
        if page > room:
            raise RowsTooLargeError(column.path, page)
        # A row lies in one page: no writer begins a page within a row any more.
        width = _WIDTHS.get(column.physical_type, column.length)
        if column.max_repetition_level and values * width > room:
            raise RowsTooLargeError(column.path, values * width)
        if repeats:
            unsure.add(column.path.split(".")[0])
            longest = max(longest, dictionary, page)
    if unsure:
        peek = max(1, min(_PEEK_ROWS, room // longest))
        batch = next(file.iter_batches(peek, row_groups=[group], columns=sorted(unsure), use_threads=False))
        row += sum(_own_bytes(column) for column in batch.columns) // max(1, batch.num_rows)
    if row > room:
        widest = max(range(found.num_columns), key=lambda leaf: found.column(leaf).total_uncompressed_size)
        raise RowsTooLargeError(metadata.schema.column(widest).path, row)
    return room if untold else max(1, row)


def _own_bytes(array: pa.Array) -> int:
    """Without a dictionary, which is there once however many rows there are."""
    return int(array.indices.nbytes if pa.types.is_dictionary(array.type) else array.nbytes)


def paged_bytes(footer: OpenedFooter) -> int:
    """Bytes of memory that the file takes at most while its row groups are read page by page, besides their rows.

    A chunk whose pages cannot be found is taken whole: its reader reports what is wrong. Raises UnreadableBlockError.
    """
    groups = [footer.metadata.row_group(group) for group in footer.groups]
    with reading(footer.input.name):
        source = footer.input.open()
        with open(source, "rb") if isinstance(source, str) else source as file:
            return max((_group_bytes(group, _reader(file)) for group in groups), default=0)


def _reader(file: IO[bytes] | RawIOBase) -> ReadAt:
    def read_at(start: int, length: int) -> bytes:
        file.seek(start)
        return file.read(length) or b""

    return read_at


def _group_bytes(group: pq.RowGroupMetaData, read_at: ReadAt) -> int:
    chunks = [group.column(leaf) for leaf in range(group.num_columns)]
    return sum(chunk.total_compressed_size + _page_bytes(chunk, read_at) for chunk in chunks)


def _page_bytes(chunk: pq.ColumnChunkMetaData, read_at: ReadAt) -> int:
    """Of the chunk's dictionary, of the page that is being read, and of the one before it."""
    whole: int = chunk.total_uncompressed_size
    if whole <= _SMALL:
        return whole
    try:
        dictionary, page, _ = _largest_pages(chunk, read_at)
    except FooterError:
        # The chunk is taken whole, which is never too little: its reader reports what is wrong.
        return whole
    return min(whole, dictionary + 2 * page)


def _header(read_at: ReadAt, position: int, end: int) -> tuple[Struct, int]:
    """The header of the page at a position of a chunk that ends at `end`, and its bytes. Raises FooterError."""
    window = _HEADER
    while True:
        try:
            return decode_front(read_at(position, min(window, end - position)))
        except FooterError:
            # The header may be longer than the window: only one that the whole chunk does not hold is damaged.
            if window >= end - position:
                raise
            window *= _FURTHER


def _largest_pages(chunk: pq.ColumnChunkMetaData, read_at: ReadAt) -> tuple[int, int, int]:
    """Bytes of the dictionary, and of the largest page of rows, decompressed; the most values of a page. Raises
    FooterError.
    """
    position = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    position = position or chunk.data_page_offset
    end = position + chunk.total_compressed_size
    largest = {True: 0, False: 0}
    most = 0
    while position < end:
        header, taken = _header(read_at, position, end)
        raw, stored = header.get(_RAW), header.get(_STORED)
        if not isinstance(raw, int) or not isinstance(stored, int) or raw < 0 or stored < 0:
            raise FooterError("a page does not say how large it is")
        is_dictionary = header.get(_TYPE) == _DICTIONARY
        largest[is_dictionary] = max(largest[is_dictionary], raw)
        most = max(most, *(int(header.get(number, {}).get(1, 0)) for number in _DATA_HEADERS))
        position += taken + stored
    if position != end:
        raise FooterError("its pages do not end where the chunk does")
    return largest[True], largest[False], most


# Sorted runs: what a merge reads from. A Parquet file that is sorted; `sorting` has those that were sorted by us.


class Run(Protocol):
    """Rows in ascending order, some at a time."""

    @property
    def name(self) -> str:
        """Of the block that they are from, for messages."""

    @property
    def least(self) -> Bound | None:
        """Nothing in the first key column is below this; None when that is not known."""

    @property
    def most(self) -> Bound | None:
        """Nothing in the first key column is above this; None when that is not known."""

    @property
    def cost(self) -> int:
        """Bytes of memory that it takes to have the run open, apart from the rows it has handed out."""

    @property
    def whole_cost(self) -> int:
        """Bytes of memory that it takes to read a row group at once, apart from its rows."""

    @property
    def group_rows(self) -> int:
        """Rows that are read at a time when whole row groups are."""

    @property
    def size(self) -> int:
        """Bytes of its rows, about."""

    @property
    def merged(self) -> int:
        """The number of times that its rows were merged."""

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        """The rows, at most so many at a time; `whole`: a row group at a time."""


@dataclass(slots=True)
class ParquetRun:
    """A file. `known`: the fingerprint of its rows; None: it is computed while they are read. `moved` is called with
    them.
    """

    footer: OpenedFooter
    columns: Columns
    number: int
    known: RowFingerprint | None
    moved: Moved = nobody
    hasher: Fingerprinter = field(default_factory=Fingerprinter)
    least: Bound | None = field(init=False)
    most: Bound | None = field(init=False)

    def __post_init__(self) -> None:
        self.least, self.most = self.footer.span(self.columns.schema.names[self.columns.keys[0]])

    @property
    def name(self) -> str:
        return self.footer.input.name

    @property
    def seen(self) -> RowFingerprint:
        """Of all its rows, once they have been read."""
        return self.hasher.value if self.known is None else self.known

    @property
    def cost(self) -> int:
        return self.footer.reading_bytes

    @property
    def whole_cost(self) -> int:
        return self.footer.whole_bytes

    @property
    def columns_read(self) -> int:
        """The number of leaves of a row."""
        return int(self.footer.metadata.num_columns)

    @property
    def group_rows(self) -> int:
        return self.footer.largest_group_rows()

    @property
    def size(self) -> int:
        return self.footer.total_bytes()

    @property
    def merged(self) -> int:
        return 0

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        """Raises UnreadableBlockError. A column that outgrew its dictionary takes more memory than row groups were
        granted: from then on they are read in parts whatever was asked for.
        """
        if not self.footer.groups:
            return
        read = 0
        for batch in self._decoded(rows, whole=whole):
            read += batch.num_rows
            self.moved(batch.num_rows)
            with reading(self.name):
                part = self._in_part(batch)
            if part.num_rows:
                if self.known is None:
                    self.hasher.update(part)
                with reading(self.name):
                    mapped = self.columns.rows(part, source=self.number)
                yield mapped
                del mapped
            del batch, part  # or they would be there until the next are
        self.columns.forget(self.number)
        if read != self.footer.rows:
            raise UnreadableBlockError(self.name, f"{read} rows where the footer promises {self.footer.rows}")

    def _decoded(self, rows: int, *, whole: bool) -> Iterator[pa.RecordBatch]:
        """Opened again where a column outgrew its codes: its dictionaries would be decoded for nothing."""
        steady = SteadyDictionaries()
        left = list(self.footer.groups)
        while left:
            coded = self._coded()
            in_whole = whole and not any(memo.full for memo in self.columns.memos.values())
            with self.footer.opened(coded) as file:
                while left and self._coded() == coded:
                    count = 1 if coded or in_whole else len(left)
                    groups, left = left[:count], left[count:]
                    for batch in self._batches(file, rows, groups, whole=in_whole):
                        yield steady.of(batch)
                        del batch

    def _coded(self) -> list[str]:
        """Columns of the file that are coded now; an older file may lack one."""
        names = (self.columns.schema.names[place] for place, memo in self.columns.memos.items() if not memo.full)
        return [name for name in names if self.footer.leaf(name) is not None]

    def _batches(
        self, file: pq.ParquetFile, rows: int, groups: Sequence[int], *, whole: bool
    ) -> Iterator[pa.RecordBatch]:
        """Rows of row groups; `whole`: of one, at once. Twice as fast: no dictionary is copied for each batch."""
        name = self.footer.input.name
        if whole:
            with reading(name):
                batches = [
                    self.footer.decoded(batch)
                    for batch in file.read_row_group(groups[0], use_threads=False).to_batches()
                ]
            yield from batches
            return
        batches = file.iter_batches(batch_size=rows, row_groups=list(groups), use_threads=False)
        while True:
            with reading(name):
                batch = next(batches, None)
                if batch is None:
                    return
                batch = self.footer.decoded(batch)
            yield batch
            del batch

    def _in_part(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows within the bounds of the part that is asked for."""
        first, last = self.footer.input.first, self.footer.input.last
        if first is None and last is None:
            return batch
        kind = self.columns.schema.field(self.columns.keys[0])
        if kind.name not in batch.schema.names:
            return batch if last is None else batch.slice(0, 0)
        column = batch.column(batch.schema.names.index(kind.name))
        # Bounds are numbers of the merged type, which a file may have in another unit.
        values = comparable(column.cast(kind.type) if pa.types.is_timestamp(column.type) else column)
        inside = pa.array([True]).take(pa.nulls(len(values), pa.int8())).fill_null(True)
        if first is not None:
            inside = pc.and_kleene(inside, pc.greater_equal(values, pa.scalar(first, values.type)))
        if last is not None:
            inside = pc.and_kleene(inside, pc.less(values, pa.scalar(last, values.type)))
        inside = inside.fill_null(last is None)
        return batch if pc.all(inside).as_py() else batch.filter(inside)


def comparable(values: pa.Array) -> pa.Array:
    """Values of a key column, of a type in which bounds are given: binary or int64."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_timestamp(values.type):
        return values.view(pa.int64())
    if pa.types.is_date32(values.type):
        return values.view(pa.int32()).cast(pa.int64())
    return values.cast(pa.binary() if is_codable(values.type) else pa.int64())
