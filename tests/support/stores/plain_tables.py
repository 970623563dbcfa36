"""Tables of staging areas record by record, in plain Python: what the columnar codec is compared with.

It follows docs/design/staging.md literally and shares no code with the package, except for Snappy and CRC-32C.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import cramjam
import google_crc32c

Record = tuple[bytes, bytes]
RECORD = (1).to_bytes(8, "little")
SEPARATOR = b"\x11" + b"\xff" * 7


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def common(one: bytes, other: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass
class PlainBlock:
    """A block that grows entry by entry; keys are stored keys, `tail` bytes at their ends are never shared."""

    interval: int
    tail: int = 8
    data: bytearray = field(default_factory=bytearray)
    restarts: list[int] = field(default_factory=list)
    count: int = 0
    last: bytes = b""

    @property
    def size(self) -> int:
        return len(self.data) + 4 * len(self.restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.count % self.interval:
            shared = common(self.last, key[: len(key) - self.tail])
        else:
            self.restarts.append(len(self.data))
        self.data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        self.count += 1
        self.last = key

    def is_full(self, key: int, value: int) -> bool:
        if not self.count or self.size <= 3687:
            return bool(self.count) and self.size >= 4096
        restart = 0 if self.count % self.interval else 4
        return self.size + key + value + restart + 4 + len(varint(key)) + len(varint(value)) > 4096 or self.size >= 4096

    def finish(self) -> bytes:
        restarts = self.restarts or [0]
        return bytes(self.data) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


class PlainTableWriter:
    """The bytes grow in `out`."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.block, self.index = PlainBlock(16), PlainBlock(1)
        self.partitions: list[tuple[bytes, bytes]] = []
        self.blocks = self.records = self.keys = self.values = 0

    @property
    def estimate(self) -> int:
        return len(self.out) + self.block.size + self.index.size

    def add(self, key: bytes, value: bytes) -> None:
        if self.block.is_full(len(key) + 8, len(value)):
            self.flush(between(self.block.last[:-8], key))
        self.block.add(key + RECORD, value)
        self.records, self.keys, self.values = self.records + 1, self.keys + len(key) + 8, self.values + len(value)

    def flush(self, key: bytes) -> None:
        handle = self.write(self.block.finish())
        if self.index.is_full(len(key), 20):
            self.partitions.append((self.index.last, self.index.finish()))
            self.index = PlainBlock(1)
        self.index.add(key, handle)
        self.block, self.blocks = PlainBlock(16), self.blocks + 1

    def write(self, block: bytes, *, compress: bool = True) -> bytes:
        packed = bytes(cramjam.snappy.compress_raw(block)) if compress else block
        small = len(packed) < len(block) - len(block) // 8
        stored = (packed if small else block) + bytes([small])
        handle = varint(len(self.out)) + varint(len(stored) - 1)
        crc = google_crc32c.value(stored)
        self.out += stored + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)
        return handle

    def finish(self, user: dict[bytes, bytes]) -> bytes:
        if self.block.count or not self.blocks:
            last = self.block.last
            self.flush(between(last[:-8], None) if last else b"\xff" + bytes(7))
        counts = {b"data.size": len(self.out), b"index.size": self.index.size + 5}
        top = self.index
        if self.partitions:
            parts = [*self.partitions, (self.index.last, self.index.finish())]
            top = PlainBlock(1)
            for key, block in parts:
                top.add(key, self.write(block))
            counts[b"index.size"] = sum(len(block) for _, block in parts) + top.size + 5
            counts |= {b"index.partitions": len(parts), b"top-level.index.size": top.size}
        index = self.write(top.finish())
        names = b"creation.time deleted.keys filter.size fixed.key.length format.version index.key.is.user.key "
        names += b"index.value.is.delta.encoded merge.operands num.range-deletions oldest.key.time"
        counts |= dict.fromkeys(names.split(), 0) | {b"column.family.id": 2**31 - 1, b"num.data.blocks": self.blocks}
        counts |= {b"num.entries": self.records, b"raw.key.size": self.keys, b"raw.value.size": self.values}
        texts = {
            b"block.based.table.index.type": struct.pack("<I", 2 if self.partitions else 0),
            b"block.based.table.prefix.filtering": b"0",
            b"block.based.table.whole.key.filtering": b"0",
            b"comparator": b"leveldb.BytewiseComparator",
            b"compression": b"Snappy",
            b"compression_options": b"window_bits=-14; level=32767; strategy=0; max_dict_bytes=0; "
            b"zstd_max_train_bytes=0; enabled=0; ",
            b"external_sst_file.global_seqno": bytes(8),
            b"external_sst_file.version": struct.pack("<I", 2),
            b"merge.operator": b"pebble.concatenate",
            b"prefix.extractor.name": b"nullptr",
            b"property.collectors": b"[static]",
        }
        texts |= {name: varint(count) for name, count in counts.items()}
        properties = PlainBlock(10**9, tail=0)
        for name, value in sorted((user | {b"rocksdb." + name: value for name, value in texts.items()}).items()):
            properties.add(name, value)
        metaindex = PlainBlock(1, tail=0)
        metaindex.add(b"rocksdb.properties", self.write(properties.finish(), compress=False))
        meta = self.write(metaindex.finish(), compress=False)
        footer = (b"\x01" + meta + index).ljust(41, b"\0") + struct.pack("<I", 2)
        return bytes(self.out) + footer + bytes.fromhex("f7cff485b741e288")


