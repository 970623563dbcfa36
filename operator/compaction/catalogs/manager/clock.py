"""A hybrid logical clock: the time of day, with a counter where the time of day stands still or steps back; and which
clocks of others it follows (docs/design/catalogs.md#hybrid-timestamps).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from compaction.catalogs.errors import CatalogClockError, CatalogLateError
from compaction.catalogs.log.port import LogEvent, LogTime
from compaction.catalogs.model.hybrid import LOGICAL_BITS, MAXIMUM, MINIMUM, next_millisecond, physical


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
