"""Reads a table: batches of records from any key on, and single records, with every byte checked that it takes.

Memory is one batch of blocks and one block of the index, whatever the table's size (docs/design/staging.md#tables).
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
import pyarrow as pa

from compaction.staging.errors import CorruptRangeError, UnsupportedRangeError
from compaction.staging.format.blocks import (
    TRAILER,
    TRAILER_BYTES,
    BlockEntry,
    EntryError,
    decode_small_block,
    greater,
    padded,
    shared_prefixes,
)
from compaction.staging.format.columns import I64, RecordColumns, data_of, offsets_of
from compaction.staging.format.decoding import BlockPlaces, IndexColumns, decode_blocks, decode_index
from compaction.staging.format.table_parts import (
    FOOTER_BYTES,
    MAX_BLOCK_BYTES,
    PROPERTIES_NAME,
    RANGE_DELETIONS_NAME,
    SEAL_BYTES,
    BlockHandle,
    TableProperties,
    decode_footer,
    decode_properties,
    unsealed,
)

# The source of a table's bytes for a reader: anything that has a name, a size and reads from a place.


class TableSource(Protocol):
    """A table's bytes. `name` is for errors: the path or the URL of the object."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset` on, fewer only at the end."""
        ...


class BytesSource:
    """A table in memory."""

    def __init__(self, data: bytes, name: str = "table") -> None:
        self._data = data
        self.name = name
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


