"""The queue before the write-ahead log: bounded in bytes, so a log that writes faster than the disk waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path

from compaction.segments.errors import LogBusyError, LogClosedError, SegmentLogError
from compaction.segments.wal.write import WalWrite

Request = WalWrite | Future[int]
"""A write, or the wish to roll over to the next file, which completes with that file's number."""


class WalQueue:
    """A queue of several producers and one consumer."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        """`path` names the write-ahead log in errors; `max_bytes` of payload wait at most (one larger write alone)."""
        self._path = path
        self._max_bytes = max_bytes
        self._requests: deque[Request] = deque()
        self._reserved = 0
        self._closed = False
        self._error: SegmentLogError | None = None
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._idle = False
        """The consumer waits: only then is it worth a signal."""

    def reserve(self, size: int, *, timeout: float | None) -> None:
        """Wait for room for a write of `size` bytes and take it; `put_reserved` or `release` must follow.

        Raises:
            LogBusyError: no room within `timeout` seconds (None: wait for it).
            LogClosedError, WalFailedError: nothing is written any more.
        """
        with self._lock:
            if self._reserved and self._reserved + size > self._max_bytes:
                self._wait_for_room(size, timeout)
            self._check_open()
            self._reserved += size

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._reserved and self._reserved + size > self._max_bytes:
            self._check_open()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise LogBusyError(str(self._path), f"{self._reserved} bytes wait to be written")
            self._room.wait(left)

    def release(self, size: int) -> None:
        """Return room that was reserved and is not used."""
        with self._lock:
            self._reserved -= size
            self._room.notify_all()

    def put(self, request: Request) -> None:
        """Never waits, whatever waits already. LogClosedError, WalFailedError: nothing is written any more."""
        with self._lock:
            self._check_open()
            self._reserved += request.size if isinstance(request, WalWrite) else 0
            self._append(request)

    def put_reserved(self, write: WalWrite) -> None:
        """A write into the room that was reserved for it; errors as `put`."""
        with self._lock:
            self._check_open()
            self._append(write)

    def _append(self, request: Request) -> None:
        self._requests.append(request)
        if self._idle:
            self._idle = False
            self._arrived.notify()

    def take(self, *, max_bytes: int) -> list[Request]:
        """What waits, up to `max_bytes` of it and at least one; waits for the first. Empty once closed and drained."""
        with self._lock:
            while not self._requests and not self._closed:
                self._idle = True
                self._arrived.wait()
            taken: list[Request] = []
            size = 0
            while self._requests and size < max_bytes:
                request = self._requests.popleft()
                taken.append(request)
                size += request.size if isinstance(request, WalWrite) else 0
            self._reserved -= size
            self._room.notify_all()
            return taken

    def close(self) -> None:
        """Nothing more can be put; what waits can still be taken."""
        with self._lock:
            self._closed = True
            self._arrived.notify_all()
            self._room.notify_all()

    def fail(self, error: SegmentLogError) -> list[Request]:
        """Nothing more can be put, because of `error`; returns what waited."""
        with self._lock:
            self._error = error
            self._closed = True
            waiting = list(self._requests)
            self._requests.clear()
            self._arrived.notify_all()
            self._room.notify_all()
            return waiting

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise LogClosedError(str(self._path), "its system of logs is closed")
