"""The last segment of a log as a power failure left it (docs/design/segment-wal.md#torn-segments).

Payloads and index slots of a flush are synced together, so until then any part of them may reach the disk: a slot
without its payload, half a slot, a header cut off. All of it is still in the write-ahead log, whose file goes only
after the sync. But half a slot may name a smaller index, which would hide everything above it: so it is cleared before
the segments are read.
"""

from __future__ import annotations

import os
from pathlib import Path

from compaction.segments.directory import fs
from compaction.segments.directory.listing import regular_segments
from compaction.segments.errors import CorruptSegmentError
from compaction.segments.format.codec import read_segment
from compaction.segments.memtable.seq import Seq
from compaction.segments.model import HEADER_BYTES, SegmentIndex, torn_from
from compaction.segments.system.cut import LogCut
from compaction.segments.system.row import LogRow


def repair_last(directory: Path, *, row: LogRow, in_wal: Seq, covered: bool, cut: LogCut | None = None) -> int:
    """Clear the torn records at the end of a log's last segment, durably; returns how many slots were cleared.

    `covered`: a write-ahead log file holds records of the log, so a flush may have been under way; `in_wal`: those of
    them that the log needs. Entries from the `cut` on are no part of the log.
    CorruptSegmentError: no flush was under way, or an entry at or behind the torn slot is in no write-ahead log;
    nothing was changed. OSError passes through.
    """
    names = regular_segments(directory)
    if not names:
        return 0
    path = directory / names[-1]
    if os.path.getsize(path) < HEADER_BYTES:
        if not covered:
            return 0
        # The header is synced before anything follows it, so there is nothing else.
        fs.unlink(path)
        fs.sync_directory(directory)
        return 0
    segment = read_segment(path)
    first = torn_from(segment)
    if first is None and not segment.is_holed:
        return 0
    if not covered:
        raise CorruptSegmentError(str(path), segment.damage)
    first = segment.count if first is None else first
    # Of a slot that is whole the index is right, whether its payload is there or not: a flush wrote it, so it is in the
    # write-ahead log. Half a slot has no length, or no offset.
    whole = (segment.offset[first:] >= segment.data_start) & (segment.length[first:] > 0)
    # Behind an empty slot as well: the next appends would fill the hole, and bring old records back.
    found = [*segment.idx[first:][whole].tolist(), *segment.behind_hole.tolist()]
    behind = row.needed(Seq.from_indexes(found))
    if cut is not None:
        behind = behind.limit(cut.first - 1) if cut.first else Seq()
    if behind.first is not None and (in_wal.first is None or behind.first < in_wal.first):
        offset = HEADER_BYTES + first * segment.slot_bytes
        reason = f"the index slot at offset {offset} is damaged, and index {behind.first} behind it is only here"
        raise CorruptSegmentError(str(path), reason)
    _clear(path, segment, first)
    return segment.count - first + segment.behind_hole.size


def _clear(path: Path, segment: SegmentIndex, first: int) -> None:
    """Zeros from a slot to the end of the index area: whatever lies behind a torn slot was of the same flush."""
    fd = fs.reopen(path)
    try:
        begin = HEADER_BYTES + first * segment.slot_bytes
        fs.write_at(fd, bytes(segment.data_start - begin), begin)
        fs.sync(fd)
    finally:
        os.close(fd)
