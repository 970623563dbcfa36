"""Checksums of many small payloads: CRC-32 of segments (zlib's polynomial, docs/design/segment-files.md#index-area),
Adler-32 of write-ahead logs (docs/design/segment-wal.md#file).

Each entry costs one, so they are inner loops: of 1 KiB the CRC takes 0.1 µs with ISA-L (the package isal, where it is
built for the processor) and 0.45 µs with zlib, of 4 KiB the Adler-32 0.3 and 1.6 µs. Both compute the same functions;
`CRC32S` and `ADLER32S` list them for the tests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Checksum = Callable[..., int]
"""Of anything that is a buffer of bytes, and the checksum of what comes before."""

crc32: Checksum
adler32: Checksum
try:
    from isal.isal_zlib import adler32, crc32
except ImportError:
    adler32, crc32 = zlib.adler32, zlib.crc32

CRC32S: Final[dict[str, Checksum]] = {"fastest": crc32, "zlib": zlib.crc32}
ADLER32S: Final[dict[str, Checksum]] = {"fastest": adler32, "zlib": zlib.adler32}


def crc32_each(packed: memoryview, lengths: npt.NDArray[np.int64], crc: Checksum = crc32) -> npt.NDArray[np.uint32]:
    """The CRC of each payload of a buffer that holds them one after the other.

    Payloads of one length are handed over as the rows of a matrix: half the cost of cutting the buffer up.
    """
    count = lengths.size
    if not count:
        return np.zeros(0, dtype=np.uint32)
    length = int(lengths[0])
    if length and np.all(lengths == length):
        rows = np.frombuffer(packed, dtype=np.uint8, count=count * length).reshape(count, length)
        return np.fromiter(map(crc, rows), dtype=np.uint32, count=count)
    ends = np.cumsum(lengths)
    bounds = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return np.fromiter((crc(packed[begin:end]) for begin, end in bounds), dtype=np.uint32, count=count)
