"""A new segment that a rewrite makes under an attempt-unique name: its file, its index area, and its reading back.

Version 2 and exactly full, so that nobody ever appends to it (research/ra.md §3.3). Whatever goes wrong before it was
read back equal, the file is gone again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from compaction.exceptions import CorruptEntryError, VerificationFailedError
from compaction.stores.segments import fs
from compaction.stores.segments.access import inherit_access
from compaction.stores.segments.codec import CURRENT_VERSION, encode_header, encode_records, read_segment
from compaction.stores.segments.model import FileIdentity, SegmentIndex, U32Array, U64Array, data_start
from compaction.stores.segments.pace import Pace
from compaction.stores.segments.reader import Fingerprint, picked_batches


@contextmanager
def partial_file(path: Path, *, like: Path) -> Iterator[int]:
    """The open file `path`, with the owner and mode of `like`; removed again when the block raises."""
    # A leftover under this name is of this very attempt, and its writer is dead or will find its file gone.
    fs.unlink_if_present(path)
    fd = fs.create(path, mode=0o600)
    kept = False
    try:
        inherit_access(fd, like)
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


def read_back(path: Path, before: Fingerprint, identity: FileIdentity, pace: Pace) -> tuple[SegmentIndex, str]:
    """Read the output through the ordinary reader and compare: its index, and the fingerprint of what was read.

    Raises:
        VerificationFailedError: it is not the file that was written, not full, or not equal to `before`.
    """
    output = read_segment(path)
    pace(output.data_start)
    after = Fingerprint()
    try:
        for batch in picked_batches([(output, np.arange(output.count, dtype=np.int64))], pace):
            after.update_batch(batch)
    except CorruptEntryError as error:
        raise VerificationFailedError(f"{path}: the output does not read back: {error}") from error
    full = output.count == output.max_count == before.entries and output.end_of_data == identity.size
    if not full or output.identity != identity or after.hexdigest() != before.hexdigest():
        raise VerificationFailedError(
            f"{path}: {after.entries} entries read back with fingerprint {after.hexdigest()[:16]}, "
            f"{before.entries} copied with {before.hexdigest()[:16]}"
        )
    return output, after.hexdigest()
