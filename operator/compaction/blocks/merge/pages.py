"""What it takes to have a file open page by page: its chunks as they are stored, and a page of each decompressed.

A footer says how large a chunk is, not how large its pages are: most writers make pages of a mebibyte, some make one
page of a whole chunk, and a page has at least one value however large that is. So the headers of all pages are read
at, which lie between them. This reads a file's large chunks once more, so it is done only where they would otherwise
have to be taken whole, and inputs be spilled that need not be.
"""

from __future__ import annotations

from collections.abc import Callable
from io import RawIOBase
from typing import IO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.format.thrift import FooterError, Struct, decode_front
from compaction.blocks.merge.footers import OpenedFooter, reading

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
        row += sum(_own_bytes(one) for one in batch.columns) // max(1, batch.num_rows)
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
        return whole
    return min(whole, dictionary + 2 * page)


def _header(read_at: ReadAt, position: int, end: int) -> tuple[Struct, int]:
    """The header of the page at a position of a chunk that ends at `end`, and its bytes. Raises FooterError."""
    window = _HEADER
    while True:
        try:
            return decode_front(read_at(position, min(window, end - position)))
        except FooterError:
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
