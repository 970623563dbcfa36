"""Segment files and their log as plain data, and the checksums of their payloads."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

# Checksums of many small payloads: CRC-32 of segments (zlib's polynomial, docs/design/segment-files.md#index-area),
# Adler-32 of write-ahead logs (docs/design/segment-wal.md#file).
#
# Each entry costs one, so they are inner loops: of 1 KiB the CRC takes 0.1 µs with ISA-L (the package isal, where it
# is built for the processor) and 0.45 µs with zlib, of 4 KiB the Adler-32 0.3 and 1.6 µs. Both compute the same
# functions; `CRC32S` and `ADLER32S` list them for the tests.

Checksum = Callable[..., int]
"""Of anything that is a buffer of bytes, and the checksum of what comes before."""

crc32: Checksum
adler32: Checksum
try:
    from isal.isal_zlib import adler32, crc32
except ImportError:
    # The package isal exists for some processors only.
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


# Segment files and their log, as plain data: no I/O here.
#
# Invariants: the arrays of a `SegmentIndex` have equal length and are read-only; records are in file order; the
# records that survive overwriting have strictly increasing indexes (see `effective_records`).

U64Array = npt.NDArray[np.uint64]
U32Array = npt.NDArray[np.uint32]
BoolArray = npt.NDArray[np.bool_]
RowArray = npt.NDArray[np.int64]

SEGMENT_SUFFIX = ".segment"
SEGMENT_NAME = re.compile(r"[0-9]{16}\.segment", re.ASCII)
HEADER_BYTES = 8
SLOT_BYTES = {1: 28, 2: 32}
MAX_COUNT_LIMIT = 0xFFFF

MAX_INDEX = 2**64 - 1

DEFAULT_MAX_COUNT = 4096
DEFAULT_MAX_SIZE = 64_000_000


def segment_name(number: int) -> str:
    """`0000000000000007.segment` for 7 (docs/design/segment-files.md#names)."""
    if not 0 <= number < 10**16:
        raise ValueError(f"segment number {number} does not fit in 16 digits")
    return f"{number:016d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int:
    """The number in a segment's file name; ValueError for any other name."""
    if not SEGMENT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a segment name")
    return int(name[:16])


def data_start(version: int, max_count: int) -> int:
    """Offset of the first payload byte: the index area is sized for max_count slots from the beginning."""
    return HEADER_BYTES + max_count * SLOT_BYTES[version]


def effective_records(idx: U64Array) -> BoolArray:
    """Mask of the records that survive overwriting inside one file (docs/design/segment-files.md#overwritten-indexes).

    The rule, record by record: going backwards drops every key above the new index; then the record takes its key.
    Equivalent, without a loop: a record survives iff every later record has a larger index. (If a later record has a
    smaller index, some record between the two went backwards to or below it and dropped this one; an equal index
    replaces it.) So the survivors are the strict suffix minima, and their indexes increase.
    """
    mask = np.ones(idx.shape, dtype=np.bool_)
    if not (idx[:-1] < idx[1:]).all():
        suffix_min = np.minimum.accumulate(idx[::-1])[::-1]
        mask[:-1] = idx[:-1] < suffix_min[1:]
    return mask


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The mark of one state of a file: of os.stat.

    Not compared: the device. Some file systems have another number at each mount, and on each machine; all else of two
    files under one name is only equal when one of them is the other, or its clone.
    """

    device: int = field(compare=False)
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, stat: os.stat_result) -> FileIdentity:
        return cls(device=stat.st_dev, inode=stat.st_ino, size=stat.st_size, mtime_ns=stat.st_mtime_ns)

    def __str__(self) -> str:
        """The form in which resources hold it: `device:inode:size:mtime_ns`."""
        return f"{self.device}:{self.inode}:{self.size}:{self.mtime_ns}"


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIndex:
    """The parsed index of one segment file, all records in file order, dead ones included.

    `idx`, `term`, `offset` (absolute in the file) are u64, `length` (payload bytes) and `crc` (0 = unchecked) u32.
    Offsets and lengths are as stored: a torn or hostile record may point outside the file; see `inside`. `behind_hole`:
    the indexes of slots behind the first empty one, where the index ends.
    """

    path: Path
    version: int
    max_count: int
    identity: FileIdentity
    idx: U64Array
    term: U64Array
    offset: U64Array
    length: U32Array
    crc: U32Array
    behind_hole: U64Array = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    effective: BoolArray = field(init=False)
    _damage: list[str] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "effective", effective_records(self.idx))
        for array in (self.idx, self.term, self.offset, self.length, self.crc, self.effective):
            array.setflags(write=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def slot_bytes(self) -> int:
        return SLOT_BYTES[self.version]

    @property
    def is_holed(self) -> bool:
        """An index slot is empty, and others behind it are not."""
        return self.behind_hole.size > 0

    @property
    def count(self) -> int:
        """Number of ALL records, overwritten ones included."""
        return int(self.idx.size)

    @property
    def is_full(self) -> bool:
        """No index slot is left (the size limit is the writer's, not the file's)."""
        return self.count >= self.max_count

    @property
    def data_start(self) -> int:
        return data_start(self.version, self.max_count)

    @property
    def end_of_data(self) -> int:
        """Last record's offset + length, which is not always the file size (docs/design/segment-files.md#appending)."""
        if not self.count:
            return self.data_start
        return int(self.offset[-1]) + int(self.length[-1])

    @property
    def data_bytes(self) -> int:
        """Bytes of the data area in use; 0 when a torn last record points before it."""
        return max(0, self.end_of_data - self.data_start)

    @property
    def first(self) -> int:
        """Smallest index; 0 when there is no record (then `last` is -1: an empty inclusive range)."""
        # That of the first survivor: their indexes increase, and the smallest survives where it was written last.
        return int(self.idx[self.effective.argmax()]) if self.count else 0

    @property
    def last(self) -> int:
        """The LAST record's index, even if an earlier one was higher (docs/design/segment-files.md)."""
        return int(self.idx[-1]) if self.count else -1

    @property
    def damage(self) -> str:
        """The fault of the file if its owner has closed it, in words; empty when its records account for all of it.

        Bytes that no record accounts for may be needed.
        """
        # Found once: an index is kept for as long as its file stays as it is, and asked at every plan.
        if not self._damage:
            self._damage.append(self._find_damage())
        return self._damage[0]

    def _find_damage(self) -> str:
        size = self.identity.size
        if HEADER_BYTES < size < self.data_start:
            return f"its index area of {self.data_start} bytes is cut off after {size}"
        if self.is_holed:
            return f"index slot {self.count + 1} is empty, and others behind it are not"
        if (row := torn_from(self)) is not None:
            offset = HEADER_BYTES + row * self.slot_bytes
            return f"the index slot at offset {offset} (index {self.idx[row]}) does not continue the payloads before it"
        if size > HEADER_BYTES and size != self.end_of_data:
            return f"its last record ends at {self.end_of_data}, and no record accounts for what follows up to {size}"
        return ""

    @property
    def mark(self) -> str:
        """A mark of the content: CRC-32 of header and index (which holds a checksum of each payload), 8 hex digits.

        Equal for copies of a file. It distinguishes files that were not forged; it proves nothing about payloads.
        """
        crc = crc32(f"{self.version}/{self.max_count}/{self.count}".encode())
        for array in (self.idx, self.term, self.offset, self.length, self.crc):
            crc = crc32(np.ascontiguousarray(array).data, crc)
        return f"{crc:08x}"

    @property
    def inside(self) -> BoolArray:
        """Mask of records whose payload lies wholly in the data area of the file as it was when parsed."""
        start = np.uint64(self.data_start)
        # In Python's numbers, which do not wrap around: true of nearly every file.
        if not self.count or (
            self.offset.min() >= start and int(self.offset.max()) + int(self.length.max()) <= self.identity.size
        ):
            return np.ones(self.count, dtype=np.bool_)
        size = np.uint64(self.identity.size)
        # No sum of two u64: a hostile offset near 2**64 would wrap around and look fine.
        fits = self.offset <= size
        room = np.where(fits, size - np.minimum(self.offset, size), np.uint64(0))
        return fits & (self.offset >= start) & (self.length.astype(np.uint64) <= room)


def torn_from(segment: SegmentIndex) -> int | None:
    """Row of the first record that no writer wrote like that: payloads follow each other without gap, none is empty,
    and all lie in the file. None when every record is right.
    """
    lengths = segment.length.astype(np.uint64)
    expected = np.uint64(segment.data_start) + np.cumsum(lengths, dtype=np.uint64) - lengths
    torn = (segment.offset != expected) | (segment.length == 0) | ~segment.inside
    return int(np.argmax(torn)) if torn.any() else None
