"""Rewrites one group of segments: copies its live entries into one new file, then reads that file back.

Every payload's CRC is checked while it is copied, and the output is verified by reading all of it again (`outputs`):
the bytes must be those that were written, and a fingerprint over index, term, length and CRC must be equal on both
sides. Reads are coalesced, writes are gathered: no system call per entry. Memory is bounded by what is read at once (4
MiB, or the largest single payload if that is larger) and its copy without the gaps, plus the index areas of the group's
sources and output (at most 8 x 2 MiB + 2 MiB).

Nothing becomes visible here: the output has an attempt-unique name, and `commit` decides. Whatever goes wrong, the
partial file is removed and the sources are untouched.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory import fs
from compaction.segments.directory.fs import regular_identity, regular_segments, storage_errors
from compaction.segments.directory.lock import inherit_access
from compaction.segments.errors import (
    CorruptSegmentError,
    GroupEmptyError,
    GroupTooLargeError,
    InvalidGroupError,
    MissingLiveIndexError,
    SegmentIsLinkError,
    SourcesChangedError,
    VerificationFailedError,
)
from compaction.segments.format.names import group_key, partial_name
from compaction.segments.format.segment_file import CURRENT_VERSION, encode_header, encode_records, read_segment
from compaction.segments.model import FileIdentity, RowArray, SegmentIndex, U32Array, U64Array, data_start
from compaction.segments.planning.plan import GroupRanges, IndexRange, group_ranges
from compaction.segments.planning.unreferenced import DeadSegment, SegmentLimits
from compaction.segments.reading.reader import Buffers, EntryBatch, EntryFingerprint, picked_batches
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.pace import UNLIMITED, Pace

# A new segment that a rewrite makes under an attempt-unique name: its file, its index area, and its reading back.
#
# Version 2 and exactly full, so that no owner ever appends to it (docs/design/segment-files.md#appending). Whatever
# goes wrong before it was read back equal, the file is gone again.
#
# The proof that it reads back has two halves. Every byte of the file is read again, and their XXH3-128 is that of the
# bytes that were written, so the payloads are those whose CRCs were checked when they were copied. And the index, as
# it was read, gives those payloads, one behind the other up to the end of the file, to the indexes and terms that
# they were copied of: the fingerprint made from it is the one made while copying.


@contextmanager
def partial_file(path: Path, *, like: Path) -> Iterator[int]:
    """The open file `path`, with the owner and mode of `like`; removed again when the block raises.

    SourcesChangedError when `like` is gone: the log's owner has deleted it.
    """
    # A leftover under this name is of this very attempt, and its writer is dead or will find its file gone.
    fs.unlink_if_present(path)
    fd = fs.create(path, mode=0o600)
    kept = False
    try:
        try:
            inherit_access(fd, like)
        except FileNotFoundError as error:
            raise SourcesChangedError(f"{like}: deleted while it was compacted") from error
        yield fd
        kept = True
    finally:
        os.close(fd)
        if not kept:
            with suppress(OSError):
                fs.unlink_if_present(path)


def full_head(*, idx: U64Array, term: U64Array, length: U32Array, crc: U32Array) -> list[bytes]:
    """Header and index area of a segment whose payloads follow in this order, without gaps; no slot is left."""
    offset = np.full(idx.size, data_start(CURRENT_VERSION, idx.size), dtype=np.uint64)
    offset[1:] += np.cumsum(length[:-1], dtype=np.uint64)
    records = encode_records(idx=idx, term=term, offset=offset, length=length, crc=crc)
    return [encode_header(max_count=int(idx.size)), records]


@dataclass(slots=True)
class Copied:
    """The progress of an output: the bytes written so far, and the entries that they are copies of.

    `content`: the fingerprint of the entries; `crcs`: of their payloads, as computed while they were copied.
    """

    fd: int
    pace: Pace
    content: EntryFingerprint = field(default_factory=EntryFingerprint)
    crcs: list[U32Array] = field(default_factory=list)
    _digest: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)

    def head(self, parts: Sequence[bytes]) -> None:
        """Write header and index area."""
        self._write(parts)

    def batch(self, batch: EntryBatch, *, idx: U64Array, term: U64Array) -> None:
        """Write checked payloads, which are entries `idx` of `term` in the output."""
        self._write([batch.data])
        self.content.update_arrays(idx=idx, term=term, length=batch.segment.length[batch.rows], crc=batch.crcs)
        self.crcs.append(batch.crcs)

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        self.pace(sum(map(len, parts)), written=True)
        fs.write(self.fd, parts)
        for part in parts:
            self._digest.update(part)

    @property
    def digest(self) -> bytes:
        """XXH3-128 of all bytes written."""
        return self._digest.digest()


def read_back(path: Path, copied: Copied, identity: FileIdentity, buffers: Buffers) -> tuple[SegmentIndex, str]:
    """Read the whole output again and compare: its index, and the fingerprint of what was read.

    Raises:
        VerificationFailedError: it is not the file that was written, not full, or not equal to what was copied.
    """
    output, digest = _read_output(path, identity, copied.pace, buffers)
    before, after = copied.content, EntryFingerprint()
    crc = np.concatenate([np.zeros(0, dtype=np.uint32), *copied.crcs])
    whole = output.count == output.max_count == before.entries and output.identity == identity
    if whole and digest == copied.digest and _is_gapless(output) and _has_crcs(output, crc):
        after.update_arrays(idx=output.idx, term=output.term, length=output.length, crc=crc)
    if after.hexdigest() != before.hexdigest():
        raise VerificationFailedError(
            f"{path}: the output does not read back: {output.count} entries with fingerprint {after.hexdigest()[:16]}, "
            f"digest {digest.hex()[:16]}; {before.entries} were copied with {before.hexdigest()[:16]}, "
            f"{copied.digest.hex()[:16]}"
        )
    return output, after.hexdigest()


def _read_output(path: Path, identity: FileIdentity, pace: Pace, buffers: Buffers) -> tuple[SegmentIndex, bytes]:
    """The index of the output, and the XXH3-128 of its bytes up to its end."""
    try:
        output = read_segment(path)
    except CorruptSegmentError as error:
        # Damage in a file that was just written is a failed copy, not a damaged source.
        raise VerificationFailedError(f"{path}: the output does not read back: {error}") from error
    pace(output.data_start)
    digest = xxhash.xxh3_128()
    chunk = buffers.read(identity.size)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        position = 0
        while position < identity.size:
            wanted = min(len(chunk), identity.size - position)
            pace(wanted)
            got = os.preadv(fd, [chunk[:wanted]], position)
            if not got:
                break
            digest.update(chunk[:got])
            position += got
    finally:
        os.close(fd)
    return output, digest.digest()


def _is_gapless(output: SegmentIndex) -> bool:
    """Return whether the payloads lie one behind the other, from the index area to the end of the file."""
    ends = output.offset + output.length
    starts = np.concatenate([np.full(1, output.data_start, dtype=np.uint64), ends[:-1]])
    return np.array_equal(output.offset, starts) and output.end_of_data == output.identity.size


def _has_crcs(output: SegmentIndex, crc: U32Array) -> bool:
    """Return whether the index stores these CRCs; 0 means unchecked."""
    return not np.any((output.crc != crc) & (output.crc != 0))


@dataclass(frozen=True, slots=True, eq=False)
class _Picked:
    """A source and the positions of its records that are copied, ascending in index."""

    segment: SegmentIndex
    rows: RowArray


def rewrite_group(
    directory: Path,
    *,
    sources: Sequence[str],
    live: LiveSet,
    limits: SegmentLimits,
    job: str,
    token: int,
    ranges: GroupRanges | None = None,
    known: Mapping[str, SegmentIndex] | None = None,
    snapshot_index: int | None = None,
    pace: Pace = UNLIMITED,
    buffers: Buffers | None = None,
) -> RewrittenGroup:
    """Write, sync and verify the output of one group under an attempt-unique name.

    `ranges` is what `plan.GroupCheck` found, so that a task need not open the whole log; without it the log is opened
    here (`snapshot_index` as in `open_log`). It holds for the very files it was found of: a source that another job
    compacted since stands for more than its range, and only segments that were dead then are carried along.
    `known`: indexes that were read in this process, by name; not read again while they are of those very files.
    `buffers`: memory to use, of a caller that rewrites one group after the other.

    Raises:
        CorruptEntryError, CorruptSegmentError: a source is damaged (names file, index, offset).
        MissingLiveIndexError: a live index is in a source's range but has no record.
        SourcesChangedError: the group must not be compacted (any more).
        GroupEmptyError: nothing in the group is live any more.
        GroupTooLargeError: more is live than one segment may hold.
        VerificationFailedError: the output did not read back equal.
        RewriteStoppedError: `pace` said so, which is asked before each read and each write.
        LogNotWritableError, StoreIOError: permission, no space, input/output error.
    """
    started = time.monotonic()
    key = group_key(sources)
    with storage_errors(directory):
        if ranges is None:
            ranges = group_ranges(open_log(directory, snapshot_index=snapshot_index, live=live), sources, live)
        if len(ranges.spans) != len(sources):
            raise InvalidGroupError(f"{len(sources)} sources but {len(ranges.spans)} ranges")
        picked = [
            _pick(directory / name, span, live, pace, known=(known or {}).get(name), expected=identity)
            for name, span, identity in zip(sources, ranges.spans, ranges.identities, strict=True)
        ]
        # Before the copy, so that a group that is too large costs no write.
        _check_size(picked, limits, key=key)
        carried = _carried(directory, sources, ranges.carried, known or {})
        path = directory / partial_name(key, job=job, token=token)
        copied, after, output = _write_partial(path, picked, pace, buffers or Buffers())
        before = copied.content
        return RewrittenGroup(
            sources=tuple(sources),
            identities=tuple(p.segment.identity for p in picked),
            partial=path.name,
            identity=output.identity,
            entries=before.entries,
            live_bytes=before.payload_bytes,
            bytes_before=sum(s.identity.size for s in (*(p.segment for p in picked), *carried.values())),
            bytes_after=output.identity.size,
            fingerprint_before=before.hexdigest(),
            fingerprint_after=after,
            seconds=time.monotonic() - started,
            mark=output.mark,
            marks=tuple(p.segment.mark for p in picked),
            carried=tuple(carried),
            carried_identities=tuple(segment.identity for segment in carried.values()),
            carried_marks=tuple(segment.mark for segment in carried.values()),
        )


def _carried(
    directory: Path, sources: Sequence[str], dead: Sequence[DeadSegment], known: Mapping[str, SegmentIndex]
) -> dict[str, SegmentIndex]:
    """The segments between the sources that are still there. SourcesChangedError for one that was not proved dead."""
    proved = {segment.name: segment.identity for segment in dead}
    found: dict[str, SegmentIndex] = {}
    for name in regular_segments(directory):
        if not sources[0] < name < sources[-1] or name in sources:
            continue
        identity = regular_identity(directory / name)
        if identity is None:
            continue
        looked = known.get(name)
        segment = looked if looked is not None and looked.identity == identity else _read(directory / name)
        if segment.identity != proved.get(name):
            raise SourcesChangedError(f"{directory / name}: lies between the sources, and may hold something live")
        found[name] = segment
    return found


def _pick(
    path: Path,
    span: IndexRange | None,
    live: LiveSet,
    pace: Pace,
    *,
    known: SegmentIndex | None,
    expected: FileIdentity,
) -> _Picked:
    """The records to copy; MissingLiveIndexError when one that must survive is missing (docs/design/segment-commit.md,
    W7).
    """
    if known is not None and known.identity == expected and regular_identity(path) == expected:
        segment = known
    else:
        segment = _read(path)
        pace(segment.data_start)
    if segment.identity != expected:
        raise SourcesChangedError(f"{path}: no longer the file that was read")
    if span is None:
        return _Picked(segment, np.empty(0, dtype=np.int64))
    first, last = span
    wanted = live.clip(first, last)
    rows = np.flatnonzero(segment.effective & wanted.mask(segment.idx))
    if rows.size != len(wanted):
        have = LiveSet.from_indexes(segment.idx[rows])
        missing = next(index for index in wanted if index not in have)
        raise MissingLiveIndexError(str(path), missing)
    return _Picked(segment, rows)


def _read(path: Path) -> SegmentIndex:
    try:
        return read_segment(path)
    except (FileNotFoundError, SegmentIsLinkError) as error:
        raise SourcesChangedError(f"{path}: not a segment of its own any more") from error


def _check_size(picked: list[_Picked], limits: SegmentLimits, *, key: str) -> None:
    entries = sum(p.rows.size for p in picked)
    size = sum(int(p.segment.length[p.rows].sum(dtype=np.uint64)) for p in picked)
    if not entries:
        raise GroupEmptyError(f"{picked[0].segment.path.parent}: nothing in group {key} is live any more")
    if entries > limits.max_entries or size > limits.max_bytes:
        raise GroupTooLargeError(
            f"{picked[0].segment.path.parent}: group {key} holds {entries} live entries of {size} bytes, more than "
            f"{limits.max_entries} entries or {limits.max_bytes} bytes"
        )


def _write_partial(path: Path, picked: list[_Picked], pace: Pace, buffers: Buffers) -> tuple[Copied, str, SegmentIndex]:
    """Write, sync and verify: (what was copied, the fingerprint of what was read back, the output's index).

    The file is gone again unless all of it succeeded.
    """
    with partial_file(path, like=picked[0].segment.path) as fd:
        copied = Copied(fd, pace)
        copied.head(_head(picked))
        for batch in picked_batches(((p.segment, p.rows) for p in picked), pace, buffers):
            copied.batch(batch, idx=batch.segment.idx[batch.rows], term=batch.segment.term[batch.rows])
        fs.sync(fd)
        identity = FileIdentity.of(os.fstat(fd))
        output, after = read_back(path, copied, identity, buffers)
    return copied, after, output


def _head(picked: list[_Picked]) -> list[bytes]:
    """Header and index area of the output."""
    idx = np.concatenate([p.segment.idx[p.rows] for p in picked])
    if np.any(idx[1:] <= idx[:-1]):
        raise InvalidGroupError(f"{picked[0].segment.path.parent}: the sources' index ranges overlap")
    return full_head(
        idx=idx,
        term=np.concatenate([p.segment.term[p.rows] for p in picked]),
        length=np.concatenate([p.segment.length[p.rows] for p in picked]),
        crc=np.concatenate([p.segment.crc[p.rows] for p in picked]),
    )
