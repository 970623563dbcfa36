"""Sorted runs: what a merge reads from. A Parquet file that is sorted; `spilling` has those that were sorted by us."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.errors import UnreadableBlockError
from compaction.blocks.fingerprint.rows import Fingerprinter
from compaction.blocks.merge.columns import Columns, Rows, is_codable
from compaction.blocks.merge.dictionaries import SteadyDictionaries
from compaction.blocks.merge.footers import Bound, OpenedFooter, reading
from compaction.blocks.merge.settings import Moved, nobody
from compaction.blocks.model import RowFingerprint


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
        """How often its rows were merged."""

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
        """How many leaves a row has."""
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
