"""The fingerprint of rows: proof that a rewrite kept every one of them, whatever else it changed.

Equal sets of rows (with multiplicity) have equal fingerprints, whatever their order, the order of their columns, the
number of batches or files they lie in, their encodings (dictionary or plain), columns added that are null throughout,
and widened types (`lanes` says which). Different sets have different ones, up to chance: each row is hashed to 128
bits, and the fingerprint is the number of rows and the sum of their hashes modulo 2^128, so fingerprints add up like
the rows do. No protection against rows chosen to collide: the hash has no secret.

A row's hash is a mix of the sums of its cells' lanes. A null adds nothing, which is what lets an added column of nulls
change nothing; the mix ties the cells of a row together: two rows that swap a value do not have the same sum.

Fingerprints are stored (index, block metadata): a change of any of it needs another name in `model.ALGORITHM`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction.exceptions import UnsupportedColumnError
from compaction.stores.blocks.fingerprint.lanes import ColumnKeys, column_keys, has_words, lanes, looked_up, words_of
from compaction.stores.blocks.fingerprint.lookups import PAIR, Combiner, Pairs, Places
from compaction.stores.blocks.model import RowFingerprint

SLICE_ROWS: Final = 15 << 10
"""So many rows at a time: what is computed on fits into a core's cache, and one array of it is just below the size
from which an allocation gets fresh memory from the system (128 KiB), which costs more than the arithmetic.
"""

_M1: Final = np.uint64(0xFF51AFD7ED558CCD)
_M2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_M3: Final = np.uint64(0x9FB21C651E98DF25)
_S29: Final = np.uint64(29)
_S31: Final = np.uint64(31)
_S32: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(0xFFFFFFFF)

Words = npt.NDArray[np.uint64]
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
        self._scratch = np.empty((2, SLICE_ROWS), PAIR)
        self._combiner = Combiner()
        self._spare = np.empty(SLICE_ROWS, np.uint64)

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
        self._keys = [column_keys(_escaped(field.name), field.type) for field in schema]
        for keys in self._keys:
            before = known.get(keys.path)
            if before is not None and before.multiply == keys.multiply:
                keys.known = before.known
        self._schema = schema

    def _batch(self, batch: pa.RecordBatch) -> Iterator[RowFingerprint]:
        """Of each slice. What lies in dictionaries is looked up: the dictionaries are learnt once for all slices."""
        looked: list[tuple[Pairs, Places]] = []
        numbers: list[tuple[pa.Array[Any], ColumnKeys]] = []
        others: list[tuple[pa.Array[Any], ColumnKeys]] = []
        for column, keys in zip(batch.columns, self._keys, strict=True):
            known = looked_up(column, keys) if pa.types.is_dictionary(column.type) else None
            if known is not None:
                looked.append((known.pairs, known.places(column.indices, keys.path)))
            else:
                (numbers if has_words(column) else others).append((column, keys))
        combined = self._combiner.of(looked)
        begin = [np.uint64(sum(int(keys.offset[lane]) for _, keys in numbers) % (1 << 64)) for lane in (0, 1)]
        for start in range(0, batch.num_rows, SLICE_ROWS):
            count = min(SLICE_ROWS, batch.num_rows - start)
            a, b = np.full(count, begin[0]), np.full(count, begin[1])
            for column, keys in numbers:
                words = words_of(column.slice(start, count), keys)
                a += np.multiply(words, keys.multiply[0], out=self._spare[:count])
                words *= keys.multiply[1]
                b += words
            for column, keys in others:
                more = lanes(column.slice(start, count), keys)
                a += more[0]
                b += more[1]
            self._add_looked_up(a, b, combined, start)
            yield _sum(*_tie(a, b))

    def _add_looked_up(self, a: Words, b: Words, looked: Sequence[tuple[Pairs, Places]], start: int) -> None:
        """Add the pairs at these places, for some rows. Integer sums wrap around modulo 2^64."""
        count = len(a)
        sums, more = (scratch[:count] for scratch in self._scratch)
        for number, (pairs, places) in enumerate(looked):
            # All places are known to be inside: to clip is only what takes without a check and a copy.
            pairs.take(places[start : start + count], out=more if number else sums, mode="clip")
            if number:
                sums.view(np.uint64)[:] += more.view(np.uint64)
        if looked:
            a += sums["a"]
            b += sums["b"]


def _sum(high: Words, low: Words) -> RowFingerprint:
    """Of rows whose hashes have these halves. The low ones are summed as halves of 32 bits, whose sums cannot overflow
    64: so no carry into the high lane is lost.
    """
    below = int((low & _LOW_HALF).sum()) + (int((low >> _S32).sum()) << 32)
    return RowFingerprint(len(high), ((int(high.sum()) << 64) + below) % (1 << 128))


def _tie(a: Words, b: Words) -> tuple[Words, Words]:
    """The lanes of each row mixed with each other, in place; every step can be undone, so different pairs stay so."""
    spare = np.empty_like(a)
    for shift, lane, multiplier in ((_S32, a, _M1), (_S29, b, _M2)):
        np.right_shift(lane, shift, out=spare)
        lane ^= spare
        lane *= multiplier
    a += b
    for shift, multiplier in ((_S31, _M3), (_S29, _M2)):
        np.right_shift(a, shift, out=spare)
        a ^= spare
        a *= multiplier
    np.right_shift(a, _S32, out=spare)
    a ^= spare
    b ^= a
    b *= _M1
    np.right_shift(b, _S31, out=spare)
    b ^= spare
    b += a
    return a, b


def _escaped(name: str) -> str:
    """A top column `a.b` is not the field b of a."""
    return name.replace("\\", "\\\\").replace(".", "\\.")
