"""Appending entries to a log, byte for byte as Ra's segment writer does (docs/design/segment-files.md#appending).

Order on disk: payloads first, then their index slots, no sync in between; each segment is synced on close, then the
directory. So a crash may leave data without index, which the next append overwrites. An existing last segment is
continued, in its own version; its end is derived from its last record, not from the file's size.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from compaction.segments.directory import fs
from compaction.segments.directory.listing import highest_segment
from compaction.segments.errors import CorruptSegmentError, InvalidEntryError, MissingSegmentHeaderError
from compaction.segments.format.codec import CURRENT_VERSION, encode_header, encode_records, read_segment_fd
from compaction.segments.model import (
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_SIZE,
    HEADER_BYTES,
    SLOT_BYTES,
    U32Array,
    U64Array,
    data_start,
    segment_name,
    segment_number,
)

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
        """How many of the next entries fit (§1.4): slots left, and data bytes BEFORE an entry not above max_size."""
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
