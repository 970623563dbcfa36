"""Texts as the dictionaries in which files have them: which can be read so, and which are the same one.

pyarrow's reader copies the dictionary of a row group for each batch. A caller that keeps what it computed for a
dictionary (its hashes, its codes) recognizes one by its memory: with a copy per batch it would compute it each time,
which cost more than all the rest of hashing (5,000 names in batches of 8,192 rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

ROWS_PER_VALUE: Final = 4
"""So many rows of a row group share a value, on average, where its dictionary pays."""
_PAGE_ROWS: Final = 1024
_SLACK: Final = 2
"""A dictionary takes a little more in a file than in memory at most: a text's length has four bytes there, too."""
_PLACE: Final = 4
"""Bytes of a place in a dictionary, at most."""
_TEXTS: Final = frozenset({"STRING", "NONE", "JSON", "ENUM"})
"""Logical types of byte arrays that are read as texts or binaries."""


def coded_texts(metadata: pq.FileMetaData) -> list[str]:
    """Paths of the texts, nested ones too, whose values lie in dictionaries in every row group: only these can be read
    as dictionaries (the library has no way to do it for some other encodings), and nested ones only one row group at a
    time.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    texts = [leaf for leaf in range(metadata.num_columns) if _is_text(metadata.schema.column(leaf))]
    return [
        metadata.schema.column(leaf).path
        for leaf in texts
        if groups and all(group.column(leaf).has_dictionary_page for group in groups)
    ]


def not_repeating(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> set[str]:
    """Those of the columns, which the file is asked for as dictionaries, whose dictionary does not pay: it has too many
    values, or the writer gave it up half way, which no footer says. Reads a page of the row group. Raises
    ArrowException.

    A column is what the library makes of it, whatever it was asked for: texts of extension types (JSON) never come as
    dictionaries, those of repeated fields lie in lists, and neither is a column whose dictionary does not pay.
    """
    found = file.metadata.row_group(group)
    batches = file.iter_batches(_PAGE_ROWS, row_groups=[group], columns=list(columns), use_threads=False)
    if not columns or (batch := next(batches, None)) is None:
        return set()
    chunks = {found.column(leaf).path_in_schema: found.column(leaf) for leaf in range(found.num_columns)}
    read = {name: batch.column(batch.schema.names.index(name)) for name in columns if name in batch.schema.names}
    dictionaries = {name: one.dictionary for name, one in read.items() if pa.types.is_dictionary(one.type)}
    few = max(found.num_rows // ROWS_PER_VALUE, 1)
    return {
        name for name, one in dictionaries.items() if len(one) > few or _was_given_up(one, chunks[name], found.num_rows)
    }


def _was_given_up(dictionary: pa.Array, chunk: pq.ColumnChunkMetaData, rows: int) -> bool:
    """Whether the chunk has more than its dictionary and a place in it for each row: a writer's dictionary is full at a
    mebibyte or so, and the values that come then stand as they are.
    """
    return bool(chunk.total_uncompressed_size > _SLACK * dictionary.nbytes + _PLACE * rows)


def _is_text(column: pq.ColumnSchema) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY" and column.logical_type.type in _TEXTS)


class SteadyDictionaries:
    """Remembers the last dictionary of each column of one file."""

    def __init__(self) -> None:
        self._known: dict[int, pa.Array] = {}

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; a dictionary that equals the one before it in the column is that one."""
        columns = list(batch.columns)
        for place, column in enumerate(columns):
            if not pa.types.is_dictionary(column.type):
                continue
            known = self._known.get(place)
            if known is not None and known.equals(column.dictionary):
                columns[place] = pa.DictionaryArray.from_arrays(
                    column.indices, known, ordered=column.type.ordered, safe=False
                )
            else:
                self._known[place] = column.dictionary
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
