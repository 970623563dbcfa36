"""The fingerprint of rows: proof that a rewrite kept every one of them, whatever else it changed.

Equal sets of rows (with multiplicity) have equal fingerprints, whatever their order, the order of their columns, the
number of batches or files they lie in, their encodings (dictionary or plain), columns added that are null throughout,
and widened types (`cells` says which). Different sets have different ones, up to a chance of 2^-64: each row is hashed
to 64 bits, and the fingerprint is the number of rows and the sum of their hashes modulo 2^64, so fingerprints add up
like the rows do. No protection against rows chosen to collide: the hash has no secret. Rows are never taken for equal
because their hashes are: nothing but whole sets is compared.

A row's hash is a mix of the sum of its cells. A null adds nothing, which is what lets an added column of nulls change
nothing; the mix ties the cells of a row together: two rows that swap a value do not have the same sum.

Fingerprints are stored (index, block metadata): a change of any of it needs another name in `model.ALGORITHM`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from compaction.blocks.errors import UnsupportedColumnError
from compaction.blocks.fingerprint.cells import (
    ColumnKeys,
    Combiner,
    Places,
    Words,
    add_words,
    cells,
    column_keys,
    has_words,
    looked_up,
)
from compaction.blocks.model import RowFingerprint

# Memory that was freed stays with the process for what comes next, where the allocator is glibc's.

_MOST: Final = 30 << 20
"""glibc's thresholds follow allocations of up to 32 MiB."""


def keep_freed(size: int) -> None:
    """Have the allocator keep up to about twice `size` bytes of freed memory, instead of asking the system for the same
    pages again and again: a tenth of the CPU time where clearing pages is dear, as in virtual machines.

    glibc raises its thresholds to the largest allocation that was ever freed (mallopt(3), M_MMAP_THRESHOLD); elsewhere
    this does nothing. The memory is not touched.
    """
    np.empty(min(size, _MOST), np.uint8)


SLICE_ROWS: Final = 15 << 10
"""So many rows at a time: what is computed on fits into a core's cache, and one array of it is just below the size
from which an allocation gets fresh memory from the system (128 KiB), which costs more than the arithmetic.
"""

_M1: Final = np.uint64(0xFF51AFD7ED558CCD)
_M2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_S29: Final = np.uint64(29)
_S32: Final = np.uint64(32)

Rows: TypeAlias = pa.RecordBatch | pa.Table


def fingerprint(data: Rows | Iterable[pa.RecordBatch]) -> RowFingerprint:
    """The fingerprint of a batch, a table, or of all batches of a reader.

    Raises UnsupportedColumnError for a column that has no defined hash (unions, intervals) or a name that is there
    twice.
    """
    fingerprinter = Fingerprinter()
    for part in (data,) if isinstance(data, pa.RecordBatch | pa.Table) else data:
        fingerprinter.update(part)
    return fingerprinter.value


class Fingerprinter:
    """A fingerprint that grows batch by batch; keeps what it has learnt of columns and dictionaries. Not for threads.

    Memory: about a MiB, and the last dictionary of each column with 16 bytes for each of its entries.
    """

    def __init__(self) -> None:
        self.value = RowFingerprint()
        self._schema: pa.Schema | None = None
        self._keys: list[ColumnKeys] = []
        self._combiner = Combiner()
        self._sums, self._spare = np.empty((2, SLICE_ROWS), np.uint64)

    def update(self, data: Rows) -> None:
        """Add the rows of a batch or table. Schemas may differ from call to call. Raises UnsupportedColumnError."""
        for batch in data.to_batches() if isinstance(data, pa.Table) else (data,):
            self._prepare(batch.schema)
            for part in self._batch(batch):
                self.value += part

    def _prepare(self, schema: pa.Schema) -> None:
        if self._schema is not None and schema.equals(self._schema):
            return
        twice = next((name for name in schema.names if len(schema.get_all_field_indices(name)) > 1), None)
        if twice is not None:
            raise UnsupportedColumnError(twice, "there are two columns of this name")
        known = {keys.path: keys for keys in self._keys} if self._schema is not None else {}
        # A top column `a.b` is not the field b of a.
        self._keys = [column_keys(field.name.replace("\\", "\\\\").replace(".", "\\."), field.type) for field in schema]
        for keys in self._keys:
            before = known.get(keys.path)
            if before is not None and before.multiply == keys.multiply:
                keys.known = before.known
        self._schema = schema

    def _batch(self, batch: pa.RecordBatch) -> Iterator[RowFingerprint]:
        """Of each slice. What lies in dictionaries is looked up: the dictionaries are learnt once for all slices."""
        looked: list[tuple[Words, Places]] = []
        numbers: list[tuple[pa.Array[Any], ColumnKeys]] = []
        others: list[tuple[pa.Array[Any], ColumnKeys]] = []
        for column, keys in zip(batch.columns, self._keys, strict=True):
            known = looked_up(column, keys) if pa.types.is_dictionary(column.type) else None
            if known is not None:
                looked.append((known.hashes, known.places(column.indices, keys.path)))
            else:
                (numbers if has_words(column) else others).append((column, keys))
        combined = self._combiner.of(looked)
        begin = np.uint64(sum(int(keys.offset) for _, keys in numbers) % (1 << 64))
        for start in range(0, batch.num_rows, SLICE_ROWS):
            count = min(SLICE_ROWS, batch.num_rows - start)
            sums, spare = self._sums[:count], self._spare[:count]
            sums.fill(begin)
            for column, keys in numbers:
                add_words(sums, column.slice(start, count), keys, spare)
            for column, keys in others:
                sums += cells(column.slice(start, count), keys)
            for hashes, places in combined:
                # All places are known to be inside: to clip is only what takes without a check and a copy.
                hashes.take(places[start : start + count], out=spare, mode="clip")
                sums += spare
            yield RowFingerprint(count, int(_tie(sums, spare).sum()))


def _tie(sums: Words, spare: Words) -> Words:
    """The cells of each row mixed with each other, in place; every step can be undone, so different sums stay so."""
    for shift, multiplier in ((_S32, _M1), (_S29, _M2)):
        np.right_shift(sums, shift, out=spare)
        sums ^= spare
        sums *= multiplier
    np.right_shift(sums, _S32, out=spare)
    sums ^= spare
    return sums
