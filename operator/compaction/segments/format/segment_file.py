"""Segment files, versions 1 and 2, byte for byte as Ra writes them: read, encoded, and appended to."""

from __future__ import annotations

import os
import stat
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.segments.directory import fs
from compaction.segments.directory.fs import highest_segment
from compaction.segments.errors import (
    CorruptSegmentError,
    InvalidEntryError,
    InvalidSegmentFormatError,
    MissingSegmentHeaderError,
    SegmentIsLinkError,
)
from compaction.segments.model import (
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_SIZE,
    HEADER_BYTES,
    MAX_COUNT_LIMIT,
    SLOT_BYTES,
    FileIdentity,
    SegmentIndex,
    U32Array,
    U64Array,
    data_start,
    segment_name,
    segment_number,
    torn_from,
)

# Segment file codec, versions 1 and 2, byte-compatible with Ra both ways (docs/design/segment-files.md).
#
# All integers are big-endian and unsigned. Parsing reads the header and the index area only (at most 2 MiB, whatever
# the file claims), never the data. Every failure is a `CorruptSegmentError` that names the file.

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
    """Return the number of true values before the first false one."""
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


# Appending entries to a log, byte for byte as Ra's segment writer does (docs/design/segment-files.md#appending).
#
# Order on disk: payloads first, then their index slots, no sync in between; each segment is synced on close, then the
# directory. So a crash may leave data without index, which the next append overwrites. An existing last segment is
# continued, in its own version; its end is derived from its last record, not from the file's size.

Payload = bytes | bytearray | memoryview

MAX_PAYLOAD_BYTES: Final = 0xFFFFFFFF
# Ra flushes after 1024 entries; the bound in bytes keeps memory finite with large payloads.
MAX_PENDING_ENTRIES: Final = 1024
MAX_PENDING_BYTES: Final = 4 << 20
_V1_OFFSET_LIMIT: Final = 0xFFFFFFFF


class _OpenSegment:
    """The segment at the end of the log: knows how many more entries it takes, and writes them."""

    def __init__(self, fd: int, path: Path, *, version: int, max_count: int, count: int, end: int) -> None:
        self.fd = fd
        self.path = path
        self.version = version
        self.max_count = max_count
        self.count = count
        self.end = end
        self.start = data_start(version, max_count)

    @classmethod
    def create(cls, path: Path, *, max_count: int, sync: bool) -> _OpenSegment:
        """A new file: the header is written and synced before anything else."""
        fd = fs.create(path)
        fs.write_at(fd, encode_header(max_count=max_count), 0)
        if sync:
            fs.sync(fd)
        start = data_start(CURRENT_VERSION, max_count)
        return cls(fd, path, version=CURRENT_VERSION, max_count=max_count, count=0, end=start)

    @classmethod
    def reopen(cls, path: Path) -> _OpenSegment:
        """An existing file. CorruptSegmentError when its last record gives no place to continue."""
        fd = fs.reopen(path)
        try:
            index = read_segment_fd(fd, path)
            if index.end_of_data < index.data_start:
                raise CorruptSegmentError(
                    str(path), f"its last record (index {index.last}) is torn: it points into the index area"
                )
        except CorruptSegmentError:
            os.close(fd)
            raise
        return cls(fd, path, version=index.version, max_count=index.max_count, count=index.count, end=index.end_of_data)

    def room(self, lengths: U64Array, max_size: int) -> int:
        """Return the number of the next entries that fit (§1.4).

        A fitting entry has a slot, and not more than `max_size` data bytes BEFORE it.
        """
        limit = max_size if self.version > 1 else min(max_size, _V1_OFFSET_LIMIT - self.start)
        if self.end - self.start > limit:
            return 0
        used = np.cumsum(lengths) - lengths + np.uint64(self.end - self.start)
        fits = int(np.searchsorted(used, np.uint64(limit), side="right"))
        return min(fits, self.max_count - self.count)

    def write(self, *, idx: U64Array, term: U64Array, length: U32Array, crc: U32Array, data: bytes) -> None:
        sizes = length.astype(np.uint64)
        offset = np.uint64(self.end) + np.cumsum(sizes) - sizes
        records = encode_records(idx=idx, term=term, offset=offset, length=length, crc=crc, version=self.version)
        fs.write_at(self.fd, data, self.end)
        fs.write_at(self.fd, records, HEADER_BYTES + self.count * SLOT_BYTES[self.version])
        self.end += len(data)
        self.count += int(idx.size)

    def close(self, *, sync: bool) -> None:
        try:
            if sync:
                fs.sync(self.fd)
        finally:
            os.close(self.fd)


