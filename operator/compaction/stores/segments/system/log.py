"""One log of a system: appended to, read, truncated, compacted by snapshots with live indexes.

Several threads may use a log at once; writes of one log belong in one thread, or their order is chance. A future of a
write completes when the write is durable, in the write-ahead log's thread: a callback must return soon. In asyncio,
`await asyncio.wrap_future(log.append(entries))`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar

from compaction.exceptions import EntryMissingError, LogClosedError, SegmentLogError
from compaction.stores.segments.memtable.seq import Seq
from compaction.stores.segments.memtable.table import LogEntry, MemTable
from compaction.stores.segments.memtable.tables import MemTables
from compaction.stores.segments.model import MAX_INDEX
from compaction.stores.segments.snapshot.directories import LogSnapshot
from compaction.stores.segments.snapshot.seq import LiveSet
from compaction.stores.segments.system import rules
from compaction.stores.segments.system.pending import Acknowledgement, LogPosition, Pending, complete, fail
from compaction.stores.segments.system.row import LogRow
from compaction.stores.segments.system.segments import SegmentView
from compaction.stores.segments.system.status import LogStatus
from compaction.stores.segments.wal.queue import WalQueue
from compaction.stores.segments.wal.write import WalWrite, Written

T = TypeVar("T")
_PAGE: Final = 1024
"""Entries that `fold` reads at once."""


class Log:
    """Created by its `LogSystem`; what the write-ahead log and the segment writer see of it is `WalClient`."""

    def __init__(self, uid: str, directory: Path, *, row: LogRow, snapshot: LogSnapshot | None) -> None:
        """Without entries: the recovery fills the mem tables, `refresh` reads the segments."""
        self.uid = uid.encode()
        self.name = uid
        self.directory = directory
        self.row = row
        self.newest_snapshot = snapshot
        self.tables = MemTables()
        self._lock = threading.RLock()
        self._view = SegmentView(directory, {}, ())
        self._pending = Pending()
        self._last: LogPosition | None = None
        self._written: LogPosition | None = None
        self._truncated: int | None = None
        self._queue: WalQueue | None = None
        self._snapshots: Callable[[Log, rules.SnapshotRequest], Future[LogSnapshot]] | None = None
        self._error: SegmentLogError | None = None

    def start(
        self, queue: WalQueue, snapshots: Callable[[Log, rules.SnapshotRequest], Future[LogSnapshot]]
    ) -> LogPosition | None:
        """Begin to take writes, after the recovery; returns the last entry, all of it durable."""
        with self._lock:
            last = self.tables.last
            if last is None:
                ends = (self._view.last, self.row.snapshot_index)
                last = max((end for end in ends if end is not None), default=None)
            elif self.row.snapshot_index is not None:
                last = max(last, self.row.snapshot_index)
            self._last = None if last is None else LogPosition(last, self._term(last))
            self._written = self._last
            self._queue, self._snapshots = queue, snapshots
            return self._last

    def append(self, entries: Sequence[LogEntry], *, timeout: float | None = None) -> Acknowledgement:
        """Add entries with consecutive indexes; the first follows the log's last one, or overwrites from there on.

        Waits while the queue before the write-ahead log is full. The future completes with the last entry's position.

        Raises:
            InvalidEntryError: an entry that no segment can hold, or none at all.
            LogGapError: the first index leaves a gap. WriteRefusedError: it is at or below the snapshot.
            LogBusyError: the queue had no room within `timeout` seconds; nothing was added.
            LogClosedError, WalFailedError: nothing is written any more.
        """
        size = rules.check_entries(entries)
        return self._write(entries, size, timeout, lambda: self._check_append(entries[0].index))

    def write_sparse(self, entry: LogEntry, previous: int | None, *, timeout: float | None = None) -> Acknowledgement:
        """Add one entry that may leave a gap behind `previous`, the log's last index (None: the log is empty).

        WriteRefusedError: `previous` is not the last index, or entries that were truncated would be in the gap. Other
        errors as `append`.
        """
        size = rules.check_entries([entry])

        def check() -> None:
            last = self._last.index if self._last is not None else None
            rules.check_sparse(self.directory, entry.index, previous, last=last, truncated=self._truncated)

        return self._write([entry], size, timeout, check)

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on. It is durable with the next write only: files hold no record of it.

        WriteRefusedError: below the snapshot's index + 1.
        """
        with self._lock:
            self._check_open()
            rules.check_truncate(self.directory, index, self.row)
            if self._last is None or self._last.index < index:
                return
            self.tables.truncate(index)
            self._truncated = index if self._truncated is None else min(self._truncated, index)
            self._last = self._before(index)
            if self._written is not None and self._written.index >= index:
                self._written = self._last

    def snapshot(self, index: int, term: int, state: bytes, live: LiveSet) -> Future[LogSnapshot]:
        """Write a snapshot in the background: below it, only the `live` entries are kept from then on.

        The future completes when the snapshot is durable and in force. WriteRefusedError (here or in the future): its
        index is not above the current snapshot's, not yet written, or an index is live that was not before.
        """
        request = rules.SnapshotRequest(index, term, state, live)
        with self._lock:
            self._check_open()
            rules.check_snapshot(self.directory, request, self.row, self._written)
            if self._snapshots is None:
                raise LogClosedError(str(self.directory), "the log is not started")
            return self._snapshots(self, request)

    def _write(
        self, entries: Sequence[LogEntry], size: int, timeout: float | None, check: Callable[[], None]
    ) -> Acknowledgement:
        queue = self._open_queue()
        queue.reserve(size, timeout=timeout)
        with self._lock:
            try:
                check()
                self._check_open()
            except BaseException:
                queue.release(size)
                raise
            return self._insert(queue, entries, size)

    def _insert(self, queue: WalQueue, entries: Sequence[LogEntry], size: int) -> Acknowledgement:
        """Into the mem table and the queue, as one step under the lock: so both hold the same order."""
        previous = self._last.index if self._last is not None and self._last.index < entries[0].index else None
        if previous is None and self._last is not None:
            previous = entries[0].index - 1
        table = self.tables.insert_run(entries, size)
        if self._truncated is not None and entries[0].index <= self._truncated:
            self._truncated = None
        last = entries[-1]
        self._last = LogPosition(last.index, last.term)
        if self._written is not None and self._written.index >= entries[0].index:
            self._written = self._before(entries[0].index)
        future = self._pending.add(table, self._last)
        try:
            queue.put_reserved(WalWrite(self, table, previous, entries, size))
        except SegmentLogError as error:
            # Stopped in this moment: the entries stay unacknowledged, as those whose batch failed.
            self.failed(error)
        return future

    def read(self, indexes: Iterable[int]) -> list[LogEntry]:
        """The entries of these indexes, ascending; dead ones, and indexes beyond the last, are left out.

        Raises:
            EntryMissingError: an entry that the log must hold is not there.
            CorruptEntryError: a payload in a segment is damaged; names file, index and offset.
        """
        wanted = sorted(set(indexes))
        with self._lock:
            row, view = self.row, self._view
            last = self._last.index if self._last is not None else -1
            wanted = [index for index in wanted if 0 <= index <= last and row.needs(index)]
            found = {index: entry for index in wanted if (entry := self.tables.lookup(index)) is not None}
            bound = self.tables.visible().first
        rest = [index for index in wanted if index not in found and (bound is None or index < bound)]
        found |= view.read(rest)
        for index in wanted:
            if index not in found and self._must_hold(index, row):
                raise EntryMissingError(str(self.directory), index)
        return [found[index] for index in sorted(found)]

    def fold(self, function: Callable[[T, LogEntry], T], initial: T, *, first: int = 0) -> T:
        """`function` over all entries that the log needs, ascending from index `first`; errors as `read`."""
        result = initial
        for page in self._pages(first):
            for entry in self.read(page):
                result = function(result, entry)
        return result

    def indexes(self, low: int = 0, high: int = MAX_INDEX) -> Seq:
        """Which entries in low..high the log holds and needs."""
        with self._lock:
            row, view, in_memory = self.row, self._view, self.tables.visible()
            last = self._last.index if self._last is not None else -1
        high = min(high, last)
        below = high if in_memory.first is None else min(high, in_memory.first - 1)
        stored = Seq.from_indexes(view.indexes(low, below).tolist()) if below >= low else Seq()
        return row.needed(in_memory.within(low, high).over(stored))

    @property
    def last(self) -> LogPosition | None:
        """The last entry, written or not."""
        return self._last

    @property
    def last_written(self) -> LogPosition | None:
        """The last entry up to which everything is durable."""
        return self._written

    @property
    def state(self) -> LogStatus:
        with self._lock:
            return LogStatus(
                uid=self.name,
                last=self._last,
                last_written=self._written,
                row=self.row,
                segments=len(self._view.segments),
                segment_bytes=self._view.payload_bytes,
                unflushed=len(self.tables.visible()),
                unflushed_bytes=self.tables.payload_bytes,
            )

    def close(self) -> None:
        """Take no more writes; what was appended is still written and acknowledged."""
        with self._lock:
            self._error = self._error or LogClosedError(str(self.directory), "the log is closed")

    def _pages(self, first: int) -> Iterator[list[int]]:
        yield from self.indexes(first).chunks(_PAGE)

    def _must_hold(self, index: int, row: LogRow) -> bool:
        """Whether an entry that was not found is lost. After a sparse write, an index above the snapshot may be a gap:
        only what is live is certain to have been written.
        """
        return row.live is not None and row.snapshot_index is not None and index <= row.snapshot_index

    # --- what the write-ahead log, the segment writer and the snapshots say ---------------------------------------

    def written(self, marks: Sequence[Written]) -> None:
        """See `WalClient`."""
        with self._lock:
            for mark in marks:
                if self._last is None:
                    continue
                # What a newer table hides, or a truncation dropped, is written as well, and no part of the log.
                index = mark.table.visible.limit(min(mark.index, self._last.index)).last
                if index is not None and (self._written is None or index > self._written.index):
                    self._written = self._last if index == self._last.index else LogPosition(index, self._term(index))
            done = self._pending.take(marks)
        complete(done)

    def resend(self, after: int) -> None:
        """See `WalClient`: everything above `after`, range by range, each with its previous index."""
        with self._lock:
            if self._queue is None or self._error is not None:
                return
            previous = after
            for table in self.tables.tables:
                for low, high in table.visible.floor(after + 1).ranges:
                    found = [table.lookup(index) for index in range(low, high + 1)]
                    entries = [entry for entry in found if entry is not None]
                    size = sum(len(entry.payload) for entry in entries)
                    self._queue.put(WalWrite(self, table, previous, entries, size))
                    previous = high

    def failed(self, error: SegmentLogError) -> None:
        """See `WalClient`."""
        with self._lock:
            self._error = error
            futures = self._pending.take_all()
        fail(futures, error)

    def flushed(self, pieces: Sequence[tuple[MemTable, Seq]]) -> None:
        """See `WalClient`."""
        view = self._view.refreshed()
        with self._lock:
            self._view = view
            for table, indexes in pieces:
                self.tables.flushed(table, indexes)

    def refresh(self) -> None:
        """Read the segments as they are now; errors as `SegmentView.of`."""
        view = self._view.refreshed()
        with self._lock:
            self._view = view

    def publish(self, snapshot: LogSnapshot) -> None:
        """A snapshot is durable: from here on the log needs less. Replaces the row as one value."""
        with self._lock:
            self.newest_snapshot = snapshot
            self.row = LogRow.of(snapshot)
            self.tables.remove_below(self.row.smallest_live)

    def check_snapshot(self, request: rules.SnapshotRequest) -> None:
        """WriteRefusedError: the request, made earlier, does not fit what the log is now."""
        with self._lock:
            rules.check_snapshot(self.directory, request, self.row, self._written)

    def _check_append(self, first: int) -> None:
        rules.check_append(
            self.directory, first, last=self._last.index if self._last is not None else None, row=self.row
        )

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _open_queue(self) -> WalQueue:
        # Without the lock: it is checked again under it.
        self._check_open()
        queue = self._queue
        if queue is None:
            raise LogClosedError(str(self.directory), "the log is not started")
        return queue

    def _before(self, index: int) -> LogPosition | None:
        """The log's last entry below `index`."""
        below = self.tables.visible().limit(index - 1).last if index else None
        ends = [below, self.row.snapshot_index]
        bound = self.tables.visible().first
        if high := min(index, bound if bound is not None else index):
            ends += self._view.indexes(0, high - 1)[-1:].tolist()
        last = max((end for end in ends if end is not None), default=None)
        return None if last is None else LogPosition(last, self._term(last))

    def _term(self, index: int) -> int:
        entry = self.tables.lookup(index)
        if entry is not None:
            return entry.term
        if index == self.row.snapshot_index:
            return self.row.snapshot_term
        term = self._view.term(index)
        if term is None:
            raise EntryMissingError(str(self.directory), index)
        return term
