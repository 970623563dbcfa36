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

import pyarrow.parquet as pq

from compaction.stores.blocks.format.thrift import FooterError, decode_front
from compaction.stores.blocks.merge.footers import OpenedFooter, reading

_SMALL: Final = 1 << 20
"""Bytes of a chunk up to which it is not checked: its pages are not smaller by much."""
_HEADER: Final = 16 << 10
"""More than a page's header takes: it may hold the smallest and the largest text of the page."""
_DICTIONARY: Final = 2
_TYPE, _RAW, _STORED = 1, 2, 3
"""Fields of a page's header."""

ReadAt = Callable[[int, int], bytes]


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
        dictionary, page = _largest_pages(chunk, read_at)
    except FooterError:
        return whole
    return min(whole, dictionary + 2 * page)


def _largest_pages(chunk: pq.ColumnChunkMetaData, read_at: ReadAt) -> tuple[int, int]:
    """Bytes of the dictionary, and of the largest page of rows, decompressed. Raises FooterError."""
    position = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    position = position or chunk.data_page_offset
    end = position + chunk.total_compressed_size
    largest = {True: 0, False: 0}
    while position < end:
        header, taken = decode_front(read_at(position, min(_HEADER, end - position)))
        raw, stored = header.get(_RAW), header.get(_STORED)
        if not isinstance(raw, int) or not isinstance(stored, int) or raw < 0 or stored < 0:
            raise FooterError("a page does not say how large it is")
        is_dictionary = header.get(_TYPE) == _DICTIONARY
        largest[is_dictionary] = max(largest[is_dictionary], raw)
        position += taken + stored
    if position != end:
        raise FooterError("its pages do not end where the chunk does")
    return largest[True], largest[False]