class FileSource:
    """A table in a local file, open for as long as the context lasts. OSError as of `open`."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)


TAIL_BYTES: Final = 32 << 10
"""What is read of the end at first: footer, properties, and the index of most tables."""
PARTITION_BYTES: Final = 1 << 20
"""Of the index that are decoded at once, or one block of it."""
SIFTED_BYTES: Final = 64 << 10
"""A block of up to so many stored bytes is searched entry by entry."""
BATCH_BYTES: Final = 4 << 20
"""Stored bytes of the blocks that become one batch; a batch has at least one block."""


class TableReader:
    """One table. Opening it reads its end and checks footer, properties and top index.

    Raises, as every method does, CorruptRangeError and UnsupportedRangeError, which name the source and the byte, and
    whatever reading the source raises.
    """

    def __init__(self, source: TableSource, *, ignore_range_deletions: bool = False) -> None:
        """`ignore_range_deletions`: read the records of a foreign table as if it deleted none of them."""
        self._source = source
        self._tail_begin = max(0, source.size - TAIL_BYTES)
        self._tail = source.read(self._tail_begin, source.size - self._tail_begin)
        metaindex, index = decode_footer(self._tail, path=source.name, size=source.size)
        self._end = index.offset
        meta = {item.key: item.value for item in self._small(metaindex, "metaindex")}
        if RANGE_DELETIONS_NAME in meta and not ignore_range_deletions:
            raise UnsupportedRangeError(source.name, metaindex.offset, "it has deletions of ranges of keys")
        self.properties: Final = self._properties(meta, metaindex)
        most = 1 << 61  # numbers beyond an object's size stay beyond it
        place = BlockPlaces(np.array([min(index.offset, most)]), np.array([min(index.size, most)]))
        self._top, _ = self._index_columns(place)

    def batches(
        self, start: bytes = b"", stop: bytes | None = None, *, batch_bytes: int = BATCH_BYTES
    ) -> Iterator[RecordColumns]:
        """Records with start <= key < stop (None: to the end), in order; no batch is empty.

        A complete pass proves that there are as many records as the properties say.
        """
        whole = start == b"" and stop is None
        records = blocks = 0
        previous: Any = None
        for group in self._groups(start, stop, batch_bytes):
            batch = self._group(group, previous)
            records += len(batch)
            blocks += len(group)
            # Keys of the next block come after the separator too.
            previous = group.lasts.slice(len(group) - 1)
            batch = _within(batch, start, stop)
            if len(batch):
                yield batch
        if whole and (records, blocks) != (self.properties.records, self.properties.data_blocks):
            said = f"{self.properties.records} records in {self.properties.data_blocks} blocks"
            raise CorruptRangeError(self._source.name, self._end, f"it has {records} in {blocks}, and says {said}")

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None when there is none.

        One block of data is read, and one of the index where it has two levels. That its other keys are in order is
        not checked here.
        """
        handle = self._seek(key)
        if handle is None:
            return None
        if handle.size <= SIFTED_BYTES:
            found = next((item for item in self._small(handle, "block") if item.key[:-TRAILER_BYTES] == key), None)
            if found is None or found.key.endswith(TRAILER):
                return found.value if found else None
        # A large block, or an entry that is no record: which is an error.
        for batch in self.batches(key, key + b"\0", batch_bytes=1):
            value: bytes = batch.values[0].as_py()
            return value
        return None

    def _seek(self, key: bytes) -> BlockHandle | None:
        """The one block of data that may have a key."""
        row = _first_at(self._top.lasts, key)
        if row == len(self._top):
            return None
        handle = _handle_at(self._top, row)
        if not self.properties.two_levels:
            return handle
        if handle.size > SIFTED_BYTES:
            entries = next(self._partitions(key))
            return _handle_at(entries, 0) if len(entries) else None
        found = next((item for item in self._small(handle, "index") if item.key[:-TRAILER_BYTES] >= key), None)
        return self._handle(found.value, handle) if found else None

    def _properties(self, meta: dict[bytes, bytes], metaindex: BlockHandle) -> TableProperties:
        if PROPERTIES_NAME not in meta:
            raise CorruptRangeError(self._source.name, metaindex.offset, "it has no properties")
        handle = self._handle(meta[PROPERTIES_NAME], metaindex)
        entries = {item.key: item.value for item in self._small(handle, "properties")}
        return decode_properties(entries, path=self._source.name, offset=handle.offset)

    def _handle(self, value: bytes, where: BlockHandle) -> BlockHandle:
        try:
            handle, end = BlockHandle.decode(value)
        except (IndexError, ValueError):
            # Refused below, as a handle with bytes behind it is.
            handle, end = BlockHandle(0, 0), -1
        if end != len(value):
            raise CorruptRangeError(self._source.name, where.offset, "an entry of the index is no place of a block")
        return handle

    def _read(self, offset: int, length: int) -> bytes:
        """Exactly so many bytes, all of them before the footer."""
        if offset + length > self._source.size - FOOTER_BYTES:
            said = f"a block should end at byte {offset + length}, the object has {self._source.size}"
            raise CorruptRangeError(self._source.name, min(offset, self._source.size), said)
        if offset >= self._tail_begin:
            return self._tail[offset - self._tail_begin :][:length]
        data = self._source.read(offset, length)
        if len(data) != length:
            said = f"the object ends {length - len(data)} bytes before its size of {self._source.size}"
            raise CorruptRangeError(self._source.name, offset + len(data), said)
        return data

    def _block(self, handle: BlockHandle, name: str) -> bytes:
        """A block that is not of data, with its seal."""
        if handle.size > MAX_BLOCK_BYTES:
            reason = f"its {name} has {handle.size} bytes, at most {MAX_BLOCK_BYTES} are read"
            raise UnsupportedRangeError(self._source.name, handle.offset, reason)
        return self._read(handle.offset, handle.size + SEAL_BYTES)

    def _small(self, handle: BlockHandle, name: str) -> list[BlockEntry]:
        """All entries of a small block."""
        try:
            return decode_small_block(unsealed(self._block(handle, name), path=self._source.name, offset=handle.offset))
        except EntryError as error:
            raise CorruptRangeError(self._source.name, handle.offset, f"its {name}: {error}") from None

    def _index_columns(self, blocks: BlockPlaces) -> tuple[IndexColumns, I64]:
        """Entries of blocks of the index that lie one after the other, and the bounds of each block's."""
        if blocks.sizes.max() > MAX_BLOCK_BYTES:
            reason = f"its index has a block of {int(blocks.sizes.max())} bytes, at most {MAX_BLOCK_BYTES} are read"
            raise UnsupportedRangeError(self._source.name, int(blocks.offsets[0]), reason)
        begin = int(blocks.offsets[0])
        return decode_index(self._read(begin, int(blocks.ends[-1]) - begin), blocks, path=self._source.name)

    def _partitions(self, start: bytes) -> Iterator[IndexColumns]:
        """Entries of data blocks, from the first that may have a key from `start` on; of several partitions at once.

        First of one, then of twice as many each time: a seek reads one, a long pass is not slowed down by their number.
        """
        top = self._top.slice(_first_at(self._top.lasts, start), len(self._top))
        if not self.properties.two_levels:
            yield top
            return
        before: IndexColumns | None = None
        begin, most = 0, 1
        while begin < len(top):
            end = begin + _together(top.places.slice(begin, begin + most), PARTITION_BYTES)
            group = top.slice(begin, end)
            entries, bounds = self._index_columns(group.places)
            lasts = entries.lasts.take(pa.array(np.maximum(bounds[1:] - 1, 0))) if len(entries) else entries.lasts
            whole = entries if before is None else _concatenated([before, entries])
            if (bounds[:-1] == bounds[1:]).any() or not lasts.equals(group.lasts) or not _in_order(whole):
                offset = int(group.places.offsets[0])
                raise CorruptRangeError(self._source.name, offset, "its index contradicts its top or is not in order")
            yield entries.slice(_first_at(entries.lasts, start) if before is None else 0, len(entries))
            before = entries.slice(len(entries) - 1, len(entries))
            begin, most = end, min(2 * most, 64)

    def _index(self, start: bytes, stop: bytes | None, batch_bytes: int) -> Iterator[IndexColumns]:
        """The same, several partitions together where they are small, and up to the block that `stop` is in."""
        held: list[IndexColumns] = []
        size = 0
        for partition in self._partitions(start):
            last = stop is not None and len(partition) and partition.lasts[-1].as_py() >= stop
            taken = partition.slice(0, _first_at(partition.lasts, stop) + 1) if last and stop is not None else partition
            held.append(taken)
            size += int(taken.places.sizes.sum())
            if size >= batch_bytes or last:
                yield _concatenated(held)
                held, size = [], 0
            if last:
                break
        if held:
            yield _concatenated(held)

    def _groups(self, start: bytes, stop: bytes | None, batch_bytes: int) -> Iterator[IndexColumns]:
        """Neighbouring blocks that are read and decoded together."""
        for index in self._index(start, stop, batch_bytes):
            places = index.places
            if places.sizes.max(initial=0) > MAX_BLOCK_BYTES:
                at = int(np.argmax(places.sizes))
                reason = f"a block of {int(places.sizes[at])} bytes, at most {MAX_BLOCK_BYTES} are read"
                raise UnsupportedRangeError(self._source.name, int(places.offsets[at]), reason)
            # Even parts: a small one at the end would cost as much as a large one.
            total = int(places.sizes.sum())
            part = -(-total // max(1, round(total / batch_bytes)))
            begin = 0
            while begin < len(index):
                end = begin + _together(places.slice(begin, len(index)), part)
                yield index.slice(begin, end)
                begin = end

    def _group(self, group: IndexColumns, previous: Any) -> RecordColumns:
        """The records of a group, which come after the last key of the group before (an array of one, or None)."""
        begin, end = int(group.places.offsets[0]), int(group.places.ends[-1])
        decoded = decode_blocks(self._read(begin, end - begin), group.places, path=self._source.name)
        records, bounds = decoded.records, decoded.bounds
        if not self.properties.records and not len(records):
            return records
        empty = bounds[:-1] == bounds[1:]
        if empty.any():
            at = int(group.places.offsets[np.argmax(empty)])
            raise CorruptRangeError(self._source.name, at, "a block has no records")
        wrong = _outside(records.keys, bounds, group.lasts, previous)
        if wrong is not None:
            at = int(group.places.offsets[wrong])
            raise CorruptRangeError(self._source.name, at, "its keys are not those of the index")
        return records


def _together(places: BlockPlaces, nbytes: int) -> int:
    """Return the number of first blocks that lie one after the other and have at most so many bytes; at least one."""
    ends = places.ends
    fits = int(np.searchsorted(np.cumsum(places.sizes), nbytes, side="right"))
    gaps = np.flatnonzero(places.offsets[1:] != ends[:-1])
    return max(1, min(fits, int(gaps[0]) + 1 if gaps.size else ends.size))


def _in_order(index: IndexColumns) -> bool:
    """Return whether keys and places ascend from the first entry to the second, where there are two."""
    if len(index) < 2:
        return True
    ordered: bool = index.lasts[0].as_py() < index.lasts[1].as_py()
    return ordered and bool(index.places.ends[0] <= index.places.offsets[1])


def _outside(keys: Any, bounds: I64, lasts: Any, previous: Any) -> int | None:
    """The first block whose keys are not between the separator of the block before and its own; None when all are."""
    count = bounds.size - 1
    lows, highs = keys.take(pa.array(bounds[:-1])), keys.take(pa.array(bounds[1:] - 1))
    # The separator before each block, its first and last key, its own separator; then those of the next.
    before = pa.concat_arrays([lows.slice(0, 1) if previous is None else previous, lasts.slice(0, count - 1)])
    order = np.arange(4 * count).reshape(4, count).T.ravel()
    chain = pa.concat_arrays([before, lows, highs, lasts]).take(pa.array(order))
    offsets, data = offsets_of(chain), padded(data_of(chain))
    shared = shared_prefixes(data, offsets)
    ascends = np.append(greater(data, offsets, shared), True).reshape(count, 4)
    lengths = np.diff(offsets)
    equal = np.append((shared == lengths[:-1]) & (shared == lengths[1:]), False).reshape(count, 4)
    fits = (ascends[:, 0]) & (ascends[:, 2] | equal[:, 2])
    if previous is None:
        fits[0] = ascends[0, 2] | equal[0, 2]
    return None if fits.all() else int(np.argmin(fits))


def _handle_at(index: IndexColumns, row: int) -> BlockHandle:
    return BlockHandle(int(index.places.offsets[row]), int(index.places.sizes[row]))


def _concatenated(parts: list[IndexColumns]) -> IndexColumns:
    if len(parts) == 1:
        return parts[0]
    places = [part.places for part in parts]
    return IndexColumns(
        pa.concat_arrays([part.lasts for part in parts]),
        BlockPlaces(
            np.concatenate([place.offsets for place in places]), np.concatenate([place.sizes for place in places])
        ),
    )


def _first_at(keys: Any, key: bytes, begin: int = 0) -> int:
    """The number of the first key, of keys in order, that is not less than `key`."""
    return bisect_left(range(len(keys)), key, lo=begin, key=lambda row: keys[row].as_py())


def _within(records: RecordColumns, start: bytes, stop: bytes | None) -> RecordColumns:
    """The records with start <= key < stop, of records in order."""
    begin = _first_at(records.keys, start) if start else 0
    end = len(records) if stop is None else _first_at(records.keys, stop, begin)
    return records if (begin, end) == (0, len(records)) else records.slice(begin, end)
