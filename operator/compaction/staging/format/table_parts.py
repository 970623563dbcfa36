"""Parts of a table beside its data blocks: seals and checksums, properties, footer, index."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import cramjam
import google_crc32c
import numpy as np
import numpy.typing as npt

from compaction.staging.errors import CorruptRangeError, UnsupportedRangeError
from compaction.staging.format.blocks import (
    BLOCK_BYTES,
    BLOCK_OVERHEAD,
    RESTART_BYTES,
    TRAILER,
    common_prefix,
    encode_small_block,
    flush_threshold,
)
from compaction.staging.format.columns import I64, U8, decode_varint, decode_varints, encode_varint

# A block as it lies in a file: perhaps compressed, then a byte for how, then a masked checksum of both.
#
# The choice of the encoder matters: several produce valid Snappy, and the bytes, so the sizes that decide where ranges
# break, differ between them. The one of `cramjam` writes what Go's writes (docs/design/staging.md#compression).

SEAL_BYTES: Final = 5
"""Behind each block: the type and the checksum."""
MAX_BLOCK_BYTES: Final = 96 << 20
"""Of a block before compression: two parts of a value of at most 40 MiB each, and a key."""
_PLAIN: Final = 0
_SNAPPY: Final = 1
_TYPES: Final = {2: "zlib", 3: "bzip2", 4: "LZ4", 5: "LZ4HC", 6: "Xpress", 7: "zstd"}
_EXPANSION: Final = 22
"""Snappy's largest: a copy of three bytes stands for at most 64."""
_MASK: Final = 0xA282EAD8
_CRC: Final = struct.Struct("<I")
_PLAIN_BYTE: Final = bytes([_PLAIN])
_SNAPPY_BYTE: Final = bytes([_SNAPPY])
_compress: Final = cramjam.snappy.compress_raw
_decompress: Final = cramjam.snappy.decompress_raw_into
_crc32c: Final = google_crc32c.value


def masked_checksum(stored: bytes) -> int:
    """CRC-32C of a block as stored and its type, rotated right by 15 bits and increased by a constant."""
    crc: int = _crc32c(stored)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def sealed(block: bytes, *, compress: bool = True) -> tuple[bytes, bytes]:
    """Return a block as it is written: the stored bytes with their type behind them, and four bytes of checksum.

    The compressed form is taken when it is smaller by more than an eighth.
    """
    size = len(block)
    stored = b""
    if compress:
        packed = _compress(block)
        if len(packed) < size - size // 8:
            stored = bytes(packed) + _SNAPPY_BYTE
    stored = stored or block + _PLAIN_BYTE
    return stored, _CRC.pack(masked_checksum(stored))


def unsealed_sizes(stored: bytes, raw: U8, begins: I64, sizes: I64, *, path: str, offset: int) -> I64:
    """The sizes before compression of blocks in `stored` (`raw` is a view of it), which lies at `offset`.

    Block i has sizes[i] bytes from begins[i] on, and its seal. Checksums and claims are verified. Raises
    CorruptRangeError, UnsupportedRangeError.
    """
    ends = begins + sizes
    spans = zip(begins.tolist(), (ends + 1).tolist(), strict=True)
    crcs = np.fromiter((_crc32c(stored[begin:end]) for begin, end in spans), dtype=np.uint32, count=begins.size)
    expected = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK)
    found: npt.NDArray[np.uint32] = np.ndarray((raw.size - 3,), dtype="<u4", buffer=raw, strides=(1,))[ends + 1]
    wrong = expected != found
    if wrong.any():
        at = int(np.argmax(wrong))
        reason = f"the checksum of the block of {int(sizes[at])} bytes is wrong"
        raise CorruptRangeError(path, offset + int(begins[at]), reason)
    kinds = raw[ends]
    wrong = kinds > _SNAPPY
    if wrong.any():
        at, kind = int(np.argmax(wrong)), int(kinds[np.argmax(wrong)])
        reason = f"a block has compression {kind} ({_TYPES.get(kind, 'unknown')}); read are 0 and 1 (Snappy)"
        raise UnsupportedRangeError(path, offset + int(begins[at]), reason)
    # The five bytes that a claim may take are there: a seal has as many.
    claims = np.where(kinds == _SNAPPY, decode_varints(raw, begins)[0], sizes)
    wrong = (kinds == _SNAPPY) & ((claims < 0) | (claims > sizes * _EXPANSION))
    if wrong.any():
        at = int(np.argmax(wrong))
        reason = f"a block of {int(sizes[at])} bytes claims to hold {max(int(claims[at]), 0)}"
        raise CorruptRangeError(path, offset + int(begins[at]), reason)
    if claims.max(initial=0) > MAX_BLOCK_BYTES:
        at = int(np.argmax(claims))
        reason = f"a block of {int(claims[at])} bytes; at most {MAX_BLOCK_BYTES} are read"
        raise UnsupportedRangeError(path, offset + int(begins[at]), reason)
    return claims


