"""Tables of staging areas for tests: records of every shape, and their bytes."""

from __future__ import annotations

import hashlib
import io
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import IO, Final

import cramjam
import google_crc32c
import pyspark
from hypothesis import strategies as st

from compaction.staging.format.columns import RecordColumns
from compaction.staging.format.identity import frame_value
from compaction.staging.format.table_reader import TableReader
from compaction.staging.format.table_writer import TableWriter
from compaction.worker.spark.settings import find_java
from support.clocks import PATIENCE_SECONDS

Record = tuple[bytes, bytes]

_STEPS: Final = bytes(13 * place % 251 for place in range(2 * 251))


@cache
def numbered(count: int) -> list[Record]:
    """Records as an importer writes them: keys with a common prefix, a hash for an identity, up to 200 bytes."""
    return [
        (
            b"k/%08d" % number,
            frame_value(
                hashlib.sha256(str(number).encode()).digest(),
                # From the place of 7 * number on: 58 is the inverse of 13.
                _STEPS[7 * 58 * number % 251 :][: 37 * number % 200],
            ),
        )
        for number in range(count)
    ]


def digits(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _high(seed: bytes) -> bytes:
    return bytes((0xFF, 0xFE, 0)[byte % 3] for byte in seed[: seed[0] % 9])


def _keys(count: int, key: Callable[[bytes], bytes]) -> list[bytes]:
    return sorted({key(digits(f"key {number}")) for number in range(count)})


SHAPES: Final[Mapping[str, list[Record]]] = {
    # A key that is a prefix of the next, which goes on as a trailer does: stored prefixes reach into trailers.
    "trailers": [
        (key, digits(str(place))[: place % 9])
        for place, key in enumerate(_keys(4000, lambda seed: bytes(b & 3 == 3 for b in seed[: seed[31] % 14])))
    ],
    # Separators of keys that end in 0xff.
    "high": [(key, digits(str(place)) * (place % 5)) for place, key in enumerate(_keys(6000, _high))],
    # Long keys: few blocks fill an index block.
    "long": sorted(
        (b"x" * (place * 7 % 900) + key, key * (place % 3))
        for place, key in enumerate(_keys(2000, lambda seed: seed[:20]))
    ),
    # Values around the sizes at which blocks end.
    "sizes": [
        (key, b"v" * ((place * 997) % 4300) if place % 3 else digits(key.hex()) * ((place * 31) % 140))
        for place, key in enumerate(_keys(1500, lambda seed: seed[:6]))
    ],
    "large": [(b"%03d" % place, digits(str(place)) * 4000) for place in range(12)],
}

ANY_RECORDS: Final = st.dictionaries(
    st.one_of(st.binary(max_size=20), st.lists(st.sampled_from((0, 1, 0xFE, 0xFF)), max_size=12).map(bytes)),
    st.one_of(st.binary(max_size=40), st.integers(0, 9000).map(lambda size: b"ab" * size)),
    max_size=60,
).map(lambda found: sorted(found.items()))
"""Any sorted records: of a strategy of Hypothesis."""


def table(records: list[Record], user: Mapping[bytes, bytes] | None = None, *, step: int = 100_000) -> bytes:
    """The bytes of a table, written in batches of `step` records."""
    out = io.BytesIO()
    writer = TableWriter(out)
    for begin in range(0, len(records), step):
        writer.add(RecordColumns.of(records[begin : begin + step]))
    estimate = writer.estimated_size
    writer.finish(properties(records, estimate) if user is None else user)
    return out.getvalue()


def properties(records: list[Record], estimate: int) -> dict[bytes, bytes]:
    """The user properties of a range of these records."""
    return {
        b"type": b"ranges",
        b"min_key": records[0][0] if records else b"",
        b"max_key": records[-1][0] if records else b"",
        b"count": b"%d" % len(records),
        b"estimated_size_bytes": b"%d" % estimate,
    }


def records_of(reader: TableReader, start: bytes = b"", stop: bytes | None = None) -> list[Record]:
    """All records, as pairs."""
    return [pair for batch in reader.batches(start, stop) for pair in batch.pairs()]


# Tables of staging areas record by record, in plain Python: what the columnar codec is compared with.
#
# It follows docs/design/staging.md literally and shares no code with the package, except for Snappy and CRC-32C.

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


# The RocksDB that Spark ships, in a Java process of its own: another implementation reads and writes our tables.

SOURCE = Path(__file__).with_name("RocksDbTables.java")


class RocksDbTables:
    """Commands to the process; RuntimeError with RocksDB's own words when one fails."""

    def __init__(self, asked: IO[str], answered: IO[str]) -> None:
        self._asked, self._answered = asked, answered

    def verify(self, path: Path) -> int:
        """All checksums; the number of records by the properties."""
        return self._run("verify", path)

    def read(self, path: Path) -> int:
        """Iterate over all records; how many."""
        return self._run("read", path)

    def copy(self, path: Path, target: Path) -> int:
        """Iterate over all records and write them into another table; how many."""
        return self._run("copy", path, target)

    def count_from(self, path: Path, key: bytes) -> int:
        """How many records there are from a key on."""
        return self._run("seek", path, key.hex())

    def records(self, path: Path, scratch: Path) -> list[tuple[bytes, bytes]]:
        """All records."""
        count = self._run("dump", path, scratch)
        data, at, parts = scratch.read_bytes(), 0, []
        while at < len(data):
            (size,) = struct.unpack_from(">I", data, at)
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        found = list(zip(parts[::2], parts[1::2], strict=True))
        assert len(found) == count
        return found

    def _run(self, *words: object) -> int:
        self._asked.write("\t".join(map(str, words)) + "\n")
        self._asked.flush()
        outcome, _, text = self._answered.readline().strip().partition(" ")
        if outcome != "ok":
            raise RuntimeError(text)
        return int(text)


@contextmanager
def rocksdb_tables() -> Iterator[RocksDbTables]:
    """The process, for as long as the context lasts. Its start takes about two seconds."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("rocksdbjni-*.jar")
    command = [str(find_java().home / "bin" / "java"), "-cp", str(jar), str(SOURCE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield RocksDbTables(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(PATIENCE_SECONDS)
