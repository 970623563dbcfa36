"""Installations of another member's snapshots in a log, and the acknowledgements that wait for them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from compaction.segments.directory import fs
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.owner import is_ra_directory
from compaction.segments.errors import (
    CorruptIndexesError,
    CorruptSnapshotError,
    InstallIncompleteError,
    InvalidInstallError,
    LogClosedError,
    SegmentLogError,
    WriteRefusedError,
)
from compaction.segments.memtable import LogEntry, LogPosition, MemTable, Seq
from compaction.segments.snapshot.directories import (
    DATA_FILE,
    INDEXES_FILE,
    NO_CLUSTER,
    LogSnapshot,
    SnapshotMeta,
    read_origin,
    read_snapshot_meta,
)
from compaction.segments.snapshot.live_indexes import LiveSet, decode_indexes
from compaction.segments.system.content import INSTALL_PARTIAL, LogCut, publish, remove_tree
from compaction.segments.system.rules import InstallRequest, LogRow
from compaction.segments.wal.wal_log import WalQueue, WrittenBatch

if TYPE_CHECKING:
    from compaction.segments.system.log import Log


# Acknowledgements that wait: which futures complete when a table is written up to an index.


class Acknowledgement(Future[LogPosition]):
    """Completes with the last entry's position. It cannot be cancelled: the entries are in the log already."""

    def cancel(self) -> bool:
        return False


class Pending:
    """Futures by mem table, in ascending order of the index that they wait for. The log's lock guards it."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[MemTable, deque[tuple[LogPosition, Acknowledgement]]] = {}

    def add(self, table: MemTable, position: LogPosition) -> Acknowledgement:
        """A future that completes with `position` once the table is durable up to it."""
        future = Acknowledgement()
        self._waiting.setdefault(table, deque()).append((position, future))
        return future

    def take(self, marks: Sequence[WrittenBatch]) -> list[tuple[LogPosition, Acknowledgement]]:
        """Return the positions that the marks complete; the caller completes them, without the lock."""
        done = []
        for table, index in ((mark.table, mark.index) for mark in marks):
            waiting = self._waiting.get(table)
            while waiting and waiting[0][0].index <= index:
                done.append(waiting.popleft())
            if waiting is not None and not waiting:
                del self._waiting[table]
        return done

    def take_all(self) -> list[Acknowledgement]:
        """Everything, because nothing more is written."""
        futures = [future for waiting in self._waiting.values() for _, future in waiting]
        self._waiting.clear()
        return futures


def complete(done: Sequence[tuple[LogPosition, Acknowledgement]]) -> None:
    for position, future in done:
        future.set_result(position)


def fail(futures: Sequence[Acknowledgement], error: SegmentLogError) -> None:
    for future in futures:
        future.set_exception(error)


# Services that a log uses of its system: the queue before the write-ahead log, and the thread that publishes
# snapshots.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogServices:
    """`directory`: the system's. `background`: one thread for all logs, so snapshots that are written and installed
    follow each other.

    `roll`: go on in a new write-ahead log file; completes with its number. `replaced`: a log (its directory) has a new
    snapshot, older ones may go.
    """

    directory: Path
    queue: WalQueue
    background: Executor
    roll: Callable[[], Future[int]]
    replaced: Callable[[Path, LogSnapshot], None]

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do something in the thread of snapshots. LogClosedError: the system is closed."""
        try:
            return self.background.submit(work)
        except RuntimeError as error:
            # The executor raises it once it is shut down.
            raise LogClosedError(str(self.directory), "the system of logs is closed") from error


# One snapshot of another member that is being installed in a log (docs/design/segment-install.md#the-log).
#
# Live entries go through the write-ahead log as sparse writes; the snapshot's files go to a directory of another
# name. `finish` publishes them only when every live entry is in the log and durable: from then on whatever else the
# log held up to the snapshot's index is dead. Until then a restart finds the log as it was up to `base`.


class InstallStage(StrEnum):
    """The stage of an installation."""

    OPEN = "Open"
    FINISHING = "Finishing"
    FINISHED = "Finished"
    FAILED = "Failed"
    """`finish` failed: it can only be aborted."""
    ABORTED = "Aborted"


