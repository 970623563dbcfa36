"""The reader of a store: yields the rows of exactly the live blocks of one instant, as Arrow record batches.

A snapshot is a version of the index and a filter, nothing else: it may be sent to another process, and no transaction
stays open while rows are read. Its objects stay readable for the grace, since a replaced block is deleted only after
that; a longer read gets SnapshotExpiredError, never a part of the rows without a word.

Memory: one batch, and the pages of one row group; never the listing, however many blocks there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compaction.blocks.errors import (
    BlockStoreError,
    CorruptBlockError,
    SchemaConflictError,
    SnapshotExpiredError,
    UnsuitableBlockError,
)
from compaction.blocks.format.footer import (
    LIBRARY_FAILURES,
    UNKNOWN,
    BlockFooter,
    read_footer,
    registered_time_column,
    scale_of,
    short,
    stored_scale,
    time_column_of,
    times_of_footer,
)
from compaction.blocks.format.metadata import decode
from compaction.blocks.index.live_blocks import EVERYTHING, BlockFilter, blocks_at, inspect, page
from compaction.blocks.index.tables import BlockState, IndexDatabase
from compaction.blocks.merge.schema import unified
from compaction.blocks.model import Block
from compaction.storage.errors import ObjectMissingError, StorageError
from compaction.storage.objects.store import ObjectStorage
from compaction.unexpected import lack_of

BATCH_ROWS: Final = 1 << 16
BUFFER_BYTES: Final = 1 << 20
"""So much of each column is read at a time, whatever the size of its row groups."""


class ReadableStore(Protocol):
    """The parts of a store that a reader needs; `store.BlockStore` is one."""

    @property
    def objects(self) -> ObjectStorage: ...

    @property
    def index(self) -> IndexDatabase: ...


@dataclass(frozen=True, slots=True)
class BlockReader:
    """Reads a store. `columns`: only these, in this order; None is all. `time_column`: else the
    one by which each block was registered, where that is known. `batch_rows`: rows of a batch at most.
    """

    store: ReadableStore
    columns: tuple[str, ...] | None = None
    time_column: str = ""
    batch_rows: int = BATCH_ROWS

    def snapshot(self, which: BlockFilter = EVERYTHING, *, version: int | None = None) -> BlockSnapshot:
        """The live blocks of this instant, or of an earlier one by its version. `start` and `end` of the filter are
        held by every row, not only by blocks.

        Raises SnapshotExpiredError (for a version), DatabaseUnavailableError, DatabaseError.
        """
        return BlockSnapshot(self, which, page(self.store.index, which, version=version, limit=1).version)


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """The state after change `version`, seen through a filter. Safe for threads; each iteration starts again."""

    reader: BlockReader = field(repr=False)
    which: BlockFilter
    version: int

    def blocks(self) -> Iterator[Block]:
        """The blocks, by id. Raises SnapshotExpiredError, DatabaseUnavailableError, DatabaseError."""
        return blocks_at(self.reader.store.index, self.which, version=self.version)

    def schema(self) -> pa.Schema:
        """The schema that holds the rows of all of them, of the reader's columns; without any block it is empty.

        Reads one footer for each schema there is. Raises SchemaConflictError: then they can only be read one by one.
        """
        examples: dict[str, Block] = {}
        for block in self.blocks():
            examples.setdefault(block.schema_id, block)
        schema = unified([(block.path, self._footer(block).schema) for block in examples.values()])
        if self.reader.columns is None or not examples:
            return schema
        if missing := [name for name in self.reader.columns if name not in schema.names]:
            path = next(iter(examples.values())).path
            raise UnsuitableBlockError(path, f"neither it nor any other block has a column {missing[0][:100]!r}")
        return pa.schema([schema.field(name) for name in self.reader.columns])

    def batches(self, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """All rows in one schema (`schema()`, unless it is given): columns that a block lacks are null, types widened.

        Raises:
            SnapshotExpiredError: a block was replaced, and its object deleted, because the grace has passed since then.
            ObjectMissingError, CorruptBlockError: a live block is lost or damaged.
            SchemaConflictError, UnsuitableBlockError, ObjectError, DatabaseUnavailableError, DatabaseError
        """
        target = self.schema() if schema is None else schema
        for block in self.blocks():
            for batch in self.read(block):
                yield _fitted(batch, target, block)

    def stream(self) -> pa.RecordBatchReader:
        """The same for consumers of an Arrow stream: DuckDB, Polars, a writer of files."""
        schema = self.schema()
        return pa.RecordBatchReader.from_batches(schema, self.batches(schema))

    def read(self, block: Block) -> Iterator[pa.RecordBatch]:
        """The rows of one block in a schema of its own. Raises as `batches`."""
        try:
            footer = self._footer(block, look=False)
            yield from _Rows(self.reader, footer, block, self.which).batches()
        except ObjectMissingError:
            # The index says which: deleted after the grace of the snapshot, or lost.
            raise self._vanished(block) from None

    def _footer(self, block: Block, *, look: bool = True) -> BlockFooter:
        try:
            footer = read_footer(self.reader.store.objects, block.path, look=look)
        except ObjectMissingError:
            raise self._vanished(block) from None
        if (footer.rows, footer.info.size) != (block.rows, block.bytes):
            raise CorruptBlockError(block.path, "it is not the object that was registered: rows or bytes differ")
        return footer

    def _vanished(self, block: Block) -> ObjectMissingError | SnapshotExpiredError:
        """Deleted because its time had come, or lost: that the index knows."""
        record = inspect(self.reader.store.index, block.id)
        if record is not None and record.state is BlockState.LIVE:
            return ObjectMissingError(block.path, f"block {block.id} is live, and there is no such object: it is lost")
        reason = f"its block was live after change {self.version}, was replaced since, and deleted after the grace"
        return SnapshotExpiredError(block.path, reason)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one block that the filter lets through."""

    reader: BlockReader
    footer: BlockFooter
    block: Block
    which: BlockFilter

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raises CorruptBlockError, UnsuitableBlockError, ObjectError."""
        wanted, present = self.reader.columns, self.footer.schema.names
        names = present if wanted is None else [name for name in wanted if name in present]
        time = self._time_column() if self._cuts() else ""
        groups = self._groups(time)
        if not groups:
            return
        path = self.footer.info.path
        try:
            with self.reader.store.objects.reader(path, info=self.footer.info) as source:
                options: dict[str, Any] = {"pre_buffer": False, "page_checksum_verification": True}
                options |= self.footer.int96.options
                file = pq.ParquetFile(source, metadata=self.footer.parquet, buffer_size=BUFFER_BYTES, **options)
                read = names if not time or time in names else [*names, time]
                for read_batch in file.iter_batches(self.reader.batch_rows, groups, columns=read, use_threads=False):
                    batch = self.footer.int96.decoded(read_batch, self.footer.schema)
                    yield (self._cut(batch, time) if time else batch).select(names)
        except (BlockStoreError, StorageError):
            raise
        except LIBRARY_FAILURES as error:
            if lack := lack_of(error, path):
                raise lack from error
            raise CorruptBlockError(path, f"its rows cannot be read ({short(error)})") from None

    def _cuts(self) -> bool:
        """Return whether some rows of the block may be outside of the times that are asked for."""
        start, end = self.which.start, self.which.end
        return (start is not None and self.block.min_time < start) or (end is not None and self.block.max_time > end)

    def _time_column(self) -> str:
        wanted = self.reader.time_column
        if not wanted:
            try:
                said = decode(self.footer.metadata).time_column
            except ValueError as error:
                raise CorruptBlockError(self.block.path, str(error)) from None
            if (found := registered_time_column(self.block, self.footer, said or "")) is None:
                raise UnsuitableBlockError(self.block.path, "by which column it was registered does not show: name it")
            return found
        column = time_column_of(self.footer, wanted)
        times = times_of_footer(self.footer, column)
        if times and self.footer.rows and not self.block.min_time <= times[0] <= times[1] <= self.block.max_time:
            # By this column rows would be missing.
            reason = f"was not registered by the times in {column[:100]!r}: name another one, or none"
            raise UnsuitableBlockError(self.block.path, reason)
        return column

    def _groups(self, time: str) -> list[int]:
        """The row groups that may have such rows, by their statistics."""
        numbers = [number for number, group in enumerate(self.footer.row_groups) if group.rows]
        if not time:
            return numbers
        low, high = stored_scale(self.footer, time).bounds(self.which.start, self.which.end)
        found = []
        for number in numbers:
            bounds = self.footer.row_groups[number].bounds.get(time, UNKNOWN)
            known = isinstance(bounds.low, int) and isinstance(bounds.high, int)
            if not known or (bounds.low <= high and bounds.high >= low):  # type: ignore[operator]
                found.append(number)
        return found

    def _cut(self, batch: pa.RecordBatch, time: str) -> pa.RecordBatch:
        values = batch.column(time)
        low, high = scale_of(values.type).bounds(self.which.start, self.which.end)
        numbers = values.cast(pa.int64())
        return batch.filter(pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high)))


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, block: Block) -> pa.RecordBatch:
    """The batch in the common schema. Raises SchemaConflictError."""
    columns = []
    for item in schema:
        present = item.name in batch.schema.names
        values = batch.column(item.name) if present else pa.nulls(batch.num_rows, item.type)
        try:
            columns.append(values.cast(item.type))
        except pa.ArrowException:
            raise SchemaConflictError(item.name, block.path, str(values.type), "the schema", str(item.type)) from None
    return pa.record_batch(columns, schema=schema)
