"""Reading entries: coalesced, checked, in bounded memory.

Neighbouring payloads are fetched in one read, and up to 4 MiB (a single larger payload alone) are checked at once; with
the copy that lays sparse ones side by side, memory is bounded by 2 x max(CHUNK_BYTES, largest payload). Every payload
is compared with its stored CRC-32; a stored 0 means unchecked (docs/design/segment-files.md#index-area). Nothing is
believed before it is checked against the file's size. A scan outlives the compactions that replace files under it.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from compaction.segments.errors import CorruptEntryError, CorruptSegmentError, LogChangedError
from compaction.segments.format.checksums import crc32_each
from compaction.segments.format.codec import read_segment_fd
from compaction.segments.model import FileIdentity, RowArray, SegmentIndex, U32Array, U64Array
from compaction.segments.reading.buffers import CHUNK_BYTES, Buffers
from compaction.segments.reading.packing import Reads, pack, plan_reads
from compaction.segments.reading.view import LogState
from compaction.storage.pace import UNLIMITED, Pace

# Dead bytes worth reading along rather than starting another read.
GAP_BYTES: Final = 16 << 10

# What opening says when the name is gone, or a symlink to the compacted segment by now.
_REPLACED: Final = frozenset({errno.ENOENT, errno.ELOOP})
# Looks without any progress; each finds what one more commit left.
_LOOKS: Final = 20

CorruptSink = Callable[[CorruptEntryError], None]

_FINGERPRINT_RECORD: Final = np.dtype([("idx", ">u8"), ("term", ">u8"), ("length", ">u4"), ("crc", ">u4")])


@dataclass(frozen=True, slots=True)
class Entry:
    """One readable entry. `crc32` is computed from the payload, also when the file stores none."""

    index: int
    term: int
    length: int
    crc32: int
    payload: bytes
    file: str


@dataclass(frozen=True, slots=True, eq=False)
class EntryBatch:
    """Checked payloads of records of one segment.

    `rows` are record positions in the segment; `data` holds their payloads one after the other, of `lengths` bytes,
    with the CRCs `crcs`.
    """

    segment: SegmentIndex
    rows: RowArray
    data: memoryview
    lengths: RowArray
    crcs: U32Array

    def payloads(self) -> Iterator[memoryview]:
        """Each payload, in order."""
        ends = np.cumsum(self.lengths)
        for begin, end in zip((ends - self.lengths).tolist(), ends.tolist(), strict=True):
            yield self.data[begin:end]


class SegmentFile:
    """An open segment file, for reading the payloads of an index parsed earlier."""

    def __init__(self, segment: SegmentIndex, *, buffers: Buffers | None = None) -> None:
        """LogChangedError when the name is gone, or belongs to another file than the one that was parsed.

        With `buffers`, what a batch holds is only valid until the next one.
        """
        self.segment = segment
        self._buffers = buffers
        try:
            self._fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in _REPLACED:
                raise LogChangedError(str(segment.path.parent)) from error
            raise
        try:
            same = self._is_still(segment)
        except CorruptSegmentError:
            same = False
        if not same:
            self.close()
            raise LogChangedError(str(segment.path.parent))

    def _is_still(self, segment: SegmentIndex) -> bool:
        """Whether the open file holds the records that were parsed.

        A newest segment grows: its size and time change, its first records never do. Name and inode alone prove
        nothing: the number of a deleted file's inode is given to the next file.
        """
        now, then = FileIdentity.of(os.fstat(self._fd)), segment.identity
        if now == then:
            return True
        if (now.device, now.inode) != (then.device, then.inode):
            return False
        grown = read_segment_fd(self._fd, segment.path, newest=True)
        return grown.version == segment.version and all(
            np.array_equal(new[: old.size], old)
            for new, old in (
                (grown.idx, segment.idx),
                (grown.term, segment.term),
                (grown.offset, segment.offset),
                (grown.length, segment.length),
                (grown.crc, segment.crc),
            )
        )

    def close(self) -> None:
        os.close(self._fd)

    def batches(
        self, rows: RowArray, *, on_corrupt: CorruptSink | None = None, pace: Pace = UNLIMITED
    ) -> Iterator[EntryBatch]:
        """Read and check the records at `rows`, in that order. `pace` is asked before each read.

        A bad one is raised as CorruptEntryError (file, index, offset); with `on_corrupt` it is handed over, left out.
        """
        report = on_corrupt or _raise
        inside = self.segment.inside[rows]
        size = self.segment.identity.size
        for row in rows[~inside].tolist():
            report(self._corrupt(row, f"its {self.segment.length[row]} bytes are not in the data area of {size} bytes"))
        rows = rows[inside]
        empty = self.segment.length[rows] == 0
        for row in rows[empty].tolist():
            # The CRC of nothing is 0, which means unchecked: such a record would pass for an entry.
            report(self._corrupt(row, "its index says that it has no bytes, and no entry is empty"))
        rows = rows[~empty]
        offsets = self.segment.offset[rows].astype(np.int64)
        lengths = self.segment.length[rows].astype(np.int64)
        for reads in plan_reads(offsets, lengths, chunk_bytes=CHUNK_BYTES, gap_bytes=GAP_BYTES):
            pace(reads.size)
            yield self._batch(reads, rows[reads.begin : reads.end], lengths[reads.begin : reads.end], report)

    def _batch(self, reads: Reads, rows: RowArray, lengths: RowArray, report: CorruptSink) -> EntryBatch:
        data, missing = self._read(reads)
        starts = reads.starts
        for begin, end in missing:
            cut = (starts + lengths > begin) & (starts < end)
            for row in rows[cut].tolist():
                report(self._corrupt(row, "the file ends before its last byte: it was cut while it was read"))
            rows, starts, lengths = rows[~cut], starts[~cut], lengths[~cut]
        packed = pack(data, starts, lengths)
        crcs, stored = crc32_each(packed, lengths), self.segment.crc[rows]
        bad = (stored != crcs) & (stored != 0)
        if bad.any():
            for position in np.flatnonzero(bad).tolist():
                reason = f"CRC {int(crcs[position]):08x} of the payload, {int(stored[position]):08x} in the index"
                report(self._corrupt(int(rows[position]), reason))
            good = ~bad
            rows, lengths, crcs = rows[good], lengths[good], crcs[good]
            packed = pack(data, starts[good], lengths)
        return EntryBatch(segment=self.segment, rows=rows, data=packed, lengths=lengths, crcs=crcs)

    def _read(self, reads: Reads) -> tuple[memoryview, list[tuple[int, int]]]:
        """What the reads bring, one after the other, and the ranges of it that the file was too short for."""
        size = reads.size
        data = np.empty(size, dtype=np.uint8).data if self._buffers is None else self._buffers.one(size)
        missing: list[tuple[int, int]] = []
        begin = 0
        for offset, wanted in zip(reads.offsets, reads.sizes, strict=True):
            got = 0
            while got < wanted and (part := os.preadv(self._fd, [data[begin + got : begin + wanted]], offset + got)):
                got += part
            if got < wanted:
                missing.append((begin + got, begin + wanted))
            begin += wanted
        return data, missing

    def _corrupt(self, row: int, reason: str) -> CorruptEntryError:
        segment = self.segment
        return CorruptEntryError(str(segment.path), int(segment.idx[row]), int(segment.offset[row]), reason)


def _raise(error: CorruptEntryError) -> None:
    raise error


def picked_batches(
    picked: Iterable[tuple[SegmentIndex, RowArray]], pace: Pace, buffers: Buffers
) -> Iterator[EntryBatch]:
    """The records at the given rows of each segment, as checked batches; each is only valid until the next."""
    for segment, rows in picked:
        if rows.size:
            with closing(SegmentFile(segment, buffers=buffers)) as file:
                yield from file.batches(rows, pace=pace)


def read_batches(
    log: LogState, *, live_only: bool = False, on_corrupt: CorruptSink | None = None
) -> Iterator[EntryBatch]:
    """All readable records of a log in index order, as checked batches; `live_only` drops dead ones below the snapshot.

    Compactions may go on meanwhile: where a file was replaced since the log was opened, the segments are read
    again, and the scan goes on behind the last index it delivered: in order, nothing twice, nothing live left out. The
    snapshot and live set stay those of `log`; what died since may or may not appear.

    CorruptEntryError at the first bad one (with `on_corrupt`: handed over, left out), LiveSetUnknownError when
    `live_only` is asked of a log whose live set is unknown; LogChangedError when files were replaced at each of many
    looks; errors of `LogState.look_again`.
    """
    todo, following, looks = list(reversed(log.refs)), 0, 0
    while todo:
        ref = todo.pop()
        segment = log.segment(ref.name)
        rows = log.readable(ref)
        rows = rows[segment.idx[rows] >= np.uint64(following)]
        if live_only:
            rows = rows[log.live_mask(segment.idx[rows])]
        if rows.size:
            try:
                file = SegmentFile(segment)
            except LogChangedError:
                looks += 1
                if looks > _LOOKS:
                    raise
                log = log.look_again()
                todo = [ref for ref in reversed(log.refs) if ref.last >= following]
                continue
            with closing(file):
                yield from file.batches(rows, on_corrupt=on_corrupt)
        following, looks = ref.last + 1, 0


def iter_entries(log: LogState, *, live_only: bool = False, on_corrupt: CorruptSink | None = None) -> Iterator[Entry]:
    """Every readable entry in index order; errors as `read_batches`."""
    for batch in read_batches(log, live_only=live_only, on_corrupt=on_corrupt):
        name = batch.segment.name
        indexes = batch.segment.idx[batch.rows].tolist()
        terms = batch.segment.term[batch.rows].tolist()
        for index, term, crc, payload in zip(indexes, terms, batch.crcs.tolist(), batch.payloads(), strict=True):
            yield Entry(index=index, term=term, length=len(payload), crc32=crc, payload=bytes(payload), file=name)


class EntryFingerprint:
    """Accumulates the identity of a log's content: sha256 over (idx u64, term u64, length u32, crc32 u32), big-endian.

    The CRC is that of the payload, so a fingerprint does not change when an unchecked entry is copied. Feed entries in
    index order; how they are cut into calls does not matter.
    """

    __slots__ = ("_digest", "entries", "payload_bytes")

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.entries = 0
        self.payload_bytes = 0

    def update_arrays(self, *, idx: U64Array, term: U64Array, length: U32Array, crc: U32Array) -> None:
        """Add entries given as arrays of equal length."""
        records = np.empty(idx.shape, dtype=_FINGERPRINT_RECORD)
        records["idx"], records["term"], records["length"], records["crc"] = idx, term, length, crc
        self._digest.update(records.tobytes())
        self.entries += int(idx.size)
        self.payload_bytes += int(length.sum(dtype=np.uint64))

    def update_batch(self, batch: EntryBatch) -> None:
        """Add a batch of checked payloads."""
        segment, rows = batch.segment, batch.rows
        self.update_arrays(idx=segment.idx[rows], term=segment.term[rows], length=segment.length[rows], crc=batch.crcs)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def fingerprint(entries: Iterable[Entry]) -> str:
    """The fingerprint of entries in index order, in hexadecimal."""
    result = EntryFingerprint()
    for entry in entries:
        result.update_arrays(
            idx=np.array([entry.index], dtype=np.uint64),
            term=np.array([entry.term], dtype=np.uint64),
            length=np.array([entry.length], dtype=np.uint32),
            crc=np.array([entry.crc32], dtype=np.uint32),
        )
    return result.hexdigest()


def log_fingerprint(log: LogState, *, live_only: bool = True) -> EntryFingerprint:
    """The fingerprint of a log's readable content, batch by batch; errors as `read_batches`."""
    result = EntryFingerprint()
    for batch in read_batches(log, live_only=live_only):
        result.update_batch(batch)
    return result
