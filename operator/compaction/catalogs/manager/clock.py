"""A hybrid logical clock, and waiting until it reaches a timestamp."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from threading import Condition, Lock, Thread
from typing import Protocol

from compaction.catalogs.errors import CatalogClockError, CatalogClosedError, CatalogLateError
from compaction.catalogs.log.port import LogEvent, LogTime
from compaction.catalogs.manager import futures
from compaction.catalogs.model.descriptors import LOGICAL_BITS, MAXIMUM, MINIMUM, next_millisecond, physical

# A hybrid logical clock: the time of day, with a counter where the time of day stands still or steps back; and which
# clocks of others it follows (docs/design/catalogs.md#hybrid-timestamps).


def system_milliseconds() -> int:
    """Milliseconds since the epoch, of this machine's clock."""
    return time.time_ns() // 1_000_000


class HybridClock:
    """Timestamps that only grow, whatever the source of milliseconds does; safe to share between threads.

    A counter that is full carries into the millisecond: a timestamp is one number, and the next one is one larger.
    """

    def __init__(self, milliseconds: Callable[[], int] = system_milliseconds) -> None:
        self._milliseconds = milliseconds
        self._last = 0
        self._lock = Lock()

    def now(self) -> int:
        """A timestamp that no call of this clock returned before."""
        with self._lock:
            self._last = max(self._read(), self._last + 1)
            return self._last

    def wall(self) -> int:
        """Milliseconds since the epoch as the source has them, whatever timestamps were received."""
        return self._milliseconds()

    def read(self) -> int:
        """The time, without a new timestamp: not earlier than any that was returned or received."""
        with self._lock:
            return max(self._read(), self._last)

    def update(self, remote: int) -> int:
        """Receive a timestamp of another clock; the result, and all that follow, are later. ValueError when no
        timestamp is later than `remote`.
        """
        if not MINIMUM <= remote < MAXIMUM:
            raise ValueError(f"{remote} is no timestamp that another can follow")
        with self._lock:
            self._last = max(self._read(), self._last + 1, remote + 1)
            return self._last

    def left(self, timestamp: int) -> int:
        """Milliseconds until the clock is at the first whole millisecond that is not before `timestamp`, 0 when it is;
        unless a timestamp of another clock moves it sooner, its source has to come there.
        """
        target = next_millisecond(timestamp)
        with self._lock:
            milliseconds = self._milliseconds()
            return (
                0 if max(milliseconds << LOGICAL_BITS, self._last) >= target << LOGICAL_BITS else target - milliseconds
            )

    def _read(self) -> int:
        return max(self._milliseconds() << LOGICAL_BITS, MINIMUM)


class ClockGuard:
    """Holds the clocks of a catalog together: none that is more than `max_skew` milliseconds off moves another one, and
    no version is written by it. A process that is an hour ahead would otherwise take every process an hour with it, and
    the next statement would wait for that hour; one that is behind would change what has been active already.
    """

    def __init__(self, clock: HybridClock, process: str, max_skew: int) -> None:
        """`process`: the name of this one, for messages."""
        self._clock = clock
        self._process = f"this process ({process})"
        self._max_skew = max_skew
        self._ahead: tuple[int, str] = (0, "")
        """The latest timestamp that no clock of this process followed, and its writer."""

    def receive(self, event: LogEvent) -> CatalogClockError | None:
        """Let the clock follow a version that was read; the error, and the clock stays, when its writer is ahead."""
        off = self._off(event.timestamp)
        if off <= self._max_skew:
            self._clock.update(event.timestamp)
            return None
        self._ahead = max(self._ahead, (event.timestamp, event.writer))
        return CatalogClockError(
            f"{event.writer}, which wrote version {event.event.version},", off, self._process, self._max_skew
        )

    def late(self, event: LogEvent) -> CatalogLateError:
        """The error of a version that came after the catalog was complete for its activation time."""
        return CatalogLateError(event.event.version, event.writer, -self._off(event.timestamp))

    def require(self, timestamp: int, time: LogTime | None) -> None:
        """Raises CatalogClockError when no version may be written at `timestamp`: this process's clock is off that of
        the log, or the version before was written by a process that is ahead, and a later one would wait as long.
        """
        if time is not None:
            written = physical(timestamp)
            off = max(0, written - time.latest) or min(0, written - time.earliest)
            if abs(off) > self._max_skew:
                raise CatalogClockError(self._process, off, time.source, self._max_skew)
        ahead, writer = self._ahead
        if (off := self._off(ahead)) > self._max_skew:
            raise CatalogClockError(f"{writer}, which wrote the last version,", off, self._process, self._max_skew)

    def _off(self, timestamp: int) -> int:
        """Milliseconds that a timestamp is ahead of this machine's clock."""
        return physical(timestamp) - self._clock.wall()


# Waiting: until some milliseconds passed, and until a clock reaches a timestamp.

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
