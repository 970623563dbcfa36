"""Which columns are coded: those whose values repeat so often within a row group that a dictionary of all of them pays.

The footer says which chunks have a dictionary at all; whether it is small, and was kept to the chunk's end, only the
dictionary itself says: a writer that gave it up half way has more bytes than it explains. So one page of a few row
groups is read. A wrong answer costs little: codes are given up when there are too many (`columns.Memo`), and plain
columns are merged as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.stores.blocks.merge.columns import CODE, is_codable
from compaction.stores.blocks.merge.footers import Footer, reading
from compaction.stores.blocks.merge.schema import without_dictionary

ROWS_PER_VALUE: Final = 4
"""So many rows of a row group share a value, on average, where codes pay."""
_FEWEST_VALUES: Final = 1024
_LOOKS: Final = 3
_PAGE_ROWS: Final = 1024
_SLACK: Final = 2
"""A dictionary takes a little more in a file than in memory at most: a text's length has four bytes there, too."""


def repeating(schema: pa.Schema, footers: Sequence[Footer]) -> list[str]:
    """Names of the columns that are coded. Raises UnreadableBlockError."""
    having = [footer for footer in footers if footer.groups]
    names = [field.name for field in schema if is_codable(field.type) and _in_dictionaries(field.name, having)]
    for footer in having[:: max(1, -(-len(having) // _LOOKS))]:
        names = _repeating_in(footer, names)
    return names


def most_values(footers: Sequence[Footer]) -> int:
    """How many values the dictionary of a coded column may have: to look up those of a row group in it must cost less
    than the row group's rows do without it.
    """
    groups = sum(len(footer.groups) for footer in footers)
    rows = sum(footer.rows for footer in footers)
    return max(_FEWEST_VALUES, rows // max(1, groups) // ROWS_PER_VALUE)


def _in_dictionaries(column: str, footers: Sequence[Footer]) -> bool:
    """Whether every chunk of the column has a dictionary, and there is one."""
    chunks = [chunk for footer in footers for chunk in footer.chunks(column)]
    return bool(chunks) and all(chunk.has_dictionary_page for chunk in chunks)


def _repeating_in(footer: Footer, names: Sequence[str]) -> list[str]:
    """Those whose dictionary is small in the footer's first row group, or that it does not have."""
    types = {field.name: without_dictionary(field.type) for field in footer.schema}
    present = [name for name in names if name in types and is_codable(types[name])]
    if not present:
        return list(names)
    group = footer.groups[0]
    rows = footer.metadata.row_group(group).num_rows
    with reading(footer.input.name), footer.opened(present) as file:
        batch = next(file.iter_batches(_PAGE_ROWS, row_groups=[group], columns=present, use_threads=False), None)
    if batch is None:
        return list(names)
    dictionaries = {name: batch.column(batch.schema.names.index(name)).dictionary for name in present}
    chunks = {name: next(footer.chunks(name)) for name in present}
    few = max(rows // ROWS_PER_VALUE, 1)
    many = {name for name, one in dictionaries.items() if len(one) > few or _was_given_up(one, chunks[name], rows)}
    return [name for name in names if name not in many]


def _was_given_up(dictionary: pa.Array, chunk: pq.ColumnChunkMetaData, rows: int) -> bool:
    """Whether the chunk has more than its dictionary and a place in it for each row: a writer's dictionary is full at a
    mebibyte or so, and the values that come then stand as they are.
    """
    return bool(chunk.total_uncompressed_size > _SLACK * dictionary.nbytes + CODE.bit_width // 8 * rows)