def unseal_into(
    stored: bytes, raw: U8, begins: I64, sizes: I64, target: U8, ends: I64, *, path: str, offset: int
) -> None:
    """Write all blocks' bytes into `target`, up to `ends` each. Raises CorruptRangeError.

    As of `unsealed_sizes`, whose sums `ends` are.
    """
    source, room = memoryview(stored), target.data
    snappy = (raw[begins + sizes] == _SNAPPY).tolist()
    at = 0
    for begin, size, end, packed in zip(begins.tolist(), sizes.tolist(), ends.tolist(), snappy, strict=True):
        if not packed:
            room[at:end] = source[begin : begin + size]
        else:
            try:
                written = _decompress(source[begin : begin + size], room[at:end])
            except cramjam.DecompressionError:
                # Refused below, as data of another length are.
                written = -1
            if written != end - at:
                raise CorruptRangeError(path, offset + begin, "its checksum is right, its Snappy data are not")
        at = end


def unsealed(stored: bytes, *, path: str, offset: int) -> bytes:
    """One block, checked and decompressed: for the small ones. Raises CorruptRangeError, UnsupportedRangeError."""
    raw = np.frombuffer(stored, dtype=np.uint8)
    begins, sizes = np.zeros(1, dtype=np.int64), np.array([raw.size - SEAL_BYTES], dtype=np.int64)
    ends = unsealed_sizes(stored, raw, begins, sizes, path=path, offset=offset)
    target = np.zeros(int(ends[0]), dtype=np.uint8)
    unseal_into(stored, raw, begins, sizes, target, ends, path=path, offset=offset)
    return target.tobytes()


# The index of a table: one entry for each data block, in one block or, once that is full, in partitions under a top.
#
# docs/design/staging.md#index has the rules; the keys are separators, not keys of records.

SEPARATOR_TRAILER: Final = b"\x11" + b"\xff" * 7
"""The largest sequence number, and the kind of a key that separates."""
NO_KEY: Final = b"\xff" + bytes(7)
"""What stands in the index of an empty table: no key, of the invalid kind."""
_ASSUMED_HANDLE: Final = 20
"""What the writer takes for the size of the next handle when it decides whether an index block is full."""


@dataclass(frozen=True, slots=True)
class BlockHandle:
    """The place of a block: `offset` of its first byte, `size` as stored, without the five bytes behind it."""

    offset: int
    size: int

    def encode(self) -> bytes:
        """Two varints."""
        return encode_varint(self.offset) + encode_varint(self.size)

    @classmethod
    def decode(cls, data: bytes, at: int = 0) -> tuple[BlockHandle, int]:
        """The handle at `at`, and where it ends. IndexError and ValueError as of `decode_varint`."""
        offset, at = decode_varint(data, at)
        size, at = decode_varint(data, at)
        return cls(offset, size), at


def separator(last: bytes, following: bytes | None, common: int | None = None) -> bytes:
    """The index key of a block that ends in the user key `last`; the next block begins with `following` (None: none).

    The shortest key at or after `last` and before `following`, or `last` with its own trailer where none is shorter
    (or equally short) and greater. `common`: how many bytes both begin with, where that is known.
    """
    short = _increased(last, 0) if following is None else _between(last, following, common)
    return short + SEPARATOR_TRAILER if len(short) <= len(last) and short > last else last + TRAILER


def _between(last: bytes, following: bytes, at: int | None) -> bytes:
    if at is None:
        at = common_prefix(last, following)
    if at >= min(len(last), len(following)) or last[at] >= following[at]:
        return last
    if at < len(following) - 1 or last[at] + 1 < following[at]:
        return last[:at] + bytes([last[at] + 1])
    return _increased(last, at + 1)


def _increased(key: bytes, begin: int) -> bytes:
    """`key` up to its first byte from `begin` on that is not 0xff, and that one greater by 1; else `key`."""
    for at in range(begin, len(key)):
        if key[at] != 0xFF:
            return key[:at] + bytes([key[at] + 1])
    return key


@dataclass(slots=True)
class _Partition:
    """One block: every entry is a restart point, so entries are encoded as they come."""

    entries: list[bytes] = field(default_factory=list)
    last: bytes = b""
    size: int = BLOCK_OVERHEAD

    def add(self, key: bytes, handle: bytes) -> None:
        entry = b"\0" + encode_varint(len(key)) + encode_varint(len(handle)) + key + handle
        self.size += len(entry) + RESTART_BYTES
        self.last = key
        self.entries.append(entry)

    def encode(self) -> bytes:
        places = np.zeros(len(self.entries) + 1, dtype="<u4")
        np.cumsum([len(entry) for entry in self.entries[:-1]], out=places[1:-1])
        places[-1] = len(self.entries)
        return b"".join(self.entries) + places.tobytes()


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """The statements of the properties about an index. `partitions` is 0 for an index of one block; sizes in bytes."""

    handle: BlockHandle
    partitions: int
    size: int
    top_size: int


