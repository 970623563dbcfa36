"""Waiting: until some milliseconds passed, and until a clock reaches a timestamp."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from threading import Condition, Lock, Thread
from typing import Protocol

from compaction.catalogs.errors import CatalogClosedError
from compaction.catalogs.manager import futures
from compaction.catalogs.manager.clock import HybridClock

LONGEST_SLEEP = 3_600.0
"""Seconds. Platforms limit how long a condition waits; an action that is due later sleeps more than once."""


class Timer(Protocol):
    """Runs actions later."""

    def after(self, milliseconds: int, action: Callable[[], None]) -> None:
        """Run `action` once when so much time has passed, or never when the timer is closed before."""
        ...

    def close(self) -> None:
        """No action begins after this returns."""
        ...


class ThreadTimer:
    """One thread that sleeps until the next action is due, by the monotonic clock. It starts with the first action."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._thread: Thread | None = None
        self._closed = False

    def after(self, milliseconds: int, action: Callable[[], None]) -> None:
        due = time.monotonic() + milliseconds / 1_000
        with self._condition:
            if self._closed:
                return
            heapq.heappush(self._actions, (due, next(self._order), action))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="catalog-timer", daemon=True)
                self._thread.start()
            self._condition.notify()

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._actions.clear()
            self._condition.notify()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            # An action that fails is the failure of what waits for it, and not of the other actions.
            futures.outcome_of(action)

    def _next(self) -> Callable[[], None] | None:
        """The action that is due, when it is; None when the timer is closed."""
        with self._condition:
            while not self._closed:
                now = time.monotonic()
                if self._actions and self._actions[0][0] <= now:
                    return heapq.heappop(self._actions)[2]
                self._condition.wait(min(self._actions[0][0] - now, LONGEST_SLEEP) if self._actions else None)
            return None


class ClockWaits:
    """Futures that are done when a clock has reached a timestamp."""

    def __init__(self, clock: HybridClock, timer: Timer) -> None:
        self._clock = clock
        self._timer = timer
        self._waiting: set[Future[None]] = set()
        self._lock = Lock()
        self._closed = False

    def until(self, timestamp: int) -> Future[None]:
        """Done at the first whole millisecond that is not before `timestamp`; CatalogClosedError after `close`."""
        future: Future[None] = futures.pending()
        with self._lock:
            if self._closed:
                future.set_exception(CatalogClosedError())
                return future
            self._waiting.add(future)
        self._check(timestamp, future)
        return future

    def close(self) -> None:
        """Every wait ends with CatalogClosedError, now and from now on."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, set()
        for future in waiting:
            future.set_exception(CatalogClosedError())

    def _check(self, timestamp: int, future: Future[None]) -> None:
        # The clock and the timer may run apart: only the clock says whether the time has come.
        left = self._clock.left(timestamp)
        if left > 0:
            self._timer.after(left, lambda: self._check(timestamp, future))
            return
        with self._lock:
            ended = future not in self._waiting
            self._waiting.discard(future)
        if not ended:
            future.set_result(None)
