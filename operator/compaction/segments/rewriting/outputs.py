"""A new segment that a rewrite makes under an attempt-unique name: its file, its index area, and its reading back.

Version 2 and exactly full, so that no owner ever appends to it (docs/design/segment-files.md#appending). Whatever goes
wrong before it was read back equal, the file is gone again.

The proof that it reads back has two halves. Every byte of the file is read again, and their XXH3-128 is that of the
bytes that were written, so the payloads are those whose CRCs were checked when they were copied. And the index, as it
was read, gives those payloads, one behind the other up to the end of the file, to the indexes and terms that they were
copied of: the fingerprint made from it is the one made while copying.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from compaction.segments.directory import fs
from compaction.segments.directory.access import inherit_access
from compaction.segments.errors import CorruptSegmentError, SourcesChangedError, VerificationFailedError
from compaction.segments.format.codec import CURRENT_VERSION, encode_header, encode_records, read_segment
from compaction.segments.model import FileIdentity, SegmentIndex, U32Array, U64Array, data_start
from compaction.segments.reading.buffers import Buffers
from compaction.segments.reading.reader import EntryBatch, EntryFingerprint
from compaction.storage.pace import Pace


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
    """What was written to an output so far: the bytes, and the entries that they are copies of.

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
        self.pace(sum(map(len, parts)))
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
    output, digest = _read(path, identity, copied.pace, buffers)
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


def _read(path: Path, identity: FileIdentity, pace: Pace, buffers: Buffers) -> tuple[SegmentIndex, bytes]:
    """The index of the output, and the XXH3-128 of its bytes up to its end."""
    try:
        output = read_segment(path)
    except CorruptSegmentError as error:
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
    """Whether the payloads lie one behind the other, from the index area to the end of the file."""
    ends = output.offset + output.length
    starts = np.concatenate([np.full(1, output.data_start, dtype=np.uint64), ends[:-1]])
    return np.array_equal(output.offset, starts) and output.end_of_data == output.identity.size


def _has_crcs(output: SegmentIndex, crc: U32Array) -> bool:
    """Whether the index stores these CRCs; 0 means unchecked."""
    return not np.any((output.crc != crc) & (output.crc != 0))
