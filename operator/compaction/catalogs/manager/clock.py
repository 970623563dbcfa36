"""A hybrid logical clock: the time of day, with a counter where the time of day stands still or steps back
(docs/design/catalogs.md#hybrid-timestamps).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from compaction.catalogs.model.hybrid import LOGICAL_BITS, MAXIMUM, MINIMUM, next_millisecond


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
