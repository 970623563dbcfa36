"""The pace of a rewrite: asked before bytes are read or written, it waits, or says that the work is to stop.

The limit is a token bucket of depth 0: each byte is paid for before it moves, and time that went by unused is not saved
up. So at any moment no more was moved than the rate times the time since the beginning, and after a pause there is no
burst that others would feel. The bucket is a pure function; `Pace` keeps one and does the waiting. Threads may share a
`Pace`: what they move together keeps to the rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Protocol

from compaction.storage.errors import RewriteStoppedError

STEP_SECONDS: Final = 0.1
"""The longest sleep: a caller that waits for its bytes checks this often whether it must stop."""


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """`bytes_per_second` (at least 1) may pass; all that was asked for so far is paid for at `paid_at` (seconds)."""

    bytes_per_second: int
    paid_at: float

    def take(self, count: int, *, now: float) -> tuple[TokenBucket, float]:
        """The bucket after `count` bytes more, and the seconds to wait from `now` before they may pass."""
        paid_at = max(self.paid_at, now) + count / self.bytes_per_second
        return replace(self, paid_at=paid_at), paid_at - now

    def at_rate(self, bytes_per_second: int, *, now: float) -> TokenBucket:
        """The bucket at another rate: what was asked for and has not passed yet is paid for at that rate."""
        owed = max(0.0, self.paid_at - now) * self.bytes_per_second
        return TokenBucket(bytes_per_second, now + owed / bytes_per_second)


class SharedBucket(Protocol):
    """A bucket that several processes pay from; can be pickled. `step`: bytes to ask for at least."""

    @property
    def step(self) -> int: ...

    def take(self, count: int) -> float | None:
        """The seconds to wait until so many bytes more may pass; None when the work is over. Raises CompactionError
        when nothing can be learned.
        """


@dataclass(slots=True)
class MovedBytes:
    """The bytes that a piece of work has read and written so far, as it has asked its paces."""

    read: int = 0
    written: int = 0


_counted_in: ContextVar[MovedBytes | None] = ContextVar("counted_in", default=None)


@contextmanager
def counting_bytes() -> Iterator[MovedBytes]:
    """Count the bytes of the paces created inside, whichever threads call them."""
    counted = MovedBytes()
    token = _counted_in.set(counted)
    try:
        yield counted
    finally:
        _counted_in.reset(token)


class Pace:
    """Called with a number of bytes before they are read or written; returns when they may be.

    Args:
        should_stop: asked at each call, and at least every STEP_SECONDS while it waits; then RewriteStoppedError.
            By each thread that calls.
        bytes_per_second: of all reads and writes together; None for no limit.
        shared: what is asked instead where others pay from the same bucket.
        moved: gets each number of bytes when they may be moved.
        clock, sleep: seconds; by default those of `time` when this is made (the simulator has its own).
        what: the work, in the error.
    """

    def __init__(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        bytes_per_second: int | None = None,
        shared: SharedBucket | None = None,
        moved: Callable[[int], None] | None = None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], None] | None = None,
        what: str = "the rewrite",
    ) -> None:
        self._should_stop = should_stop
        self._clock = clock or time.monotonic
        self._sleep = sleep or time.sleep
        self._what = what
        self._lock = threading.Lock()
        self._shared = shared
        self._moved = moved
        self._counted = _counted_in.get()
        self._ahead = 0  # bytes that were paid for and have not moved
        self._bucket = None if bytes_per_second is None else TokenBucket(max(1, bytes_per_second), self._clock())

    def __call__(self, count: int, *, written: bool = False) -> None:
        self._look()
        if self._bucket is not None or self._shared is not None:
            with self._lock:
                now = self._clock()
                wait = self._take(count, now)
            deadline = now + wait
            while (left := deadline - self._clock()) > 0:
                self._sleep(min(left, STEP_SECONDS))
                self._look()
        if self._counted is not None:
            with self._lock:
                self._counted.written += count if written else 0
                self._counted.read += 0 if written else count
        if self._moved is not None:
            self._moved(count)

    def _take(self, count: int, now: float) -> float:
        if self._shared is None:
            assert self._bucket is not None, "one of the two was checked by the caller"
            self._bucket, wait = self._bucket.take(count, now=now)
            return wait
        if count <= self._ahead:
            self._ahead -= count
            return 0.0
        asked = max(count - self._ahead, self._shared.step)
        answer = self._shared.take(asked)
        if answer is None:
            raise RewriteStoppedError(f"{self._what} was replaced or has ended")
        self._ahead += asked - count
        return answer

    def _look(self) -> None:
        if self._should_stop():
            raise RewriteStoppedError(f"{self._what} was asked to stop")


UNLIMITED: Final = Pace()
"""As fast as it goes, to the end; it counts nothing."""