class IndexBuilder:
    """Collects the entries of an index; `size` is that of the block being filled, before compression."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._full: list[_Partition] = []
        self._open = _Partition()
        self.blocks = 0

    @property
    def size(self) -> int:
        """Bytes of the index block that is being filled."""
        return self._open.size

    def add(self, key: bytes, offset: int, size: int) -> None:
        """One data block, by its handle; `key` is a separator with its trailer."""
        if self._is_full(key):
            self._full.append(self._open)
            self._open = _Partition()
        self._open.add(key, encode_varint(offset) + encode_varint(size))
        self.blocks += 1

    def _is_full(self, key: bytes) -> bool:
        size = self._open.size
        if not self._open.entries:
            return False
        if size >= self._block_bytes:
            return True
        if size <= flush_threshold(self._block_bytes):
            return False
        guess = len(key) + _ASSUMED_HANDLE + RESTART_BYTES + 4 + len(encode_varint(len(key))) + 1
        return size + guess > self._block_bytes

    def write(self, write_block: Callable[[bytes], BlockHandle]) -> IndexSummary:
        """Write all blocks of the index; what it comes to."""
        if not self._full:
            block = self._open.encode()
            return IndexSummary(write_block(block), 0, self._open.size + 5, 0)
        top = _Partition()
        partitions = [*self._full, self._open]
        for partition in partitions:
            handle = write_block(partition.encode())
            top.add(partition.last, handle.encode())
        size = sum(partition.size for partition in partitions) + top.size + 5
        return IndexSummary(write_block(top.encode()), len(partitions), size, top.size)


# The description of a table in itself: the properties block, and the footer that leads to it and to the index.
#
# docs/design/staging.md#properties and #footer.

FOOTER_BYTES: Final = 53
_MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_LEVELDB_MAGIC: Final = bytes.fromhex("57fb808b247547db")
_PEBBLE_MAGIC: Final = bytes.fromhex("f09faab3f09faab3")
_VERSION: Final = 2
_CRC32C: Final = 1
_CHECKSUMS: Final = {0: "none", 2: "xxHash", 3: "xxHash64", 4: "XXH3"}
_HANDLES_END: Final = 41

PROPERTIES_NAME: Final = b"rocksdb.properties"
RANGE_DELETIONS_NAME: Final = b"rocksdb.range_del"
_OWN: Final = b"rocksdb."
_ENTRIES: Final = b"rocksdb.num.entries"
_RANGE_DELETIONS: Final = b"rocksdb.num.range-deletions"
_DATA_BLOCKS: Final = b"rocksdb.num.data.blocks"
_INDEX_TYPE: Final = b"rocksdb.block.based.table.index.type"
_DELTAS: Final = _OWN + b"index.value.is.delta.encoded"
_TWO_LEVELS: Final = 2


@dataclass(frozen=True, slots=True)
class TableSummary:
    """The counts of a writer: records, bytes of keys (with their trailers) and of values, of the data blocks."""

    records: int
    key_bytes: int
    value_bytes: int
    data_bytes: int
    data_blocks: int
    index: IndexSummary


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The properties of a table that a reader uses. `user`: those of the writer, not of the format."""

    records: int
    data_blocks: int
    two_levels: bool
    user: Mapping[bytes, bytes]


def encode_properties(summary: TableSummary, user: Mapping[bytes, bytes]) -> bytes:
    """The properties block. Properties of the format win over a user's of the same name."""
    index = summary.index
    options = "window_bits=-14; level=32767; strategy=0; max_dict_bytes=0; zstd_max_train_bytes=0; enabled=0; "
    # The names and values that lakeFS itself writes: only counts and sizes differ from table to table.
    counts = {
        "column.family.id": 0x7FFFFFFF,
        "creation.time": 0,
        "data.size": summary.data_bytes,
        "deleted.keys": 0,
        "filter.size": 0,
        "fixed.key.length": 0,
        "format.version": 0,
        "index.key.is.user.key": 0,
        "index.size": index.size,
        "index.value.is.delta.encoded": 0,
        "merge.operands": 0,
        "num.data.blocks": summary.data_blocks,
        "num.entries": summary.records,
        "num.range-deletions": 0,
        "oldest.key.time": 0,
        "raw.key.size": summary.key_bytes,
        "raw.value.size": summary.value_bytes,
    }
    if index.partitions:
        counts |= {"index.partitions": index.partitions, "top-level.index.size": index.top_size}
    texts = {
        "block.based.table.prefix.filtering": "0",
        "block.based.table.whole.key.filtering": "0",
        "comparator": "leveldb.BytewiseComparator",
        "compression": "Snappy",
        "compression_options": options,
        "merge.operator": "pebble.concatenate",
        "prefix.extractor.name": "nullptr",
        "property.collectors": "[static]",
    }
    every = dict(user)
    every |= {_OWN + name.encode(): encode_varint(count) for name, count in counts.items()}
    every |= {_OWN + name.encode(): text.encode() for name, text in texts.items()}
    every[_INDEX_TYPE] = struct.pack("<I", _TWO_LEVELS if index.partitions else 0)
    every[_OWN + b"external_sst_file.version"] = struct.pack("<I", 2)
    every[_OWN + b"external_sst_file.global_seqno"] = bytes(8)
    return encode_small_block(sorted(every.items()), restart_interval=len(every))


