"""Moves what one log has in a rolled write-ahead log file into its segments (docs/design/segment-wal.md#flush)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.segments.directory.listing import highest_segment, regular_segments
from compaction.segments.errors import EntryMissingError, MissingSegmentHeaderError
from compaction.segments.format.codec import read_segment
from compaction.segments.format.writer import LogWriter
from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import MemTable
from compaction.segments.model import DEFAULT_MAX_COUNT, DEFAULT_MAX_SIZE, SegmentIndex, segment_number
from compaction.segments.wal.write import WalClient
from compaction.segments.writer.selection import select

DEAD_BYTES: Final = 1024
"""A dead last segment with more data than this is left, so that it can be deleted."""
_CHUNK: Final = 1024
"""Entries between two readings of the log's row: less than any segment holds."""


@dataclass(frozen=True, slots=True)
class NewSegments:
    """Limits of the segments that are created: entries, and bytes of payload."""

    max_count: int = DEFAULT_MAX_COUNT
    max_size: int = DEFAULT_MAX_SIZE


def flush(client: WalClient, pieces: Sequence[tuple[MemTable, Seq]], limits: NewSegments) -> int:
    """Append what the log needs of `pieces` to its segments, synced with their directory; returns how many entries.

    A log whose directory is gone was deleted: nothing is written. EntryMissingError: an entry that the log needs is not
    in its mem table. CorruptSegmentError: the last segment gives no place to continue. OSError passes through.
    """
    row = client.row
    last = _last_segment(client.directory)
    kept = select([indexes for _, indexes in pieces], row, None if last is None else last.last)
    if not any(kept) or not client.directory.is_dir():
        return 0
    entries = 0
    with LogWriter(client.directory, max_count=limits.max_count, max_size=limits.max_size) as writer:
        if last is not None and _is_left(last, row.smallest_live):
            writer.roll()
        for (table, _), indexes in zip(pieces, kept, strict=True):
            written = 0
            for chunk in indexes.chunks(_CHUNK):
                written += _append(client, table, chunk, writer, begun=written > 0)
            entries += written
    return entries


def _append(client: WalClient, table: MemTable, indexes: Sequence[int], writer: LogWriter, *, begun: bool) -> int:
    """A snapshot may have been taken since the flush began: then less is needed, and the table holds less. The first
    entry that it holds is written all the same: what stands behind it in segments must not be there again.
    """
    entries, row = 0, client.row
    for index in indexes:
        entry = table.get(index)
        if entry is not None and (row.needs(index) or not (begun or entries)):
            writer.append(entry.index, entry.term, entry.payload)
            entries += 1
        elif entry is None and client.row.needs(index):
            raise EntryMissingError(str(client.directory), index)
    return entries


def _is_left(last: SegmentIndex, smallest_live: int) -> bool:
    """Whether the last segment holds nothing but entries below the smallest live index, and enough of them to leave."""
    is_dead = last.data_bytes > DEAD_BYTES and int(last.idx.max()) < smallest_live
    return is_dead and segment_number(last.path.name) == highest_segment(last.path.parent)


def _last_segment(directory: Path) -> SegmentIndex | None:
    """The last segment that holds entries; None without any."""
    try:
        names = regular_segments(directory)
    except FileNotFoundError:
        return None
    for name in reversed(names):
        with suppress(MissingSegmentHeaderError):
            segment = read_segment(directory / name)
            if segment.count:
                return segment
    return None
