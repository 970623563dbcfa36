"""The segment writer of a system: one thread that empties rolled write-ahead log files, oldest first."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from compaction.exceptions import FlushFailedError, SegmentLogError
from compaction.stores.segments.directory import fs
from compaction.stores.segments.wal.files import wal_number
from compaction.stores.segments.wal.write import RolledFile
from compaction.stores.segments.writer.flush import NewSegments, flush


class SegmentWriter:
    """Accepts rolled files and deletes each once everything that its logs need of it is durably in segments.

    A file is deleted, and its name durably gone, before the next one is begun: else a crash might leave an older file
    without a newer one, whose entries the older ones would then overwrite.
    """

    def __init__(self, directory: Path, *, limits: NewSegments, max_waiting: int) -> None:
        """`max_waiting`: rolled files that wait before `accept` does."""
        self.directory = directory
        self._limits = limits
        self._max_waiting = max_waiting
        self._waiting: deque[RolledFile] = deque()
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
        """Once it is closed, the files that it has not emptied; None if it failed: then one may be half-way gone."""
        return None if self._error is not None else list(self._waiting)

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
        fs.unlink(rolled.path)
        fs.sync_directory(self.directory)

    def _fail(self, rolled: RolledFile, error: BaseException) -> None:
        with self._changed:
            self._error = FlushFailedError(str(rolled.path), str(error) or type(error).__name__)
            self._busy = False
            self._changed.notify_all()