class LogWriter:
    """Appends to the last segment of a log directory and rolls to a successor when it is full.

    Nothing is checked about the order of indexes: gaps (sparse writes) and going back (overwriting) are features of the
    format. Not for use while another process writes to the same log. A context manager: leaving it closes.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_count: int = DEFAULT_MAX_COUNT,
        max_size: int = DEFAULT_MAX_SIZE,
        checksums: bool = True,
        sync: bool = True,
    ) -> None:
        """`max_count`, `max_size` (data bytes) are the limits of new segments; `sync` False is for throw-away logs."""
        encode_header(max_count=max_count)  # refuses an impossible max_count now, not at the first roll
        if max_size <= 0:
            raise ValueError(f"max_size {max_size} is not positive")
        self.directory = directory
        self.max_count = max_count
        self.max_size = max_size
        self._checksums = checksums
        self._sync = sync
        self._segment: _OpenSegment | None = None
        self._idx: list[int] = []
        self._term: list[int] = []
        self._payloads: list[Payload] = []
        self._pending_bytes = 0
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, idx: int, term: int, payload: Payload) -> None:
        """Add one entry; it reaches the file at the next flush, at the latest after 1024 entries or 4 MiB."""
        if not 0 < len(payload) <= MAX_PAYLOAD_BYTES:
            raise InvalidEntryError(f"index {idx}: a payload has 1..{MAX_PAYLOAD_BYTES} bytes, not {len(payload)}")
        if not (0 <= idx < 2**64 and 0 <= term < 2**64):
            raise InvalidEntryError(f"index {idx}, term {term}: both are unsigned 64-bit numbers")
        self._idx.append(idx)
        self._term.append(term)
        self._payloads.append(payload)
        self._pending_bytes += len(payload)
        if len(self._idx) >= MAX_PENDING_ENTRIES or self._pending_bytes >= MAX_PENDING_BYTES:
            self.flush()

    def append_many(self, indexes: Iterable[int], term: int, payloads: Sequence[Payload]) -> None:
        """Add entries of one term, as many as there are payloads."""
        for idx, payload in zip(indexes, payloads, strict=True):
            self.append(idx, term, payload)

    def flush(self) -> None:
        """Write what is pending: data, then index slots, segment by segment. Does not sync."""
        if not self._idx:
            return
        idx, term = np.array(self._idx, dtype=np.uint64), np.array(self._term, dtype=np.uint64)
        payloads, self._payloads = self._payloads, []
        self._idx, self._term, self._pending_bytes = [], [], 0
        sizes = np.fromiter(map(len, payloads), dtype=np.uint64, count=len(payloads))
        crc = np.zeros(idx.shape, dtype=np.uint32)
        if self._checksums:
            crc = np.fromiter(map(zlib.crc32, payloads), dtype=np.uint32, count=len(payloads))
        begin = 0
        while begin < idx.size:
            segment = self._writable()
            part = slice(begin, begin + segment.room(sizes[begin:], self.max_size))
            if part.stop == begin:
                self._successor()
                continue
            length = sizes[part].astype(np.uint32)
            segment.write(idx=idx[part], term=term[part], length=length, crc=crc[part], data=b"".join(payloads[part]))
            begin = part.stop

    def roll(self) -> None:
        """Flush, close the current segment (synced) and create its successor, header only."""
        self.flush()
        self._successor()

    def _successor(self) -> _OpenSegment:
        number = segment_number(self._segment.path.name) if self._segment else highest_segment(self.directory)
        if self._segment is not None:
            self._segment.close(sync=self._sync)
            self._segment = None
        path = self.directory / segment_name(number + 1)
        self._segment = _OpenSegment.create(path, max_count=self.max_count, sync=self._sync)
        return self._segment

    def close(self) -> None:
        """Flush, sync and close the segment, sync the directory."""
        self.flush()
        if self._segment is not None:
            self._segment.close(sync=self._sync)
            self._segment = None
        if self._sync:
            fs.sync_directory(self.directory)

    def _writable(self) -> _OpenSegment:
        if self._segment is not None:
            return self._segment
        path = self.directory / segment_name(highest_segment(self.directory))
        if path.is_symlink() or not path.exists():
            return self._successor()
        self._segment = self._reopen(path)
        return self._segment

    def _reopen(self, path: Path) -> _OpenSegment:
        try:
            return _OpenSegment.reopen(path)
        except MissingSegmentHeaderError:
            # Created, then the writer died before the header: nothing was in it, so it is made again, as Ra does.
            fs.unlink(path)
            return _OpenSegment.create(path, max_count=self.max_count, sync=self._sync)
