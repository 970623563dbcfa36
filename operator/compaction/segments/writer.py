"""The segment writer of a system: moves entries of rolled write-ahead log files into segments, oldest file first."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compaction.core.collecting import no_collection
from compaction.segments.directory import fs
from compaction.segments.directory.fs import highest_segment, regular_segments
from compaction.segments.directory.lock import inherit_access
from compaction.segments.errors import (
    CorruptSegmentError,
    EntryMissingError,
    FlushFailedError,
    MissingSegmentHeaderError,
    SegmentLogError,
)
from compaction.segments.format.segment_file import LogWriter, read_segment
from compaction.segments.memtable import MemTable, Seq
from compaction.segments.model import (
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_SIZE,
    HEADER_BYTES,
    SegmentIndex,
    segment_number,
    torn_from,
)
from compaction.segments.system.content import LogCut
from compaction.segments.system.rules import LogRow, select
from compaction.segments.wal.codec import HEADER, HELD_WRITER, RecordEncoder
from compaction.segments.wal.files import TEMPORARY_SUFFIX, WalEnd, wal_number
from compaction.segments.wal.wal_log import RolledFile, WalClient
from compaction.segments.wal.wal_reader import WalRun, read_wal

# The last segment of a log as a power failure left it (docs/design/segment-wal.md#torn-segments).
#
# Payloads and index slots of a flush are synced together, so until then any part of them may reach the disk: a slot
# without its payload, half a slot, a header cut off. All of it is still in the write-ahead log, whose file goes only
# after the sync. But half a slot may name a smaller index, which would hide everything above it: so it is cleared
# before the segments are read.


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


# Moves what one log has in a rolled write-ahead log file into its segments (docs/design/segment-wal.md#flush).

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
    """Return whether the last segment holds only entries below the smallest live index, and enough of them to leave."""
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


# The segment writer of a system: one thread that empties rolled write-ahead log files, oldest first.


class SegmentWriter:
    """Accepts rolled files and deletes each once everything that its logs need of it is durably in segments.

    A file is deleted, and its name durably gone, before the next one is begun: else a crash might leave an older file
    without a newer one, whose entries the older ones would then overwrite. For the same reason a file that holds
    records of a log that could not be opened is replaced by one with these records alone.
    """

    def __init__(self, directory: Path, *, limits: NewSegments, max_waiting: int) -> None:
        """`max_waiting`: rolled files that wait before `accept` does."""
        self.directory = directory
        self._limits = limits
        self._max_waiting = max_waiting
        self._waiting: deque[RolledFile] = deque()
        self._held: list[RolledFile] = []
        self._busy = False
        self._closed = False
        self._error: SegmentLogError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"segments-{directory.name}", daemon=True)
        self._start()

    def _start(self) -> None:
        """A simulation takes the thread's steps by itself."""
        self._thread.start()

    def accept(self, rolled: RolledFile, *, wait: bool = True) -> None:
        """Hand a file over; waits while too many wait. FlushFailedError when the segment writer has stopped."""
        with self._changed:
            while wait and len(self._waiting) >= self._max_waiting and self._error is None and not self._closed:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._waiting.append(rolled)
            self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until every accepted file is gone; whether that happened within `timeout` seconds.

        FlushFailedError when it never will.
        """
        with self._changed:
            idle = self._changed.wait_for(lambda: self._error or not (self._waiting or self._busy), timeout)
            if self._error is not None:
                raise self._error
            return bool(idle)

    def close(self) -> None:
        """Finish the file that is being emptied, and stop; others stay and are found when the system is opened."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def left(self) -> list[RolledFile] | None:
        """Once it is closed, the files that are there; None if it failed: then one may be half-way gone."""
        return None if self._error is not None else [*self._held, *self._waiting]

    def _run(self) -> None:
        while (rolled := self._next()) is not None:
            try:
                self._empty(rolled)
            except BaseException as error:  # noqa: BLE001 - whatever ends this thread, no caller may wait for ever
                self._fail(rolled, error)
                return
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> RolledFile | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            self._busy = True
            self._changed.notify_all()
            return self._waiting.popleft()

    def _empty(self, rolled: RolledFile) -> None:
        for client, pieces in rolled.pieces.items():
            flush(client, pieces, self._limits)
            client.flushed(pieces, wal_number(rolled.path.name))
        if not rolled.held:
            fs.unlink(rolled.path)
        elif rolled.is_held and rolled.writers == rolled.held:
            self._held.append(rolled)
        else:
            self._held.append(replace(rolled, pieces={}, end=keep_only(rolled.path, rolled.held)))
        fs.sync_directory(self.directory)

    def _fail(self, rolled: RolledFile, error: BaseException) -> None:
        with self._changed:
            self._error = FlushFailedError(str(rolled.path), str(error) or type(error).__name__)
            self._busy = False
            self._changed.notify_all()


def keep_only(path: Path, logs: Set[bytes]) -> WalEnd:
    """Replace a file by one with the records of these logs alone, in their order, behind one that says so. It keeps its
    number, which a cut may name. The new name is durable once the directory is synced, which the caller does.
    """
    encoder = RecordEncoder()
    said = b"the other logs' records of this file are in segments: " + b" ".join(sorted(logs))
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    fs.unlink_if_present(temporary)
    fd = fs.create(temporary)
    try:
        inherit_access(fd, path)
        fs.write(fd, [HEADER, encoder.head(HELD_WRITER, 0, 0, said), said])
        with read_wal(path) as reader, no_collection():
            for run in reader.runs():
                if run.writer in logs:
                    fs.write(fd, _records(encoder, run))
        fs.sync(fd)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    fs.rename(temporary, path)
    return WalEnd(size, size)


def _records(encoder: RecordEncoder, run: WalRun) -> list[bytes]:
    """The first record of a run may introduce its writer, and may truncate."""
    (index, term, payload), rest = run.entries[0], run.entries[1:]
    parts = [encoder.head(run.writer, index, term, payload, truncate=run.truncate), payload]
    for head, entry in zip(encoder.heads(run.writer, rest), rest, strict=True):
        parts += (head, entry.payload)
    return parts
