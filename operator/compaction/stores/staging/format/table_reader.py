"""Reads a table: batches of records from any key on, and single records, with every byte checked that it takes.

Memory is one batch of blocks and one block of the index, whatever the table's size (docs/design/staging.md#tables).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from compaction.exceptions import CorruptRangeError, UnsupportedRangeError
from compaction.stores.staging.format.blocks import Entry, EntryError, decode_small_block
from compaction.stores.staging.format.columns import RecordColumns, data_of, offsets_of
from compaction.stores.staging.format.decoding import decode_blocks
from compaction.stores.staging.format.index import BlockHandle, user_key
from compaction.stores.staging.format.layout import TRAILER_BYTES
from compaction.stores.staging.format.properties import (
    FOOTER_BYTES,
    PROPERTIES_NAME,
    RANGE_DELETIONS_NAME,
    TableProperties,
    decode_footer,
    decode_properties,
)
from compaction.stores.staging.format.sealing import MAX_BLOCK_BYTES, SEAL_BYTES, unsealed
from compaction.stores.staging.format.sources import TableSource

TAIL_BYTES: Final = 32 << 10
"""What is read of the end at first: footer, properties, and the index of most tables."""
BATCH_BYTES: Final = 1 << 20
"""Stored bytes of the blocks that become one batch; a batch has at least one block."""


@dataclass(frozen=True, slots=True)
class _IndexEntry:
    """No key of the block is greater than `last`, a user key; none of a later block is less or equal."""

    last: bytes
    handle: BlockHandle


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
        meta = {one.key: one.value for one in self._small(metaindex, "metaindex")}
        if RANGE_DELETIONS_NAME in meta and not ignore_range_deletions:
            raise UnsupportedRangeError(source.name, metaindex.offset, "it has deletions of ranges of keys")
        self.properties: Final = self._properties(meta, metaindex)
        self._top = self._index_entries(index)

    def batches(
        self, start: bytes = b"", stop: bytes | None = None, *, batch_bytes: int = BATCH_BYTES
    ) -> Iterator[RecordColumns]:
        """Records with start <= key < stop (None: to the end), in order; no batch is empty.

        A complete pass proves that there are as many records as the properties say.
        """
        whole = start == b"" and stop is None
        records = blocks = 0
        previous: bytes | None = None
        for group in self._groups(start, stop, batch_bytes):
            batch, last = self._group(group, previous)
            records += len(batch)
            blocks += len(group)
            previous = last
            batch = _within(batch, start, stop)
            if len(batch):
                yield batch
        if whole and (records, blocks) != (self.properties.records, self.properties.data_blocks):
            said = f"{self.properties.records} records in {self.properties.data_blocks} blocks"
            raise CorruptRangeError(self._source.name, self._end, f"it has {records} in {blocks}, and says {said}")

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None when there is none."""
        for batch in self.batches(key, key + b"\0", batch_bytes=1):
            value: bytes = batch.values[0].as_py()
            return value
        return None

    def _properties(self, meta: dict[bytes, bytes], metaindex: BlockHandle) -> TableProperties:
        if PROPERTIES_NAME not in meta:
            raise CorruptRangeError(self._source.name, metaindex.offset, "it has no properties")
        handle = self._handle(meta[PROPERTIES_NAME], metaindex)
        entries = {one.key: one.value for one in self._small(handle, "properties")}
        return decode_properties(entries, path=self._source.name, offset=handle.offset)

    def _handle(self, value: bytes, where: BlockHandle) -> BlockHandle:
        try:
            handle, end = BlockHandle.decode(value)
        except (IndexError, ValueError):
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

    def _small(self, handle: BlockHandle, name: str) -> list[Entry]:
        """All entries of a block that is not of data."""
        if handle.size > MAX_BLOCK_BYTES:
            reason = f"its {name} has {handle.size} bytes, at most {MAX_BLOCK_BYTES} are read"
            raise UnsupportedRangeError(self._source.name, handle.offset, reason)
        stored = self._read(handle.offset, handle.size + SEAL_BYTES)
        try:
            return decode_small_block(unsealed(stored, path=self._source.name, offset=handle.offset))
        except EntryError as error:
            raise CorruptRangeError(self._source.name, handle.offset, f"its {name}: {error}") from None

    def _index_entries(self, block: BlockHandle) -> list[_IndexEntry]:
        """Entries of one block of the index, in order. The places of their blocks ascend and lie before the index."""
        entries: list[_IndexEntry] = []
        end, last = 0, b""
        for one in self._small(block, "index"):
            handle = self._handle(one.value, block)
            key = user_key(one.key)
            if len(one.key) < TRAILER_BYTES or key < last or handle.offset < end:
                raise CorruptRangeError(self._source.name, block.offset, "its index is not in order")
            end, last = handle.offset + handle.size + SEAL_BYTES, key
            if end > block.offset:
                raise CorruptRangeError(self._source.name, block.offset, "its index names places behind itself")
            entries.append(_IndexEntry(key, handle))
        return entries

    def _index(self, start: bytes) -> Iterator[_IndexEntry]:
        """Entries of data blocks, from the first that may have a key from `start` on."""
        top = self._top[bisect_left(self._top, start, key=lambda one: one.last) :]
        if not self.properties.two_levels:
            yield from top
            return
        last, end = b"", 0
        for number, partition in enumerate(top):
            entries = self._index_entries(partition.handle)
            if not entries or entries[-1].last != partition.last or entries[0].last < last:
                raise CorruptRangeError(self._source.name, partition.handle.offset, "its index contradicts its top")
            if entries[0].handle.offset < end:
                raise CorruptRangeError(self._source.name, partition.handle.offset, "its index is not in order")
            last, end = partition.last, entries[-1].handle.offset + entries[-1].handle.size + SEAL_BYTES
            yield from entries[bisect_left(entries, start, key=lambda one: one.last) :] if not number else entries

    def _groups(self, start: bytes, stop: bytes | None, batch_bytes: int) -> Iterator[list[_IndexEntry]]:
        """Neighbouring blocks that are read and decoded together."""
        group: list[_IndexEntry] = []
        stored = 0
        for one in self._index(start):
            if one.handle.size > MAX_BLOCK_BYTES:
                reason = f"a block of {one.handle.size} bytes, at most {MAX_BLOCK_BYTES} are read"
                raise UnsupportedRangeError(self._source.name, one.handle.offset, reason)
            size = one.handle.size + SEAL_BYTES
            if group and (stored + size > batch_bytes or one.handle.offset != _end(group[-1].handle)):
                yield group
                group, stored = [], 0
            group.append(one)
            stored += size
            if stop is not None and one.last >= stop:
                break
        if group:
            yield group

    def _group(self, group: list[_IndexEntry], previous: bytes | None) -> tuple[RecordColumns, bytes | None]:
        """The records of a group, which come after the key `previous`, and their last key."""
        handles = [one.handle for one in group]
        begin = handles[0].offset
        stored = np.frombuffer(self._read(begin, _end(handles[-1]) - begin), dtype=np.uint8)
        decoded = decode_blocks(stored, handles, path=self._source.name)
        records, bounds = decoded.records, decoded.bounds.tolist()
        keys, offsets = data_of(records.keys), offsets_of(records.keys)
        for one, first, last in zip(group, bounds[:-1], bounds[1:], strict=True):
            if first == last:
                if self.properties.records:
                    raise CorruptRangeError(self._source.name, one.handle.offset, "a block has no records")
                continue
            low = keys[offsets[first] : offsets[first + 1]].tobytes()
            high = keys[offsets[last - 1] : offsets[last]].tobytes()
            if high > one.last or (previous is not None and low <= previous):
                raise CorruptRangeError(self._source.name, one.handle.offset, "its keys are not those of the index")
            # Keys of the next block come after the separator too.
            previous = one.last
        return records, previous


def _end(handle: BlockHandle) -> int:
    return handle.offset + handle.size + SEAL_BYTES


def _within(records: RecordColumns, start: bytes, stop: bytes | None) -> RecordColumns:
    """The records with start <= key < stop, of records in order."""
    keys = records.keys
    begin = bisect_left(range(len(records)), start, key=lambda row: keys[row].as_py()) if start else 0
    end = len(records)
    if stop is not None:
        end = bisect_left(range(len(records)), stop, lo=begin, key=lambda row: keys[row].as_py())
    return records if (begin, end) == (0, len(records)) else records.slice(begin, end)
