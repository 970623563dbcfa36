"""Reads entries, coalesced, checked and in bounded memory; names those that no reader gets."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from compaction.segments.errors import CorruptEntryError, CorruptSegmentError, EntriesHiddenError, LogChangedError
from compaction.segments.format.segment_file import read_segment_fd
from compaction.segments.model import (
    MAX_INDEX,
    BoolArray,
    FileIdentity,
    RowArray,
    SegmentIndex,
    U32Array,
    U64Array,
    crc32_each,
)
from compaction.segments.reading.view import LogState, waiting_in
from compaction.storage.pace import UNLIMITED, Pace

# Entries that segments hold and no reader gets, because a newer file begins at a lower index: which of them were
# overwritten, and which are lost to an old file under a new name.
#
# A leader drops entries by writing those of its own log, whose terms may be lower, and then some of its own term,
# which is later. So a hidden entry that the log needs was overwritten if a record of a later term is read at its
# index or above it, or is in a later file at its index or below it; or it is there again, with the same content,
# since a flush was repeated. The entries of an installation come without anything of the leader's own term.


@dataclass(frozen=True, slots=True)
class HiddenEntries:
    """Needed entries of one segment that newer records hide. `indexes`: ascending; `by`: the first file that hides the
    first of them. `replaced`: whether another record of the same index is read, of no later term and of another
    content; else none is read.
    """

    segment: str
    indexes: U64Array
    by: str
    replaced: bool

    def __str__(self) -> str:
        begin = f"{self.indexes.size} entries that the log needs (first index {self.indexes[0]}) are in {self.segment}"
        if self.replaced:
            return f"{begin}, and {self.by} has others at their indexes, of no later term"
        return f"{begin} alone, and {self.by} hides them, which begins at a lower index and holds no later term"


def hidden_entries(
    log: LogState, needed: Callable[[U64Array], BoolArray], *, cut: int | None
) -> Iterator[HiddenEntries]:
    """Each segment's needed entries that no reader gets as they are, oldest segment first.

    `needed`: which indexes the log needs from its segments. `cut`: the first index that does not count, where an
    installation was interrupted (`log.cut`).
    """
    installed = log.snapshot_index or 0 if cut is None else cut - 1
    rows = {ref.name: log.readable(ref) for ref in log.refs}
    parts = [(log.segment(name), found) for name, found in rows.items()]
    read = np.concatenate([segment.idx[found] for segment, found in parts]) if parts else np.empty(0, dtype=np.uint64)
    columns = [
        np.concatenate([getattr(segment, name)[found] for segment, found in parts]) if parts else read
        for name in ("term", "length", "crc")
    ]
    term_from = np.maximum.accumulate(columns[0][::-1])[::-1]  # The highest term of each record and those above.
    for position, segment in enumerate(log.segments):
        hidden = np.ones(segment.count, dtype=np.bool_)
        hidden[rows.get(segment.name, np.empty(0, dtype=np.int64))] = False
        own = np.flatnonzero(hidden)
        own = own[needed(segment.idx[own])]
        if not own.size:
            continue
        newer = log.segments[position + 1 :]
        at = np.minimum(np.searchsorted(read, segment.idx[own]), max(read.size - 1, 0))
        there = read[at] == segment.idx[own] if read.size else np.zeros(own.size, dtype=np.bool_)
        lost = own[~there]
        lost = lost[~_dropped(segment, lost, newer)]
        if lost.size:
            yield _hidden(segment, lost, newer, replaced=False)
        term, length, crc = (column[at[there]] for column in columns)
        mine = own[there]
        checked = (segment.crc[mine] != 0) & (crc != 0)
        other = (segment.length[mine] != length) | (checked & (segment.crc[mine] != crc))
        overwritten = (term_from[at[there]] > segment.term[mine]) | (segment.idx[mine] <= np.uint64(installed))
        wrong = mine[((term < segment.term[mine]) & ~overwritten) | ((term == segment.term[mine]) & other)]
        if wrong.size:
            yield _hidden(segment, wrong, newer, replaced=True)


def hidden_errors(log: LogState, *, cut: int | None) -> list[EntriesHiddenError]:
    """One error for each segment with such entries, which the write-ahead log does not hold either. `cut`: as above.

    DamagedWalError, InvalidWalFormatError: it may hold them, and cannot be read.
    """
    unknown = log.snapshot_index is not None and log.live is None
    if unknown or not any(True for _ in hidden_entries(log, log.live_mask, cut=cut)):
        return []
    real = Path(os.path.realpath(log.directory))
    waiting = waiting_in(log.wal_directory or real.parent, os.fsencode(real.name))
    # From the first one that waits on, a reader asks the write-ahead log.
    bound = np.uint64(min(waiting.smallest if waiting else MAX_INDEX, MAX_INDEX if cut is None else cut))
    found = hidden_entries(log, lambda indexes: log.live_mask(indexes) & (indexes < bound), cut=cut)
    return [EntriesHiddenError(str(log.directory / item.by), str(item)) for item in found]


def _dropped(segment: SegmentIndex, rows: RowArray, newer: tuple[SegmentIndex, ...]) -> BoolArray:
    """Return which records a later one at or below their index, of a higher term, has dropped."""
    dropped = np.zeros(rows.size, dtype=np.bool_)
    if not rows.size:
        return dropped
    for later in newer:
        if later.count:
            dropped |= _latest_up_to(later.idx, later.term, segment.idx[rows]) > segment.term[rows]
    for place in np.flatnonzero(~dropped).tolist():
        # In the file itself, which few records are overwritten in.
        row = int(rows[place])
        behind = segment.idx[row + 1 :] <= segment.idx[row]
        dropped[place] = bool(np.any(segment.term[row + 1 :][behind] > segment.term[row]))
    return dropped


def _latest_up_to(idx: U64Array, term: U64Array, indexes: U64Array) -> U64Array:
    """The highest term of the records at or below each of the indexes; 0 without any."""
    order = np.argsort(idx, kind="stable")
    highest = np.maximum.accumulate(term[order])
    place = np.searchsorted(idx[order], indexes, side="right")
    found: U64Array = np.where(place > 0, highest[np.maximum(place, 1) - 1], np.uint64(0))
    return found


def _hidden(segment: SegmentIndex, rows: RowArray, newer: tuple[SegmentIndex, ...], *, replaced: bool) -> HiddenEntries:
    indexes = np.unique(segment.idx[rows])
    by = next((later.name for later in newer if later.count and later.first <= int(indexes[0])), segment.name)
    return HiddenEntries(segment.name, indexes, by, replaced)


# Memory that a rewrite uses again and again: fresh memory costs a page fault per 4 KiB, more than a copy of it.

CHUNK_BYTES: Final = 4 << 20
"""What is read and checked at once; a larger payload alone is."""


class Buffers:
    """For one rewrite at a time: what it reads at once.

    What is in there is only valid until the next use. `CHUNK_BYTES` at most are kept, and take memory when first used.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept = np.empty(CHUNK_BYTES, dtype=np.uint8).data

    def read(self, size: int) -> memoryview:
        """`size` bytes to read into, or `CHUNK_BYTES` if that is less."""
        return self._kept[:size]

    def one(self, size: int) -> memoryview:
        """`size` bytes, fresh ones if that is more than is kept."""
        return self._kept[:size] if size <= len(self._kept) else np.empty(size, dtype=np.uint8).data


