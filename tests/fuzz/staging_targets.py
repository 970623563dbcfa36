"""Targets of staging areas: tables with their checksums as they are and made right, and values."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import cramjam

from compaction.staging.errors import CorruptRangeError, RangeRecordError, UnsupportedRangeError
from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import FramingError, frame_values, split_value, split_values
from compaction.staging.format.ranges import read_metarange
from compaction.staging.format.table_parts import masked_checksum
from compaction.staging.format.table_reader import BytesSource, TableReader
from fuzz.target import Target, refusing
from support.stores.plain_tables import RECORD, PlainBlock, write_plain
from support.stores.staging_tables import SHAPES, numbered, table

NAME: Final = "repo/_lakefs/range"
_TABLES: Final = (
    table([(b"a", b"1")]),
    table([]),
    table(numbered(40)),
    table(SHAPES["trailers"][:200]),
    write_plain([(b"c", b"")], {}),
)
_TOKENS: Final = (
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x7f",
    b"\x01" + bytes(7),
    b"\x11" + b"\xff" * 7,
    struct.pack("<I", 2**28),
    b"\x00\x08\x00" + b"\x01" + bytes(7),
    b"\xf7\xcf\xf4\x85\xb7\x41\xe2\x88",
)


def _read(data: bytes) -> None:
    """All records, in order; a seek to any of them finds it."""
    with refusing(NAME, CorruptRangeError, UnsupportedRangeError):
        reader = TableReader(BytesSource(data, NAME))
        records = [pair for batch in reader.batches() for pair in batch.pairs()]
        keys = [key for key, _ in records]
        assert keys == sorted(set(keys))
        for key, value in records[:2] + records[-2:]:
            assert reader.get(key) == value
        assert list(read_metarange(reader, NAME)) or not records


def _table(data: bytes, _: Path) -> None:
    _read(data)


def _block(data: bytes, _: Path) -> None:
    """The only data block of a table, plain or Snappy by its last byte, its checksum right and everything else fits."""
    content, kind = data[:-1], data[-1:] or b"\0"
    out = bytearray(content + kind + struct.pack("<I", masked_checksum(content + kind)))

    def add(block: bytes) -> bytes:
        handle = _varint(len(out)) + _varint(len(block))
        out.extend(block + b"\0" + struct.pack("<I", masked_checksum(block + b"\0")))
        return handle

    def one(key: bytes, value: bytes) -> bytes:
        return b"\0" + _varint(len(key)) + _varint(len(value)) + key + value + struct.pack("<2I", 0, 1)

    index = add(one(b"\xff" * 60 + bytes(8), _varint(0) + _varint(len(content))))
    entries = {
        b"rocksdb.block.based.table.index.type": bytes(4),
        b"rocksdb.comparator": b"leveldb.BytewiseComparator",
        b"rocksdb.num.data.blocks": b"\x01",
        b"rocksdb.num.entries": b"\x28",
    }
    body = b"".join(one(key, value)[:-8] for key, value in entries.items())
    meta = add(one(b"rocksdb.properties", add(body + struct.pack("<2I", 0, 1))))
    footer = (b"\x01" + meta + index).ljust(41, b"\0") + struct.pack("<I", 2) + bytes.fromhex("f7cff485b741e288")
    _read(bytes(out) + footer)


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _value(data: bytes, _: Path) -> None:
    """A value by itself and in a column: both find the same parts, or none."""
    try:
        parts = split_value(data)
    except FramingError:
        parts = None
    try:
        columns = split_values(RecordColumns.of([(b"k", data)]))
    except RangeRecordError:
        assert parts is None
        return
    assert parts == (columns.identities[0].as_py(), columns.data[0].as_py())
    (again,) = frame_values(columns).to_pylist()
    assert split_value(again) == parts


def _data_block(records: list[tuple[bytes, bytes]]) -> bytes:
    block = PlainBlock(16)
    for key, value in records:
        block.add(key + RECORD, value)
    return block.finish()


_DATA_BLOCKS: Final = tuple(_data_block(records) for records in (numbered(40), SHAPES["trailers"][:40], numbered(1)))
_BLOCK_SEEDS: Final = (
    *(block + b"\0" for block in _DATA_BLOCKS),
    bytes(cramjam.snappy.compress_raw(_DATA_BLOCKS[0])) + b"\1",
)

STAGING_TARGETS: Final = (
    Target("range", _table, _TABLES, _TOKENS),
    Target("range-block", _block, _BLOCK_SEEDS, _TOKENS),
    Target("range-value", _value, tuple(value for _, value in numbered(3)), _TOKENS),
)
