"""Writes a table: records in ascending order, as batches of columns, to the bytes that pebble writes for them.

Memory is one piece of a batch and the index, whatever the table's size (docs/design/staging.md#tables).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

import numpy as np

from compaction.staging.errors import RangeRecordError
from compaction.staging.format.blocks import (
    BLOCK_BYTES,
    BLOCK_OVERHEAD,
    TRAILER_BYTES,
    BlockLayout,
    EntrySizes,
    encode_blocks,
    encode_small_block,
    first_not_ascending,
    padded,
    shared_prefixes,
    stored_prefixes,
)
from compaction.staging.format.columns import (
    EMPTY_COLUMNS,
    I64,
    RecordColumns,
    concatenated,
    data_of,
    lengths_of,
    offsets_of,
    total_bytes,
)
from compaction.staging.format.table_parts import (
    NO_KEY,
    PROPERTIES_NAME,
    BlockHandle,
    IndexBuilder,
    TableSummary,
    encode_footer,
    encode_properties,
    sealed,
    separator,
)

MAX_KEY_BYTES: Final = 64 << 10
MAX_VALUE_BYTES: Final = 81 << 20
"""Two parts of at most 40 MiB each and their lengths: a block of one such record is still one that we read."""
PIECE_BYTES: Final = 8 << 20
"""Of records that are encoded at once: the cost of a call on a column is that of some hundred records."""
UNLIMITED: Final = 1 << 62


class ByteSink(Protocol):
    """The sink of a table's bytes: an open file, or anything with its `write`."""

    def write(self, data: bytes, /) -> object: ...