# The bytes of a file to read for some of its payloads, and the layout of the payloads side by side. Pure, no I/O.
#
# Neighbours are read at once, also over a gap of dead bytes that is cheaper to read than to skip. Several such reads
# fill one buffer before anything is done with it, so what a batch costs beside its bytes is paid per buffer, not per
# run.


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """The reads that bring the payloads at positions `begin..end` (exclusive) of a selection into one buffer.

    Read i brings `sizes[i]` bytes from `offsets[i]` of the file; in the buffer, one read follows the other. Payload p
    of the batch then lies at `starts[p]`.
    """

    begin: int
    end: int
    offsets: list[int]
    sizes: list[int]
    starts: RowArray

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return sum(self.sizes)


def plan_reads(offsets: RowArray, lengths: RowArray, *, chunk_bytes: int, gap_bytes: int) -> Iterator[Reads]:
    """Reads for payloads at `offsets` in the file, in that order, each batch at most `chunk_bytes` or one payload.

    Any order and overlaps are fine; only what ascends and lies at most `gap_bytes` apart is read together.
    """
    ends = offsets + lengths
    gap = offsets[1:] - ends[:-1]
    far = (gap < 0) | (gap > gap_bytes)
    # Where each payload lies if one endless buffer took all reads; ascending, whatever the offsets are.
    position = np.zeros(offsets.size, dtype=np.int64)
    np.cumsum(np.where(far, lengths[:-1], offsets[1:] - offsets[:-1]), out=position[1:])
    filled = position + lengths
    begin = 0
    while begin < offsets.size:
        limit = int(position[begin]) + chunk_bytes
        end = max(begin + 1, int(np.searchsorted(filled, limit, side="right")))
        cuts = np.flatnonzero(far[begin : end - 1]) + begin
        firsts, lasts = np.concatenate(([begin], cuts + 1)), np.concatenate((cuts, [end - 1]))
        yield Reads(
            begin=begin,
            end=end,
            offsets=offsets[firsts].tolist(),
            sizes=(ends[lasts] - offsets[firsts]).tolist(),
            starts=position[begin:end] - position[begin],
        )
        begin = end


