"""By which columns the rows of a block are sorted, and who says so.

What a block or its footer declares is honoured and verified: wherever rows are read, neighbours are compared. Bounds of
row groups alone prove no order by several columns, since the same first value may end one row group and begin the next;
they only disprove one. Where nothing is declared, or the declaration is wrong, the rows are compared by the order that
the policy wants, then by time. No other order is looked for: a few rows are in the order of some column by chance.

The order is that of the merge: column by column, ascending, texts by their bytes, NaN after all numbers, null last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from compaction.api.text.safe import cut, printable
from compaction.blocks.format.footer import BlockFooter
from compaction.blocks.format.metadata import BlockMetadata
from compaction.blocks.merge.schema import without_dictionary

Key = tuple[str, ...]


class OrderSource(StrEnum):
    """Who says by what a block is sorted."""

    DECLARED = "declared"
    POLICY = "policy"
    FOUND = "found"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FoundOrder:
    """The order of a block's rows, empty when they are in none that counts; `why`: for people."""

    key: Key
    source: OrderSource
    why: str

    def __str__(self) -> str:
        return f"{', '.join(printable(cut(name, 40)) for name in self.key) or 'none'} ({self.why})"


class OrderCheck:
    """Compares each row with the one before it, batch by batch. `broken`: number of the first row, from 0, that belongs
    before its neighbour; `unordered`: the values of the columns cannot be compared.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.broken: int | None = None
        self.unordered = False
        self._rows = 0
        self._last: list[pa.Array] = []

    @property
    def holds(self) -> bool:
        """Whether all rows so far are in order."""
        return self.broken is None and not self.unordered

    def update(self, batch: pa.RecordBatch) -> None:
        """The next rows of the file."""
        start, self._rows = self._rows, self._rows + batch.num_rows
        if not self.holds or not batch.num_rows:
            return
        columns = [batch.column(name) for name in self.key]
        first = [_decoded(column.slice(0, 1)) for column in columns]
        try:
            if self._last and _descent([pa.concat_arrays(pair) for pair in zip(self._last, first, strict=True)]) == 1:
                self.broken = start
                return
            found = _descent([_ranked(column) for column in columns])
        except pa.ArrowException:
            self.unordered = True
            return
        self.broken = None if found is None else start + found
        self._last = [_decoded(column.slice(batch.num_rows - 1, 1)) for column in columns]


def _descent(columns: Sequence[pa.Array]) -> int | None:
    """The first row that belongs before its neighbour above."""
    count = len(columns[0]) - 1
    if count < 1:
        return None
    level = pa.array([True]).take(pa.nulls(count, pa.int8())).fill_null(True)  # so far equal to the row above
    below = pc.invert(level)
    for column in columns:
        for part in _parts(column):
            above, here = part.slice(0, count), part.slice(1, count)
            below = pc.or_(below, pc.and_(level, pc.fill_null(pc.less(here, above), False)))
            level = pc.and_(level, pc.fill_null(pc.equal(here, above), True))
    found = pc.index(below, True).as_py()
    return found + 1 if found >= 0 else None


def _parts(column: pa.Array) -> list[pa.Array]:
    """The column as parts that `less` orders one after the other: whether it is null, whether it is NaN, values."""
    if pa.types.is_null(column.type):
        return []
    parts = []
    if column.null_count:
        parts.append(column.is_null().cast(pa.int8()))
    if pa.types.is_floating(column.type):
        if pa.types.is_float16(column.type):
            column = column.cast(pa.float32())
        missing = pc.is_nan(column)
        if pc.any(missing).as_py():
            parts.append(pc.fill_null(missing, False).cast(pa.int8()))
            column = pc.if_else(missing, pa.scalar(None, column.type), column)
    return [*parts, column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column]


def _ranked(column: pa.Array) -> pa.Array:
    """Of a dictionary the place of each value among its values, which costs less than to compare texts."""
    if not pa.types.is_dictionary(column.type):
        return _decoded(column)
    ranks = pc.rank(column.dictionary, tiebreaker="dense") if len(column.dictionary) else pa.array([], pa.uint64())
    return pc.take(ranks, column.indices)


def _decoded(column: pa.Array) -> pa.Array:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = without_dictionary(column.type)
    return column if kind.equals(column.type) else column.cast(kind)  # views have no comparison


def declared_order(footer: BlockFooter, said: BlockMetadata) -> Key:
    """The order that the block declares: in our metadata, else in its row groups."""
    return said.sort_key if said.sort_key is not None else footer.sorted_by


def checks_of(footer: BlockFooter, said: BlockMetadata, *, wanted: Key, time_column: str) -> list[OrderCheck]:
    """The orders that rows are to be compared by while they are read: declared, wanted by the policy, time."""
    keys = dict.fromkeys((declared_order(footer, said), wanted, (time_column,)))
    return [OrderCheck(key) for key in keys if key and all(name in footer.schema.names for name in key)]


def order_of_rows(
    footer: BlockFooter, said: BlockMetadata, checks: Sequence[OrderCheck], *, wanted: Key, time_column: str
) -> FoundOrder:
    """The order of a block whose rows were all compared."""
    by_key = {check.key: check for check in checks}
    declared = declared_order(footer, said)
    doubt = ""
    if declared:
        check = by_key[declared]
        if check.holds:
            return FoundOrder(declared, OrderSource.DECLARED, "declared")
        doubt = f"; declares {_named(declared)}, but {_breach(check)}"
    if wanted in by_key and by_key[wanted].holds:
        return FoundOrder(wanted, OrderSource.POLICY, f"as wanted{doubt}")
    if by_key[time_column,].holds:
        return FoundOrder((time_column,), OrderSource.FOUND, f"found{doubt}")
    becomes = f"{_named(wanted)}, as wanted" if wanted else f"{time_column}, the default"
    return FoundOrder((), OrderSource.NONE, f"a merge sorts it, by {becomes}{doubt}")


def is_proved(footer: BlockFooter, said: BlockMetadata) -> bool:
    """Whether what is declared needs no read of the rows: we wrote it ourselves, or the bounds of the row groups prove
    it. (The merge compares rows in any case, and sorts first what is not in order.)
    """
    return said.sort_key is not None or not footer.sorted_by or footer.in_order()


def order_of_footer(footer: BlockFooter, said: BlockMetadata) -> FoundOrder:
    """The order of a block whose rows are not read now: what it declares, which `is_proved`."""
    declared = declared_order(footer, said)
    if declared:
        return FoundOrder(declared, OrderSource.DECLARED, "declared")
    return FoundOrder((), OrderSource.NONE, "declares none, and its rows were not read")


def _named(key: Key) -> str:
    return ", ".join(printable(cut(name, 40)) for name in key)


def _breach(check: OrderCheck) -> str:
    if check.unordered:
        return "these values have no order"
    return f"row {check.broken} belongs before row {(check.broken or 1) - 1}"
