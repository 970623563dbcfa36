"""A block as it lies in a file: perhaps compressed, then a byte for how, then a masked checksum of both.

Which encoder compresses matters: several produce valid Snappy, and the bytes, so the sizes that decide where ranges
break, differ between them. The one of `cramjam` writes what Go's writes (docs/design/staging.md#compression).
"""

from __future__ import annotations

import struct
from typing import Any, Final

import cramjam
import google_crc32c
import numpy as np

from compaction.exceptions import CorruptRangeError, UnsupportedRangeError
from compaction.stores.staging.format.columns import U8

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
_SEAL: Final = struct.Struct("<BI")
_CRC: Final = struct.Struct("<I")
_PLAIN_BYTE: Final = bytes([_PLAIN])
_SNAPPY_BYTE: Final = bytes([_SNAPPY])


def masked_checksum(stored: Any, kind: bytes) -> int:
    """CRC-32C of a block as stored and its type, rotated right by 15 bits and increased by a constant."""
    crc: int = google_crc32c.extend(google_crc32c.value(stored), kind)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def sealed(block: Any, *, compress: bool = True) -> tuple[Any, bytes]:
    """What is written for a block (bytes, or a numpy array of them): the stored bytes, and the five behind them.

    The compressed form is taken when it is smaller by more than an eighth.
    """
    size = len(block)
    if compress:
        packed = bytes(cramjam.snappy.compress_raw(block))
        if len(packed) < size - size // 8:
            return packed, _SEAL.pack(_SNAPPY, masked_checksum(packed, _SNAPPY_BYTE))
    return block, _SEAL.pack(_PLAIN, masked_checksum(block, _PLAIN_BYTE))


def unsealed_size(stored: U8, *, path: str, offset: int) -> int:
    """The size before compression of a block that lies at `offset`, its five last bytes included in `stored`.

    The checksum is verified. Raises CorruptRangeError, UnsupportedRangeError.
    """
    kind = stored[-SEAL_BYTES : -SEAL_BYTES + 1].tobytes()
    if masked_checksum(stored[:-SEAL_BYTES], kind) != _CRC.unpack(stored[-4:].tobytes())[0]:
        raise CorruptRangeError(path, offset, f"the checksum of the block of {stored.size - SEAL_BYTES} bytes is wrong")
    size = stored.size - SEAL_BYTES
    if kind == _SNAPPY_BYTE:
        claimed = _snappy_size(stored[:10].tobytes())
        if claimed < 0 or claimed > size * _EXPANSION:
            raise CorruptRangeError(path, offset, f"a block of {size} bytes claims to hold {max(claimed, 0)}")
        size = claimed
    elif kind != _PLAIN_BYTE:
        name = _TYPES.get(kind[0], "unknown")
        raise UnsupportedRangeError(
            path, offset, f"a block has compression {kind[0]} ({name}); read are 0 and 1 (Snappy)"
        )
    if size > MAX_BLOCK_BYTES:
        raise UnsupportedRangeError(path, offset, f"a block of {size} bytes; at most {MAX_BLOCK_BYTES} are read")
    return size


def unseal_into(stored: U8, target: U8, *, path: str, offset: int) -> None:
    """Write the block's bytes into `target`, which is as large as `unsealed_size` says. Raises CorruptRangeError."""
    if stored[-SEAL_BYTES] == _PLAIN:
        target[:] = stored[:-SEAL_BYTES]
        return
    try:
        written = cramjam.snappy.decompress_raw_into(stored[:-SEAL_BYTES].data, target.data)
    except cramjam.DecompressionError:
        written = -1
    if written != target.size:
        raise CorruptRangeError(path, offset, "its checksum is right, its Snappy data are not")


def unsealed(stored: bytes, *, path: str, offset: int) -> bytes:
    """One block, checked and decompressed: for the small ones. Raises CorruptRangeError, UnsupportedRangeError."""
    data = np.frombuffer(stored, dtype=np.uint8)
    target = np.zeros(unsealed_size(data, path=path, offset=offset), dtype=np.uint8)
    unseal_into(data, target, path=path, offset=offset)
    return target.tobytes()


def _snappy_size(head: bytes) -> int:
    """The size that a Snappy block claims, -1 when it claims none."""
    value = 0
    for number, byte in enumerate(head[:5]):
        value |= (byte & 127) << (7 * number)
        if byte < 128:
            return value
    return -1