def pack(data: memoryview, starts: RowArray, lengths: RowArray) -> memoryview:
    """The payloads at `starts` of `data`, one after the other: `data` itself if they lie so already, else a copy."""
    if not starts.size:
        return data[:0]
    ends = starts + lengths
    joined = starts[1:] == ends[:-1]
    if joined.all():
        return data[int(starts[0]) : int(ends[-1])]
    length = int(lengths[0])
    if length and np.all(lengths == length):
        # Every window of this length, without a copy; numpy then copies the chosen ones, a payload at a time.
        windows = np.ndarray((len(data) - length + 1,), dtype=np.dtype((np.void, length)), buffer=data, strides=(1,))
        chosen: npt.NDArray[np.void] = windows[starts]
        return chosen.view(np.uint8).data
    cuts = np.flatnonzero(~joined)
    begins, stops = starts[np.append(0, cuts + 1)].tolist(), ends[np.append(cuts, starts.size - 1)].tolist()
    return memoryview(b"".join([data[begin:stop] for begin, stop in zip(begins, stops, strict=True)]))


# Reading entries: coalesced, checked, in bounded memory.
#
# Neighbouring payloads are fetched in one read, and up to 4 MiB (a single larger payload alone) are checked at once;
# with the copy that lays sparse ones side by side, memory is bounded by 2 x max(CHUNK_BYTES, largest payload). Every
# payload is compared with its stored CRC-32; a stored 0 means unchecked (docs/design/segment-files.md#index-area).
# Nothing is believed before it is checked against the file's size. A scan outlives the compactions that replace files
# under it.

# Dead bytes worth reading along rather than starting another read.
GAP_BYTES: Final = 16 << 10

# Errors of opening when the name is gone, or a symlink to the compacted segment by now.
_REPLACED: Final = frozenset({errno.ENOENT, errno.ELOOP})
# Looks without any progress; each finds what one more commit left.
_LOOKS: Final = 20

CorruptSink = Callable[[CorruptEntryError], None]

_FINGERPRINT_RECORD: Final = np.dtype([("idx", ">u8"), ("term", ">u8"), ("length", ">u4"), ("crc", ">u4")])


@dataclass(frozen=True, slots=True)
class ReadEntry:
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
            # Damage here is of the file that took the name: the next reading of the log reports it.
            same = False
        if not same:
            self.close()
            raise LogChangedError(str(segment.path.parent))

    def _is_still(self, segment: SegmentIndex) -> bool:
        """Return whether the open file holds the records that were parsed.

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
        """Return the bytes of the reads, one after the other, and the ranges that the file was too short for."""
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
        # Only looks in vain count: compactions may replace files for as long as the scan gets on.
        following, looks = ref.last + 1, 0


def iter_entries(
    log: LogState, *, live_only: bool = False, on_corrupt: CorruptSink | None = None
) -> Iterator[ReadEntry]:
    """Every readable entry in index order; errors as `read_batches`."""
    for batch in read_batches(log, live_only=live_only, on_corrupt=on_corrupt):
        name = batch.segment.name
        indexes = batch.segment.idx[batch.rows].tolist()
        terms = batch.segment.term[batch.rows].tolist()
        for index, term, crc, payload in zip(indexes, terms, batch.crcs.tolist(), batch.payloads(), strict=True):
            yield ReadEntry(index=index, term=term, length=len(payload), crc32=crc, payload=bytes(payload), file=name)


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


def fingerprint(entries: Iterable[ReadEntry]) -> str:
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
