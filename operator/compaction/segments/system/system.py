"""A system of logs: a directory with one write-ahead log, and a directory for each log with its segments and snapshots.

`<system>/NNNNNNNNNNNNNNNN.wal`, `<system>/writers.snapshot`, `<system>/<log>/*.segment`, `<system>/<log>/snapshots`:
the layout of Ra, whose directories can be opened and continued, and the other way round (docs/design/segment-wal.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from compaction.segments.directory import fs
from compaction.segments.directory.fs import storage_errors
from compaction.segments.directory.lock import HeldLock
from compaction.segments.errors import (
    BrokenLogError,
    InvalidEntryError,
    InvalidWalFormatError,
    LiveSetUnknownError,
    LockLostError,
    LogClosedError,
    SegmentLogError,
)
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.compactions import Compactions, OwnCompaction, OwnerCompaction
from compaction.segments.system.content import older_snapshots, remove_tree, write_indexes
from compaction.segments.system.installs import LogServices
from compaction.segments.system.log import Log
from compaction.segments.system.opening import LOG_ID, LogOpening, hold_system
from compaction.segments.system.rules import LogRow
from compaction.segments.system.segment_changes import OnChange
from compaction.segments.wal.codec import WalTail, WriterState
from compaction.segments.wal.files import TEMPORARY_SUFFIX, read_writers, write_stop
from compaction.segments.wal.wal_log import WalLimits, WriteAheadLog
from compaction.segments.writer import NewSegments, SegmentWriter

_logger = logging.getLogger(__name__)
RebuildLive = Callable[[LogSnapshot], LiveSet]
"""Computes what is live at a snapshot from its state, where the file that says so is missing or damaged."""


@dataclass(frozen=True, slots=True)
class SystemLimits:
    """`rolled_files` wait for the segment writer at most, then writes do; each takes as much memory as it has bytes.

    `snapshot_grace`: seconds for which a replaced snapshot stays, for readers that have begun with it. `compaction`:
    what the owner compacts itself.
    """

    wal: WalLimits = field(default_factory=WalLimits)
    segments: NewSegments = field(default_factory=NewSegments)
    rolled_files: int = 2
    snapshot_grace: float = 60.0
    compaction: OwnerCompaction = field(default_factory=OwnerCompaction)


class LogSystem:
    """Opens a directory, recovers what its write-ahead log holds, and gives out its logs. A context manager: leaving it
    closes. One process at a time; any number of threads.

    A log that cannot be opened is kept closed, as it is, and the others go on: see `broken`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        limits: SystemLimits | None = None,
        lock_timeout: float = 10.0,
        clock: Callable[[], float] = time.time,
        on_change: OnChange | None = None,
    ) -> None:
        """`directory` is created if its parent exists. `clock`: epoch seconds, for the grace of snapshots and the timer
        of compactions. `on_change`: what became of a log's segments, by flushes and compactions, our own or others'.

        Raises:
            LockHeldError, ServerRunningError: another process writes the system.
            DamagedWalError, InvalidWalFormatError: a write-ahead log file cannot be read, or does not end where it did
            when the system was stopped cleanly; nothing was changed. LogNotReadableError, StoreIOError: the directory
            cannot be read or written.
        """
        self.directory = directory
        self.limits = limits or SystemLimits()
        self._clock = clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._closed = False
        self._replaced: dict[Path, float] = {}
        with storage_errors(directory), ExitStack() as resources:
            if not directory.is_dir():
                fs.make_directory(directory)
                fs.sync_directory(directory.parent)
            held = hold_system(directory, resources, timeout=lock_timeout)
            # What is registered first is called last: all files are closed, and nobody else has the lock.
            resources.callback(self._record_stop, held)
            opening = LogOpening(directory, on_change)
            self._logs, self._broken = opening.logs, opening.broken
            recovered = opening.recover(timeout=lock_timeout)
            self.tails: dict[Path, WalTail] = recovered.tails
            for path, tail in self.tails.items():
                _logger.warning("%s: the record at offset %d does not count: %s", path, tail.offset, tail.reason)
            self._segments = SegmentWriter(directory, limits=self.limits.segments, max_waiting=self.limits.rolled_files)
            resources.callback(self._segments.close)
            self._wal = WriteAheadLog(
                directory,
                number=recovered.number + 1,
                limits=self.limits.wal,
                writers=self._known_writers(),
                on_rolled=self._segments.accept,
            )
            resources.callback(self._wal.close)
            self._compactions = Compactions(directory.name, self.limits.compaction, clock=clock)
            resources.callback(self._compactions.close)
            self._snapshots = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"snapshots-{directory.name}")
            resources.callback(self._snapshots.shutdown)
            for log in list(self._logs.values()):
                with opening.alone(log.name):
                    self._start(log)
            for rolled in recovered.files:
                # What the segment writer was writing when its process ended.
                fs.unlink_if_present(rolled.path.with_suffix(TEMPORARY_SUFFIX))
                self._segments.accept(rolled.holding(opening.refused), wait=False)
            self._resources = resources.pop_all()

    @property
    def uids(self) -> list[str]:
        """The logs that the system has, in name order; also those that it keeps closed."""
        with self._lock:
            return sorted([*(log.name for log in self._logs.values()), *self._broken])

    @property
    def broken(self) -> Mapping[str, SegmentLogError]:
        """The logs that could not be opened, in name order, each with its error. Nothing of them is read, written or
        deleted until the system is opened again; what the write-ahead log holds of them stays there.
        """
        return dict(sorted(self._broken.items()))

    def open_log(self, uid: str, *, rebuild_live: RebuildLive | None = None) -> Log:
        """The log of this id, which is the name of its directory; created if there is none.

        Raises:
            LiveSetUnknownError, CorruptIndexesError: its snapshot does not say what is live, and `rebuild_live` is not
            given. BrokenLogError: it could not be opened with the system (`broken`). InvalidEntryError: no such id is
            possible. LogClosedError: the system is closed.
        """
        if not LOG_ID.fullmatch(uid):
            raise InvalidEntryError(
                f"{uid!a} is not an id of a log: letters, digits and _=+-. , at most 200, no dot first"
            )
        with self._lock, storage_errors(self.directory):
            if self._closed:
                raise LogClosedError(str(self.directory), "the system of logs is closed")
            self._check_sound(uid)
            log = self._logs.get(uid.encode())
            if log is None:
                path = self.directory / uid
                fs.make_directory(path)
                fs.sync_directory(self.directory)
                log = self._logs[uid.encode()] = Log(uid, path, row=LogRow(), snapshot=None, on_change=self._on_change)
                self._start(log)
            if log.row.snapshot_index is not None and log.row.live is None:
                self._rebuild(log, rebuild_live)
            return log

    def roll(self) -> Future[int]:
        """Go on in a new write-ahead log file, so that the segment writer empties the current one; completes with the
        number of the new one.
        """
        return self._wal.roll()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all rolled files are in segments; whether that happened within `timeout` seconds.

        FlushFailedError when it never will.
        """
        return self._segments.drain(timeout)

    def compact(self, uid: str, *, bytes_per_second: int | None = None) -> Future[OwnCompaction]:
        """Compact a log in the background: dead segments go, sparse ones become fewer. It may be written and read all
        the time, also by the operator's jobs.

        `bytes_per_second`: what the rewrite may read and write; None for what `OwnerCompaction` says. Where the log
        waits for a compaction already, the lower rate holds.

        The future fails with the errors of `rewrite.run.compact_log`. BrokenLogError: it could not be opened.
        KeyError: there is no such log.
        """
        self._check_sound(uid)
        with self._lock:
            log = self._logs[uid.encode()]
        return self._compactions.request(log, bytes_per_second=bytes_per_second)

    def close(self) -> None:
        """Finish snapshots and writes that were asked for, and stop. What is not in segments yet stays in the
        write-ahead log, and a record says where that ends: from then on a torn end is damage.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for log in self._logs.values():
                log.close()
        self._resources.close()

    def __enter__(self) -> LogSystem:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _record_stop(self, held: HeldLock) -> None:
        """Only if all went well: without the record, the system counts as one that was killed, and nothing is lost."""
        if not self._closed:
            return  # its opening has failed
        last, left = self._wal.last_file(), self._segments.left()
        if last is None or left is None:
            return
        try:
            write_stop(self.directory, {item.path.name: item.end for item in (*left, last)}, held=held)
        except (OSError, LockLostError) as error:
            _logger.warning("%s: that it was stopped cleanly is not recorded: %s", self.directory, error)

    def _check_sound(self, uid: str) -> None:
        error = self._broken.get(uid)
        if error is not None:
            raise BrokenLogError(str(self.directory / uid), str(error)) from error

    def _known_writers(self) -> dict[bytes, WriterState]:
        """Of the writers snapshot, which is a help only: of each log that is here, more is known from its entries."""
        try:
            return read_writers(self.directory)
        except InvalidWalFormatError as error:
            _logger.warning("the writers snapshot is not used, and written again: %s", error)
            return {}

    def _start(self, log: Log) -> None:
        # What may fail comes first: then nothing of the system knows the log.
        last = log.start(
            LogServices(self.directory, self._wal.queue, self._snapshots, self._wal.roll, self._snapshot_replaced)
        )
        older = [] if log.newest_snapshot is None else older_snapshots(log.directory, log.newest_snapshot)
        self._replaced.update(dict.fromkeys(older, self._clock()))
        if last is not None:
            self._wal.set_writer(log.uid, WriterState(last.index))
        self._compactions.watch(log)

    def _rebuild(self, log: Log, rebuild_live: RebuildLive | None) -> None:
        snapshot = log.newest_snapshot
        if snapshot is None or rebuild_live is None:
            if snapshot is not None and snapshot.live_error is not None:
                raise snapshot.live_error
            raise LiveSetUnknownError(str(log.directory))
        live = rebuild_live(snapshot)
        log.publish(write_indexes(snapshot, live))

    def _snapshot_replaced(self, directory: Path, snapshot: LogSnapshot) -> None:
        """In the log worker. The snapshot is reported first; phase 1, which relies on it, is the worker's next task."""
        log = self._logs[directory.name.encode()]
        # The system is closed: the next snapshot finds what is dead.
        with suppress(RuntimeError):
            self._snapshots.submit(self._compactions.after_snapshot, log)
        try:
            self._remove_replaced(directory, snapshot)
        except OSError as error:
            # The new snapshot is in force; what is not deleted now is deleted after the next one.
            _logger.warning("%s: a replaced snapshot cannot be deleted: %s", directory, error)

    def _remove_replaced(self, directory: Path, snapshot: LogSnapshot) -> None:
        """Older snapshots go once they have been replaced for the grace."""
        now = self._clock()
        for path in older_snapshots(directory, snapshot):
            if now - self._replaced.setdefault(path, now) >= self.limits.snapshot_grace:
                remove_tree(path)
                del self._replaced[path]
