"""Segment file codec, versions 1 and 2, byte-compatible with Ra both ways (docs/design/segment-files.md).

All integers are big-endian and unsigned. Parsing reads the header and the index area only (at most 2 MiB, whatever the
file claims), never the data. Every failure is a `CorruptSegmentError` that names the file.
"""

from __future__ import annotations

import os
import stat
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.segments.errors import (
    CorruptSegmentError,
    InvalidSegmentFormatError,
    MissingSegmentHeaderError,
    SegmentIsLinkError,
)
from compaction.segments.model import (
    DEFAULT_MAX_COUNT,
    HEADER_BYTES,
    MAX_COUNT_LIMIT,
    SLOT_BYTES,
    FileIdentity,
    SegmentIndex,
    U32Array,
    U64Array,
    data_start,
    torn_from,
)

MAGIC: Final = b"RASG"
CURRENT_VERSION: Final = 2
_READS: Final = 5
_PAUSE: Final = 0.001
"""Seconds, twice as many each time: a writer that is interrupted while its slots are copied goes on within these."""
_HEADER: Final = struct.Struct(">4sHH")

RECORD_DTYPES: Final[dict[int, np.dtype[np.void]]] = {
    1: np.dtype([("idx", ">u8"), ("term", ">u8"), ("offset", ">u4"), ("length", ">u4"), ("crc", ">u4")]),
    2: np.dtype([("idx", ">u8"), ("term", ">u8"), ("offset", ">u8"), ("length", ">u4"), ("crc", ">u4")]),
}

_OFFSET_WORD: Final = {1: 4, 2: 5}


def encode_header(*, max_count: int, version: int = CURRENT_VERSION) -> bytes:
    """The 8-byte header. ValueError when max_count is not 1..65535 (16 bits on disk) or the version is unknown."""
    if not 1 <= max_count <= MAX_COUNT_LIMIT:
        raise ValueError(f"max_count {max_count} is not in 1..{MAX_COUNT_LIMIT}")
    if version not in SLOT_BYTES:
        raise ValueError(f"segment version {version} is not 1 or 2")
    return _HEADER.pack(MAGIC, version, max_count)


def decode_header(data: bytes, *, file: str) -> tuple[int, int]:
    """(version, max_count) of a file that starts with `data`; `file` is only for the error."""
    if not data:
        raise MissingSegmentHeaderError(file)
    if len(data) < HEADER_BYTES:
        raise InvalidSegmentFormatError(file, f"the header is cut off after {len(data)} of {HEADER_BYTES} bytes")
    magic, version, max_count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidSegmentFormatError(file, f"the file begins with {magic!r}, not {MAGIC!r}")
    if version not in SLOT_BYTES:
        raise InvalidSegmentFormatError(file, f"version {version} is not supported (1 and 2 are)")
    if not max_count:
        # 65,536 in 16 bits: whoever wrote that put entries behind an index that no reader finds.
        raise InvalidSegmentFormatError(file, "its header has room for 0 index slots")
    return version, max_count


def encode_records(
    *, idx: U64Array, term: U64Array, offset: U64Array, length: U32Array, crc: U32Array, version: int = CURRENT_VERSION
) -> bytes:
    """Index slots for the given records, one after the other. ValueError when an offset does not fit V1's 32 bits."""
    if version == 1 and offset.size and int(offset.max()) > 0xFFFFFFFF:
        raise ValueError("a version 1 segment cannot hold offsets of 4 GiB and more")
    records = np.empty(idx.shape, dtype=RECORD_DTYPES[version])
    records["idx"] = idx
    records["term"] = term
    records["offset"] = offset
    records["length"] = length
    records["crc"] = crc
    return records.tobytes()


