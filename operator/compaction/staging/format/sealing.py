"""A block as it lies in a file: perhaps compressed, then a byte for how, then a masked checksum of both.

Which encoder compresses matters: several produce valid Snappy, and the bytes, so the sizes that decide where ranges
break, differ between them. The one of `cramjam` writes what Go's writes (docs/design/staging.md#compression).
"""

from __future__ import annotations

import struct
from typing import Final

import cramjam
import google_crc32c
import numpy as np
import numpy.typing as npt

from compaction.staging.errors import CorruptRangeError, UnsupportedRangeError
from compaction.staging.format.columns import I64, U8
from compaction.staging.format.varints import decode_varints

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
    """What is written for a block: the stored bytes with their type behind them, and four bytes of checksum.

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
