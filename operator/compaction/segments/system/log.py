"""One log of a system: appended to, read, truncated, compacted by snapshots with live indexes, or replaced by one.

Several threads may use a log at once; writes of one log belong in one thread, or their order is chance. A future of a
write completes when the write is durable, in the write-ahead log's thread: a callback must return soon. In asyncio,
`await asyncio.wrap_future(log.append(entries))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from compaction.segments.directory.fs import storage_errors
from compaction.segments.errors import LogClosedError, SegmentLogError, WriteRefusedError
from compaction.segments.memtable import LogEntry, LogPosition, MemTable, Seq
from compaction.segments.snapshot.directories import LogSnapshot, SnapshotOrigin
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import rules
from compaction.segments.system.content import (
    LogContent,
    LogCut,
    origin_for,
    publish,
    remove_cut,
    write_cut,
    write_partial,
)
from compaction.segments.system.installs import Acknowledgement, Install, LogServices, Pending, complete, fail
from compaction.segments.system.rules import LogRow
from compaction.segments.system.segment_changes import OnChange
from compaction.segments.wal.wal_log import WalQueue, WalWrite, WrittenBatch


class Log(LogContent):
    """Created by its `LogSystem`; what the write-ahead log and the segment writer see of it is `WalClient`."""

    def __init__(
        self,
        uid: str,
        directory: Path,
        *,
        row: LogRow,
        snapshot: LogSnapshot | None,
        cut: LogCut | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        super().__init__(uid, directory, row=row, snapshot=snapshot, cut=cut, on_change=on_change)
        self._pending = Pending()
        self._truncated: int | None = None
        self._services: LogServices | None = None
        self._install: Install | None = None
        self._error: SegmentLogError | None = None
        self._origin: SnapshotOrigin | None = None
        """As of the newest snapshot, so that not each one reads the file before it."""

    def settle_cut(self, number: int) -> None:
        """After the recovery, before the log is started: what the cut covers is in files below `number`, in which
        nothing has been written yet. OSError passes through.
        """
        if self.cut is not None and self.cut.before is None:
            self.set_cut(LogCut(self.cut.first, number))

    def start(self, services: LogServices) -> LogPosition | None:
        """Begin to take writes, after the recovery; returns the last entry, all of it durable."""
        with self._lock:
            self._last = self._written = self._found_last()
            beyond = self.segments.view.last
            if beyond is not None and (self._last is None or beyond > self._last.index):
                self._truncated = 0 if self._last is None else self._last.index + 1
            self._services = services
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

        def check() -> None:
            self._check_free()
            self._check_sparse(entry.index, previous, truncated=self._truncated)

        return self._write([entry], rules.check_entries([entry]), timeout, check)

    def truncate(self, index: int) -> None:
        """Drop the entries from `index` on. It is durable with the next write only: files hold no record of it.

        WriteRefusedError: below the snapshot's index + 1.
        """
        with self._lock:
            self._check_free()
            rules.check_truncate(self.directory, index, self.row)
            self._truncate(index)

    def snapshot(
        self, index: int, term: int, state: bytes, live: LiveSet, *, origin: SnapshotOrigin | None = None
    ) -> Future[LogSnapshot]:
        """Write a snapshot in the background: below it, only the `live` entries are kept from then on.

        `origin`: cluster and machine version that a Ra server is to read in it; None for those of the newest snapshot.
        The future completes when the snapshot is durable and in force. WriteRefusedError (here or in the future): its
        index is not above the current snapshot's, not yet written, an index is live that was not before, or the
        directory is a Ra system's and nothing says which cluster the snapshot is of.
        """
        request = rules.SnapshotRequest(index, term, state, live, origin)
        with self._lock:
            services = self._open_services()
            self._check_free()
            rules.check_snapshot(self.directory, request, self.row, self._written)
            return services.submit(lambda: self._write_snapshot(services, request))

    def begin_install(
        self, index: int, term: int, *, applied: int | None, indexes_bytes: int, data_bytes: int
    ) -> Install:
        """Begin to replace what the log holds by another member's snapshot; its two files have these sizes.

        `applied`: the last index that is known to be part of every member's log (None: none is). Later entries are
        dropped, unless the log holds the snapshot's own entry: then all of it stays. Until the installation is finished
        or aborted the log takes no other write.

        WriteRefusedError: another one is under way, or the log has this snapshot or applied more. LogClosedError,
        WalFailedError; StoreIOError and the like when the storage refuses.
        """
        services = self._open_services()
        request = rules.InstallRequest(index, term, applied, indexes_bytes, data_bytes)
        return services.submit(lambda: self._begin_install(services, request)).result()

    def _begin_install(self, services: LogServices, request: rules.InstallRequest) -> Install:
        """In the thread of snapshots, so that none is being written meanwhile."""
        with self._lock, storage_errors(self.directory):
            self._check_free()
            rules.check_install(self.directory, request, self.row, self._last)
            matches = self._holds(request.index, request.term)
            stale = self._truncated is not None or self.cut is not None
            stale = stale or (self._last is not None and self._last.index > request.index)
            if not matches:
                ends = (request.applied, self.row.snapshot_index)
                self._truncate(max(0 if end is None else end + 1 for end in ends))
            base = request.index if matches else self._last_index
            self._install = Install(self, services, request, base=base, stale=stale and not matches)
            return self._install

    def _write(
        self, entries: Sequence[LogEntry], size: int, timeout: float | None, check: Callable[[], None]
    ) -> Acknowledgement:
        queue = self._open_services().queue
        queue.reserve(size, timeout=timeout)
        with self._lock:
            try:
                check()
                self._check_open()
            except BaseException:
                # The room in the queue was reserved before the lock, and nothing will take it.
                queue.release(size)
                raise
            return self._insert(queue, entries, size)

    def _insert(self, queue: WalQueue, entries: Sequence[LogEntry], size: int) -> Acknowledgement:
        """Into the mem table and the queue, as one step under the lock: so both hold the same order."""
        previous = None if self._last is None else min(self._last.index, entries[0].index - 1)
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

    def close(self) -> None:
        """Take no more writes; what was appended is still written and acknowledged."""
        with self._lock:
            if self._install is not None:
                self._install.log_closed()
            self._error = self._error or LogClosedError(str(self.directory), "the log is closed")

    # --- what the write-ahead log, the segment writer and the snapshots say ---------------------------------------

    def written(self, marks: Sequence[WrittenBatch]) -> None:
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
            if self._services is None or self._error is not None:
                return
            previous = after
            for table in self.tables.tables:
                for low, high in table.visible.floor(after + 1).ranges:
                    found = [table.lookup(index) for index in range(low, high + 1)]
                    entries = [entry for entry in found if entry is not None]
                    size = sum(len(entry.payload) for entry in entries)
                    self._services.queue.put(WalWrite(self, table, previous, entries, size))
                    previous = high

    def failed(self, error: SegmentLogError) -> None:
        """See `WalClient`."""
        with self._lock:
            self._error = error
            futures = self._pending.take_all()
        fail(futures, error)

    def flushed(self, pieces: Sequence[tuple[MemTable, Seq]], number: int) -> None:
        """See `WalClient`."""
        view = self.segments.refresh()
        with self._lock:
            for table, indexes in pieces:
                self.tables.flushed(table, indexes)
            if self.cut is None or self.cut.before is None or number < self.cut.before:
                return
            ends = (pieces[-1][1].last, self.row.snapshot_index)
            if view.last is None or view.last <= max(-1 if end is None else end for end in ends):
                # Newer entries hide in the segments what the cut covers.
                self.set_cut(None)

    def announce(self, coming: LogRow) -> None:
        """A snapshot is about to be visible, and then durable and in force here by `publish`."""
        with self._lock:
            self.row = replace(self.row, coming=coming)

    def publish(self, snapshot: LogSnapshot) -> None:
        """A snapshot is durable: from here on the log needs less. Replaces the row as one value."""
        with self._lock:
            self.newest_snapshot = snapshot
            self.row = LogRow.of(snapshot)
            self.tables.remove_below(self.row.smallest_live)

    def _write_snapshot(self, services: LogServices, request: rules.SnapshotRequest) -> LogSnapshot:
        index, term, live = request.index, request.term, request.live
        with self._lock:
            rules.check_snapshot(self.directory, request, self.row, self._written)
        with storage_errors(self.directory):
            self._origin = origin_for(self.directory, request.origin or self._origin, self.newest_snapshot)
            partial = write_partial(
                self.directory, index=index, term=term, state=request.state, live=live, origin=self._origin
            )
            with self._lock:
                # Again: the log may have gone back behind it meanwhile; from here on it cannot.
                rules.check_snapshot(self.directory, request, self.row, self._written)
                self.announce(LogRow(index, term, live))
            snapshot = publish(partial, index=index, term=term, live=live)
        self.publish(snapshot)
        services.replaced(self.directory, snapshot)
        return snapshot

    def _truncate(self, index: int) -> None:
        if self._last is None or self._last.index < index:
            return
        self.tables.truncate(index)
        self._truncated = index if self._truncated is None else min(self._truncated, index)
        self._last = self._before(index)
        if self._written is not None and self._written.index >= index:
            self._written = self._last

    # --- what an installation does --------------------------------------------------------------------------------

    def write_installed(self, entry: LogEntry, previous: int | None, *, timeout: float | None) -> Acknowledgement:
        """As `write_sparse`, while an installation is under way: truncated entries in the gap are behind the cut."""

        def check() -> None:
            self._check_sparse(entry.index, previous, truncated=None)

        return self._write([entry], rules.check_entries([entry]), timeout, check)

    def publish_installed(self, snapshot: LogSnapshot, *, stale: bool, replaces: bool) -> None:
        """The snapshot is durable. `replaces`: the log ends at its index now; `stale`: its files may hold more."""
        with self._lock:
            position = LogPosition(snapshot.index, snapshot.term)
            self._origin = None
            self.publish(snapshot)
            if replaces:
                self.tables.truncate(snapshot.index + 1)
                self._last = self._written = position
                self._truncated = snapshot.index + 1 if stale else None
            elif self._written is None or self._written.index < snapshot.index:
                self._written = position

    def set_cut(self, cut: LogCut | None) -> None:
        """Replace the cut, durably. OSError passes through."""
        with self._lock:
            if cut is None:
                remove_cut(self.directory)
            else:
                write_cut(self.directory, cut)
            self.cut = cut

    def end_install(self, base: int | None, *, aborted: bool) -> None:
        """The log takes writes again; after an abort it ends at `base`."""
        with self._lock:
            if aborted:
                self._truncate(0 if base is None else base + 1)
            self._install = None

    # --- checks ---------------------------------------------------------------------------------------------------

    def _check_append(self, first: int) -> None:
        self._check_free()
        rules.check_append(self.directory, first, last=self._last_index, row=self.row)

    def _check_sparse(self, index: int, previous: int | None, *, truncated: int | None) -> None:
        rules.check_sparse(self.directory, index, previous, last=self._last_index, truncated=truncated)

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_free(self) -> None:
        self._check_open()
        if self._install is not None:
            index = self._install.request.index
            raise WriteRefusedError(
                str(self.directory), f"the snapshot of index {index} is being installed: finish or abort that first"
            )

    def _open_services(self) -> LogServices:
        # Without the lock: it is checked again under it.
        self._check_open()
        if self._services is None:
            raise LogClosedError(str(self.directory), "the log is not started")
        return self._services