class Install:
    """Created by `Log.begin_install`, which says what is refused. For one thread at a time.

    `base`: where the log ends (None: it is empty); the live entries above it are needed.
    """

    def __init__(
        self, log: Log, services: LogServices, request: InstallRequest, *, base: int | None, stale: bool
    ) -> None:
        """`stale`: files may hold entries above the snapshot's index that are no part of the log."""
        self.request = request
        self.base = base
        self.stage = InstallStage.OPEN
        self._log = log
        self._services = services
        self._stale = stale
        self._wrote = False
        self._publishing = False
        self._received = Seq()
        self._written: Acknowledgement | None = None
        self._size = 0
        self._partial = log.directory / INSTALL_PARTIAL
        remove_tree(self._partial)
        fs.make_directory(self._partial)
        self._files: list[int] = []
        for name in (INDEXES_FILE, DATA_FILE):
            self._files.append(fs.create(self._partial / name))

    def write(self, entry: LogEntry, previous: int | None, *, timeout: float | None = None) -> Acknowledgement:
        """Write one live entry; `previous` is the last one, or `base`. Errors as `Log.write_sparse`."""
        self._check(InstallStage.OPEN)
        if entry.index > self.request.index:
            reason = f"entry {entry.index} is above the index {self.request.index} of the snapshot that is installed"
            raise WriteRefusedError(str(self._log.directory), reason)
        if not self._wrote:
            with storage_errors(self._log.directory):
                self._log.set_cut(LogCut(0 if self.base is None else self.base + 1, None))
            self._wrote = True
        self._written = self._log.write_installed(entry, previous, timeout=timeout)
        self._received.append(entry.index)
        return self._written

    def chunk(self, data: bytes) -> None:
        """Append to the stream of the snapshot: the whole `indexes` file, then the whole `snapshot.dat`.

        WriteRefusedError: it is longer than was said at the beginning. StoreIOError and the like.
        """
        self._check(InstallStage.OPEN)
        size = self.request.indexes_bytes + self.request.data_bytes
        if self._size + len(data) > size:
            reason = f"the snapshot that is installed has {self._size + len(data)} bytes or more, {size} were announced"
            raise WriteRefusedError(str(self._log.directory), reason)
        indexes = max(min(self.request.indexes_bytes - self._size, len(data)), 0)
        with storage_errors(self._log.directory):
            for fd, part in zip(self._files, (data[:indexes], data[indexes:]), strict=True):
                if part:
                    fs.write(fd, [part])
        self._size += len(data)

    def finish(self) -> Future[LogSnapshot]:
        """Publish the snapshot; completes when it is durable and in force, and the log takes writes again.

        In the future, after which nothing but `abort` is possible:
        InstallIncompleteError: a live entry is missing. InvalidInstallError: the files are damaged, or of another
        snapshot. WalFailedError; StoreIOError and the like when the storage refuses.
        """
        self._check(InstallStage.OPEN)
        self.stage = InstallStage.FINISHING
        return self._services.submit(self._finish)

    def abort(self) -> None:
        """Drop what has arrived; the log ends at `base` and takes writes again. Durable when it returns, if anything
        was written. After `finish` has succeeded it does nothing.

        LogClosedError: `finish` failed while it published the snapshot; opening the system again finds it, or not.
        """
        if self.stage in (InstallStage.FINISHED, InstallStage.ABORTED):
            return
        self._services.submit(self._abort).result()

    def log_closed(self) -> None:
        """Abort the installation unless it is being finished; the next opening drops the entries that arrived."""
        if self.stage is InstallStage.OPEN:
            self.stage = InstallStage.ABORTED
            self._close()

    def _close(self) -> None:
        files, self._files = self._files, []
        for fd in files:
            os.close(fd)

    def _check(self, stage: InstallStage) -> None:
        if self.stage is not stage:
            raise LogClosedError(str(self._log.directory), f"the installation is {self.stage.lower()}")

    def _finish(self) -> LogSnapshot:
        """In the thread of snapshots."""
        log, index = self._log, self.request.index
        try:
            # The entries must be durable before the snapshot that needs them.
            if self._written is not None:
                self._written.result()
            with storage_errors(log.directory):
                live = self._checked_live()
                if self._stale and not self._wrote:
                    log.set_cut(LogCut(index + 1, None))
                self._publishing = True
                log.announce(LogRow(index, self.request.term, live))
                snapshot = publish(self._partial, index=index, term=self.request.term, live=live)
                log.publish_installed(snapshot, stale=self._stale, replaces=self.base != index)
                if self._stale:
                    log.set_cut(LogCut(index + 1, self._services.roll().result()))
                elif self._wrote:
                    log.set_cut(None)
        except BaseException:
            # Part of the snapshot may be published: only the next opening finds out.
            self.stage = InstallStage.FAILED
            raise
        self.stage = InstallStage.FINISHED
        log.end_install(self.base, aborted=False)
        self._services.replaced(log.directory, snapshot)
        return snapshot

    def _checked_live(self) -> LiveSet:
        """Return the live set of the snapshot, after all is synced and checked: files, index, term, entries."""
        for fd in self._files:
            fs.sync(fd)
        self._close()
        meta = SnapshotMeta(index=self.request.index, term=self.request.term)
        try:
            live = decode_indexes((self._partial / INDEXES_FILE).read_bytes(), file=str(self._partial / INDEXES_FILE))
            found = read_snapshot_meta(self._partial / DATA_FILE)
            of_none = read_origin(self._partial / DATA_FILE) in (None, NO_CLUSTER)
        except (CorruptIndexesError, CorruptSnapshotError) as error:
            raise InvalidInstallError(str(self._log.directory), str(error)) from error
        reason = ""
        if found != meta:
            reason = f"it is of index {found.index}, term {found.term}, not {meta.index}, {meta.term}"
        elif live and live.largest > meta.index:
            reason = f"live index {live.largest} is above its index {meta.index}"
        elif of_none and is_ra_directory(self._log.directory.parent):
            reason = "it is of no cluster, and the Ra server of this log would find itself in none"
        if reason:
            raise InvalidInstallError(str(self._log.directory), reason)
        # The sender sends entries above the base only: those up to it are in the log already.
        kept = self._log.indexes(0, self.base).as_set() if self.base is not None else LiveSet.empty()
        missing = live.without(kept).without(self._received.as_set())
        if missing:
            reason = f"{len(missing)} live entries are missing, the first one is index {missing.smallest}"
            raise InstallIncompleteError(str(self._log.directory), reason)
        return live

    def _abort(self) -> None:
        """In the thread of snapshots, so that one that is being finished is finished or failed before."""
        if self.stage in (InstallStage.FINISHED, InstallStage.ABORTED):
            return
        log = self._log
        if self._publishing:
            raise LogClosedError(
                str(log.directory), "publishing a snapshot failed: close the system of logs and open it again"
            )
        self._close()
        with storage_errors(log.directory):
            if self._wrote:
                first = 0 if self.base is None else self.base + 1
                log.set_cut(LogCut(first, self._services.roll().result()))
            remove_tree(self._partial)
        self.stage = InstallStage.ABORTED
        log.end_install(self.base, aborted=self.base != self.request.index)
