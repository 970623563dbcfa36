"""What a table says about itself: the properties block, and the footer that leads to it and to the index.

docs/design/staging.md#properties and #footer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compaction.staging.errors import CorruptRangeError, UnsupportedRangeError
from compaction.staging.format.blocks import encode_small_block
from compaction.staging.format.index import BlockHandle, IndexSummary
from compaction.staging.format.varints import decode_varint, encode_varint

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
    """What a writer has counted: records, bytes of keys (with their trailers) and of values, of the data blocks."""

    records: int
    key_bytes: int
    value_bytes: int
    data_bytes: int
    data_blocks: int
    index: IndexSummary


@dataclass(frozen=True, slots=True)
class TableProperties:
    """What a reader uses of a table's properties. `user`: those of the writer, not of the format."""

    records: int
    data_blocks: int
    two_levels: bool
    user: Mapping[bytes, bytes]


def encode_properties(summary: TableSummary, user: Mapping[bytes, bytes]) -> bytes:
    """The properties block. Properties of the format win over a user's of the same name."""
    index = summary.index
    options = "window_bits=-14; level=32767; strategy=0; max_dict_bytes=0; zstd_max_train_bytes=0; enabled=0; "
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
    """What the entries of a properties block say. Raises CorruptRangeError, UnsupportedRangeError."""

    def count(name: bytes) -> int:
        value = entries.get(name, b"\0")
        try:
            number, end = decode_varint(value, 0)
        except (IndexError, ValueError):
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
