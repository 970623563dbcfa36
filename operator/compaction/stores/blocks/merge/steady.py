"""Dictionaries of successive batches that are equal become one and the same.

pyarrow's reader copies the dictionary of a row group for each batch. Whoever keeps what it has learnt of a dictionary
(its hashes, its codes) tells one by its memory: with a copy per batch it would learn it anew each time, which cost more
than all the rest of hashing (5,000 names in batches of 8,192 rows).
"""

from __future__ import annotations

import pyarrow as pa


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
