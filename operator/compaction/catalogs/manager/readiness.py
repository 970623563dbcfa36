"""Which versions are ready: all listeners have finished with their events."""

from __future__ import annotations

import heapq
from concurrent.futures import Future
from itertools import count
from threading import Lock

from compaction.catalogs.manager import futures


class Readiness:
    """The last version that is ready, and futures of those that are not yet."""

    def __init__(self) -> None:
        self._version = 0
        self._waiting: list[tuple[int, int, Future[None]]] = []
        self._order = count()
        self._error: Exception | None = None
        self._lock = Lock()

    @property
    def version(self) -> int:
        return self._version

    def until(self, version: int) -> Future[None]:
        """Done when `version` or a later one is ready."""
        future: Future[None] = futures.pending()
        with self._lock:
            error = self._error
            reached = version <= self._version
            if not reached and error is None:
                heapq.heappush(self._waiting, (version, next(self._order), future))
                return future
        if reached:
            future.set_result(None)
        else:
            future.set_exception(error)
        return future

    def reach(self, version: int) -> None:
        """`version` and all before it are ready."""
        ready = []
        with self._lock:
            self._version = max(version, self._version)
            while self._waiting and self._waiting[0][0] <= self._version:
                ready.append(heapq.heappop(self._waiting)[2])
        for future in ready:
            future.set_result(None)

    def stop(self, error: Exception) -> None:
        """No further version becomes ready: futures fail with `error`, now and from now on. The first error counts."""
        with self._lock:
            if self._error is None:
                self._error = error
            waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            future.set_exception(error)