class TableWriter:
    """One table. Batches of some thousand records are cheap, batches of single records are not."""

    def __init__(self, sink: ByteSink, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._sink = sink
        self._block_bytes = block_bytes
        self._index = IndexBuilder(block_bytes)
        self._open = EMPTY_COLUMNS
        """Records of the block that is not yet full."""
        self._open_size = BLOCK_OVERHEAD
        self._pending: list[bytes] = []
        """Blocks on the way to the sink."""
        self._offset = 0
        self._records = self._key_bytes = self._value_bytes = 0

    @property
    def records(self) -> int:
        """So many were added."""
        return self._records

    @property
    def estimated_size(self) -> int:
        """Bytes of the table by pebble's measure: blocks written, the open block and the open index block."""
        return self._offset + self._open_size + self._index.size

    def add(self, records: RecordColumns, *, limit: int = UNLIMITED) -> int:
        """Add records up to the first after which `estimated_size` is at least `limit`; how many were added.

        Raises RangeRecordError when keys do not ascend (also from batch to batch) or a part is too large: of the piece
        with that record nothing is added.
        """
        added = 0
        for piece in records.pieces(PIECE_BYTES):
            taken = self._add_piece(piece, limit)
            added += taken
            if taken < len(piece) or self.estimated_size >= limit:
                break
        return added

    def finish(self, user: Mapping[bytes, bytes]) -> int:
        """Write the rest, with the properties `user`; the size of the table in bytes."""
        if len(self._open) or not self._index.blocks:
            self._finish_data()
        data_bytes = self._offset
        index = self._index.write(self._write_block)
        summary = TableSummary(
            records=self._records,
            key_bytes=self._key_bytes,
            value_bytes=self._value_bytes,
            data_bytes=data_bytes,
            data_blocks=self._index.blocks,
            index=index,
        )
        properties = self._write_block(encode_properties(summary, user), compress=False)
        metaindex = self._write_block(encode_small_block([(PROPERTIES_NAME, properties.encode())]), compress=False)
        footer = encode_footer(metaindex, index.handle)
        self._pending.append(footer)
        self._write_pending()
        return self._offset + len(footer)

    def _finish_data(self) -> None:
        if len(self._open):
            (block,) = encode_blocks(self._open, _prefixes(self._open), [0, len(self._open)])
            key = separator(self._open.keys[-1].as_py(), None)
        else:
            block, key = encode_small_block([]), NO_KEY
        self._add_block(key, block)
        self._open, self._open_size = EMPTY_COLUMNS, BLOCK_OVERHEAD

    def _add_piece(self, piece: RecordColumns, limit: int) -> int:
        held = len(self._open)
        records = concatenated([self._open, piece]) if held else piece
        stored = _prefixes(records)
        _check_sizes(records)
        sizes = EntrySizes(lengths_of(records.keys), lengths_of(records.values), stored)
        layout = sizes.cut(self._block_bytes)
        end = self._write_full(records, stored, sizes, layout, limit)
        self._write_pending()
        taken = records.slice(held, end)
        self._records += len(taken)
        self._key_bytes += total_bytes(taken.keys) + TRAILER_BYTES * len(taken)
        self._value_bytes += total_bytes(taken.values)
        return len(taken)

    def _write_full(
        self, records: RecordColumns, stored: I64, sizes: EntrySizes, layout: BlockLayout, limit: int
    ) -> int:
        """Write the blocks that are full and keep the last one open; the end of what was taken by the `limit`."""
        begins, count = layout.begins, len(records)
        blocks = encode_blocks(records, stored, begins) if len(begins) > 1 else iter(())
        separators = _separators(records, stored, begins[1:])
        for number, begin in enumerate(begins):
            last = number == len(begins) - 1
            end = count if last else begins[number + 1]
            if self._offset + self._index.size + layout.sizes[number] >= limit:
                end = sizes.first_of_size(begin, end, limit - self._offset - self._index.size)
                # What is held was added already: at least one new record is taken, whatever the limit.
                end = max(end, len(self._open) + 1) if not number else end
                return self._keep(records, sizes, begin, end)
            if not last:
                self._add_block(next(separators), next(blocks))
        return self._keep(records, sizes, begins[-1], count)

    def _keep(self, records: RecordColumns, sizes: EntrySizes, begin: int, end: int) -> int:
        self._open, self._open_size = records.slice(begin, end), sizes.size(begin, end)
        return end

    def _add_block(self, key: bytes, block: bytes) -> None:
        """A data block, and its entry in the index."""
        stored, checksum = sealed(block)
        self._index.add(key, self._offset, len(stored) - 1)
        self._pending += (stored, checksum)
        self._offset += len(stored) + len(checksum)

    def _write_block(self, block: bytes, *, compress: bool = True) -> BlockHandle:
        """Any other block."""
        stored, checksum = sealed(block, compress=compress)
        handle = BlockHandle(self._offset, len(stored) - 1)
        self._pending += (stored, checksum)
        self._offset += len(stored) + len(checksum)
        return handle

    def _write_pending(self) -> None:
        """In large writes: a block by itself is small."""
        self._sink.write(b"".join(self._pending))
        self._pending.clear()


def _separators(records: RecordColumns, stored: I64, ends: list[int]) -> Iterator[bytes]:
    """The index keys of blocks that end before the records `ends`."""
    rows = np.asarray(ends, dtype=np.int64)
    offsets, data = offsets_of(records.keys), data_of(records.keys).data
    places = (offsets[rows - 1].tolist(), offsets[rows].tolist(), offsets[rows + 1].tolist(), stored[rows].tolist())
    for before, begin, end, common in zip(*places, strict=True):
        # What is stored as shared is more only where all of the key before is.
        yield separator(bytes(data[before:begin]), bytes(data[begin:end]), min(common, begin - before))


def _prefixes(records: RecordColumns) -> I64:
    """The prefix that each record's key shares as stored, 0 of the first. RangeRecordError when keys do not ascend."""
    offsets = offsets_of(records.keys)
    data = padded(data_of(records.keys)[offsets[0] : offsets[-1]])
    offsets = offsets - offsets[0]
    shared = shared_prefixes(data, offsets)
    wrong = first_not_ascending(data, offsets, shared)
    if wrong is not None:
        raise RangeRecordError(records.keys[wrong].as_py(), "its key is not greater than the one before it")
    stored = np.zeros(len(records), dtype=np.int64)
    stored[1:] = stored_prefixes(data, offsets, shared)
    return stored


def _check_sizes(records: RecordColumns) -> None:
    for array, most, name in ((records.keys, MAX_KEY_BYTES, "key"), (records.values, MAX_VALUE_BYTES, "value")):
        if array.null_count:
            raise RangeRecordError(b"", f"a {name} is null")
        lengths = lengths_of(array)
        if lengths.max(initial=0) > most:
            at = int(np.argmax(lengths))
            reason = f"its {name} has {int(lengths[at])} bytes, more than {most}"
            raise RangeRecordError(records.keys[at].as_py(), reason)