def decode_properties(entries: Mapping[bytes, bytes], *, path: str, offset: int) -> TableProperties:
    """Decode the entries of a properties block. Raises CorruptRangeError, UnsupportedRangeError."""

    def count(name: bytes) -> int:
        value = entries.get(name, b"\0")
        try:
            number, end = decode_varint(value, 0)
        except (IndexError, ValueError):
            # Refused below, as a count with bytes behind it is.
            number, end = 0, -1
        if end != len(value):
            raise CorruptRangeError(path, offset, f"the property {name.decode()} is no count")
        return number

    kind = entries.get(_INDEX_TYPE, b"")
    if kind not in {struct.pack("<I", 0), struct.pack("<I", _TWO_LEVELS)}:
        raise UnsupportedRangeError(path, offset, f"an index of type {kind[:8].hex() or 'unknown'}")
    if any(entries.get(name, b"\0") != b"\0" for name in (_OWN + b"index.key.is.user.key", _DELTAS)):
        raise UnsupportedRangeError(path, offset, "an index that leaves parts of its entries out")
    comparator = entries.get(_OWN + b"comparator")
    if comparator != b"leveldb.BytewiseComparator":
        raise UnsupportedRangeError(path, offset, f"keys in the order of {(comparator or b'nothing')[:60]!a}")
    return TableProperties(
        # RocksDB counts deletions of ranges among the entries.
        records=count(_ENTRIES) - count(_RANGE_DELETIONS),
        data_blocks=count(_DATA_BLOCKS),
        two_levels=kind[0] == _TWO_LEVELS,
        user={name: value for name, value in entries.items() if not name.startswith(_OWN)},
    )


def encode_footer(metaindex: BlockHandle, index: BlockHandle) -> bytes:
    """The last 53 bytes of a table."""
    handles = bytes([_CRC32C]) + metaindex.encode() + index.encode()
    return handles.ljust(_HANDLES_END, b"\0") + struct.pack("<I", _VERSION) + _MAGIC


def decode_footer(tail: bytes, *, path: str, size: int) -> tuple[BlockHandle, BlockHandle]:
    """The handles of metaindex and index from the last bytes of a table of `size` bytes.

    Raises CorruptRangeError, UnsupportedRangeError.
    """
    begin = size - FOOTER_BYTES
    if begin < 0 or len(tail) < FOOTER_BYTES:
        raise CorruptRangeError(path, 0, f"{size} bytes are too few for a table; its end is missing")
    footer = tail[-FOOTER_BYTES:]
    magic = footer[-len(_MAGIC) :]
    if magic in {_LEVELDB_MAGIC, _PEBBLE_MAGIC}:
        name = "LevelDB" if magic == _LEVELDB_MAGIC else "Pebble"
        raise UnsupportedRangeError(path, size - len(magic), f"it ends in the footer of {name}'s own format")
    if magic != _MAGIC:
        raise CorruptRangeError(path, size - len(magic), f"it ends in {magic.hex()}: no table, or its end is missing")
    version = struct.unpack_from("<I", footer, _HANDLES_END)[0]
    if version != _VERSION:
        raise UnsupportedRangeError(path, begin + _HANDLES_END, f"format version {version}; version {_VERSION} is read")
    if footer[0] != _CRC32C:
        name = _CHECKSUMS.get(footer[0], "unknown")
        raise UnsupportedRangeError(path, begin, f"checksums of type {footer[0]} ({name}); type 1 (CRC-32C) is read")
    try:
        metaindex, at = BlockHandle.decode(footer, 1)
        index, at = BlockHandle.decode(footer, at)
    except (IndexError, ValueError):
        raise CorruptRangeError(path, begin, "its footer has no handles of blocks") from None
    if encode_footer(metaindex, index) != footer:
        raise CorruptRangeError(path, begin, "its footer holds more than two handles")
    return metaindex, index