def between(last: bytes, following: bytes | None) -> bytes:
    """The index key of a block."""
    short = last
    at = 0 if following is None else common(last, following)
    if following is None or (at < min(len(last), len(following)) and last[at] < following[at]):
        if following is not None and (at < len(following) - 1 or last[at] + 1 < following[at]):
            return last[:at] + bytes([last[at] + 1]) + SEPARATOR
        for place in range(at + (following is not None), len(last)):
            if last[place] != 255:
                short = last[:place] + bytes([last[place] + 1])
                break
    return short + SEPARATOR if short > last else last + RECORD


def write_plain(records: Iterable[Record], user: dict[bytes, bytes]) -> bytes:
    writer = PlainTableWriter()
    for key, value in records:
        writer.add(key, value)
    return writer.finish(user)


def read_plain(table: bytes) -> Iterator[Record]:
    """The records of a sound table."""
    at = len(table) - 52
    for _ in range(2):
        _, at = read_varint(table, at)
    index, _ = _block(table, at)
    two_levels = any(name.endswith(b"partitions") for name in _properties(table))
    for _, handle in _entries(index):
        for key, value in _entries(_block(handle, 0, table)[0]) if two_levels else [(b"", handle)]:
            del key
            for stored, content in _entries(_block(value, 0, table)[0]):
                yield stored[:-8], content


def _properties(table: bytes) -> list[bytes]:
    metaindex, _ = _block(table, len(table) - 52)
    handles = dict(_entries(metaindex))
    return [name for name, _ in _entries(_block(handles[b"rocksdb.properties"], 0, table)[0])]


def _block(data: bytes, at: int, table: bytes | None = None) -> tuple[bytes, int]:
    """The block whose handle is at `at` of `data`."""
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    source = data if table is None else table
    stored = source[offset : offset + size + 1]
    crc = google_crc32c.value(stored)
    assert source[offset + size + 1 :][:4] == struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)
    return bytes(cramjam.snappy.decompress_raw(stored[:-1])) if stored[-1] else stored[:-1], at


def _entries(block: bytes) -> list[Record]:
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key, found = 0, b"", []
    while at < end:
        shared, at = read_varint(block, at)
        unshared, at = read_varint(block, at)
        length, at = read_varint(block, at)
        key = key[:shared] + block[at : at + unshared]
        at += unshared + length
        found.append((key, block[at - length : at]))
    return found
