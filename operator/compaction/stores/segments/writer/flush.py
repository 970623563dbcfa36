"""Moves what one log has in a rolled write-ahead log file into its segments (docs/design/segment-wal.md#flush)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.exceptions import EntryMissingError, MissingSegmentHeaderError
from compaction.stores.segments.directory.listing import regular_segments
from compaction.stores.segments.format.codec import read_segment
from compaction.stores.segments.format.writer import LogWriter
from compaction.stores.segments.memtable.seq import Seq
from compaction.stores.segments.memtable.table import MemTable
from compaction.stores.segments.model import DEFAULT_MAX_COUNT, DEFAULT_MAX_SIZE
from compaction.stores.segments.wal.write import WalClient
from compaction.stores.segments.writer.selection import select

DEAD_BYTES: Final = 1024
"""A dead last segment with more data than this is left, so that it can be deleted."""
HIDING: Final = b"\x83j"
"""The payload of an entry that is written for its index alone: the external term of an empty list."""
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
    kept = select([indexes for _, indexes in pieces], row)
    if not client.directory.is_dir():
        return 0
    entries = 0
    if any(kept):
        with LogWriter(client.directory, max_count=limits.max_count, max_size=limits.max_size) as writer:
            if last_is_dead(client.directory, row.smallest_live):
                writer.roll()
            for (table, _), indexes in zip(pieces, kept, strict=True):
                for chunk in indexes.chunks(_CHUNK):
                    entries += _append(client, table, Seq.from_indexes(chunk), writer)
    if not entries:
        _keep_hidden(client, limits)
    return entries


def _keep_hidden(client: WalClient, limits: NewSegments) -> None:
    """Nothing of the file is needed, but it may have overwritten what segments hold above the snapshot, which its
    record alone hides. So an entry takes its place that no reader gets: one of the snapshot's index.
    """
    row = client.row
    if row.snapshot_index is None or row.needs(row.snapshot_index):
        return
    if _last_index(client.directory) > row.snapshot_index:
        with LogWriter(client.directory, max_count=limits.max_count, max_size=limits.max_size) as writer:
            writer.append(row.snapshot_index, row.snapshot_term, HIDING)


def _last_index(directory: Path) -> int:
    """Where the segments of a log end; -1 without any entry."""
    for name in reversed(regular_segments(directory)):
        with suppress(MissingSegmentHeaderError):
            segment = read_segment(directory / name)
            if segment.count:
                return int(segment.idx[-1])
    return -1


def _append(client: WalClient, table: MemTable, indexes: Seq, writer: LogWriter) -> int:
    """A snapshot may have been taken since the flush began: then less is needed, and the table holds less."""
    entries = 0
    for index in client.row.needed(indexes):
        entry = table.get(index)
        if entry is not None:
            writer.append(entry.index, entry.term, entry.payload)
            entries += 1
        elif client.row.needs(index):
            raise EntryMissingError(str(client.directory), index)
    return entries


def last_is_dead(directory: Path, smallest_live: int) -> bool:
    """Whether the last segment holds nothing but entries below the smallest live index, and enough of them to leave."""
    names = regular_segments(directory)
    if not names:
        return False
    try:
        segment = read_segment(directory / names[-1])
    except MissingSegmentHeaderError:
        return False
    return segment.data_bytes > DEAD_BYTES and int(segment.idx.max()) < smallest_live
