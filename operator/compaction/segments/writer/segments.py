"""The segment writer of a system: one thread that empties rolled write-ahead log files, oldest first."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from compaction.core.collecting import no_collection
from compaction.segments.directory import fs
from compaction.segments.directory.access import inherit_access
from compaction.segments.errors import FlushFailedError, SegmentLogError
from compaction.segments.wal.codec import HEADER, HELD_WRITER, RecordEncoder
from compaction.segments.wal.files import TEMPORARY_SUFFIX, WalEnd, wal_number
from compaction.segments.wal.reader import WalRun, read_wal
from compaction.segments.wal.write import RolledFile
from compaction.segments.writer.flush import NewSegments, flush


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