def decode_records(area: bytes, version: int) -> npt.NDArray[np.void]:
    """Records of an index area (may be cut off): up to the first all-zero slot; a partial slot ends the index.

    A slot with any non-zero byte is a record, as in Ra.
    """
    slot = SLOT_BYTES[version]
    slots = len(area) // slot
    # Word by word: both slots are whole multiples of 4 bytes. Of nearly every record, one word alone is not zero:
    # behind index and term, the lower half of the offset.
    words = np.frombuffer(area, dtype=np.uint32, count=slots * slot // 4).reshape(slots, slot // 4)
    used = words[:, _OFFSET_WORD[version]] != 0
    count = _leading(used)
    if count < slots and words[count].any():
        for word in range(slot // 4):
            used |= words[:, word] != 0
        count = _leading(used)
    return np.frombuffer(area, dtype=RECORD_DTYPES[version], count=count)


def _leading(used: npt.NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    first = int(np.argmin(used)) if used.size else 0
    return used.size if used.size and used[first] else first


def decode_segment(head: bytes, *, path: Path, identity: FileIdentity) -> SegmentIndex:
    """A segment's index from the first bytes of the file (header and index area; more is ignored)."""
    version, max_count = decode_header(head, file=str(path))
    area = head[HEADER_BYTES : data_start(version, max_count)]
    records = decode_records(area, version)
    slot = SLOT_BYTES[version]
    behind = area[records.size * slot : len(area) // slot * slot]
    return SegmentIndex(
        path=path,
        version=version,
        max_count=max_count,
        identity=identity,
        idx=records["idx"].astype(np.uint64),
        term=records["term"].astype(np.uint64),
        offset=records["offset"].astype(np.uint64),
        length=records["length"].astype(np.uint32),
        crc=records["crc"].astype(np.uint32),
        behind_hole=_indexes(behind, version) if behind.strip(b"\0") else np.empty(0, dtype=np.uint64),
    )


def _indexes(slots: bytes, version: int) -> U64Array:
    """Of the slots that are not empty."""
    used = np.frombuffer(slots, dtype=np.uint8).reshape(-1, SLOT_BYTES[version]).any(axis=1)
    return np.frombuffer(slots, dtype=RECORD_DTYPES[version])["idx"][used].astype(np.uint64)


def read_segment(path: Path, *, newest: bool = False) -> SegmentIndex:
    """Parse the index of the segment file at `path` (a symlink is refused: its name is not its own).

    `newest`: a file of 0 bytes is a segment without entries, which its owner has created and not yet written the header
    of (docs/design/segment-files.md#header: Ra creates it again). CorruptSegmentError names the file; OSError (missing,
    no permission) passes through.
    """
    # O_NONBLOCK: a FIFO under a segment's name must not hang us.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise SegmentIsLinkError(str(path)) from error
        raise
    try:
        return read_segment_fd(fd, path, newest=newest)
    finally:
        os.close(fd)


def read_segment_fd(fd: int, path: Path, *, newest: bool = False) -> SegmentIndex:
    """Parse the index of an open segment file; `path` names it in the result and in errors. `newest`: it may grow."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CorruptSegmentError(str(path), "not a regular file")
    index = _read_index(fd, path, FileIdentity.of(status), newest=newest)
    for look in range(_READS):
        now = FileIdentity.of(os.fstat(fd))
        if now == index.identity:
            if not newest or torn_from(index) is None:
                return index
            # A file has its new time before a write to it is copied: one with half a record looks as it will later.
            time.sleep(_PAUSE * 2**look)
        index = _read_index(fd, path, now, newest=newest)
    # Written to all the time. Data come before the records that point to them, so all of these lie within the size as
    # it is afterwards; the mixed identity is that of no state of the file, and takes no other one for the same.
    return replace(index, identity=replace(index.identity, size=os.fstat(fd).st_size))


def _read_index(fd: int, path: Path, identity: FileIdentity, *, newest: bool) -> SegmentIndex:
    head = os.pread(fd, HEADER_BYTES, 0)
    if newest and not head:
        return decode_segment(encode_header(max_count=DEFAULT_MAX_COUNT), path=path, identity=identity)
    version, max_count = decode_header(head, file=str(path))
    head += pread_up_to(fd, data_start(version, max_count) - HEADER_BYTES, HEADER_BYTES)
    return decode_segment(head, path=path, identity=identity)


def pread_up_to(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes at `offset`, fewer only at the end of the file (one pread may return less than asked)."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            break
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
