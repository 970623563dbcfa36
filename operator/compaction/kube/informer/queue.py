"""A keyed work queue: the controller contract of docs/design/control-plane-traps.md#the-queue, in asyncio.

Guarantees, for every key:

* no key is lost: an `add` made while the key is being handled makes it be handled once more afterwards;
* never two handlers for one key at a time; different keys run side by side;
* adds that meet a waiting key are merged into it; first come, first served between keys;
* one timer per key at most: `add_after` keeps the earlier of two moments;
* a failing key backs off exponentially with jitter and starts afresh after one success; nothing runs hot: a handler
  that asks to be called again gets `min_interval` seconds of rest at the least.

`KeySchedule` is the pure part (the time is an argument); `WorkQueue` adds waiting, workers and draining.
"""

import asyncio
import heapq
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import structlog

from compaction.errors import ApiError

Key = TypeVar("Key", bound=Hashable)

AGAIN: Final = 0.2
"""Seconds until a key is reconciled again that has more to do, or whose decision was outdated."""
STALE_IN_A_ROW: Final = 5
"""A race is over after a few reconciles; what goes on for longer is no race, and is reconciled less and less often."""
LONGEST_STALE_PAUSE: Final = 30.0


def stale_pause(row: int) -> float:
    """Seconds until the next reconcile after `row` stale outcomes in a row (at least 1)."""
    return float(min(LONGEST_STALE_PAUSE, AGAIN * 2.0 ** max(0, min(row, 30) - STALE_IN_A_ROW)))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before the n-th retry of a key: `base * 2**n` up to `cap`, spread by `jitter` (0.2 = up to 20 % more)."""

    base: float = 0.2
    cap: float = 60.0
    jitter: float = 0.2

    def delay(self, failures: int, rng: random.Random) -> float:
        """`failures` counts from 1."""
        exponent = min(failures - 1, 30)  # beyond this the cap has long been reached, and floats stay finite
        return min(self.cap, self.base * 2.0**exponent) * (1.0 + rng.uniform(0.0, self.jitter))


@dataclass(slots=True)
class KeySchedule(Generic[Key]):
    """The keys that are ready, running, dirty while running, or due later. Pure: callers pass the time."""

    ready: OrderedDict[Key, float] = field(default_factory=OrderedDict)  # key -> when it became ready
    running: set[Key] = field(default_factory=set)
    dirty: dict[Key, float] = field(default_factory=dict)  # added while running -> since when
    due: dict[Key, float] = field(default_factory=dict)
    failures: dict[Key, int] = field(default_factory=dict)
    _timers: list[tuple[float, int, Key]] = field(default_factory=list)
    _sequence: int = 0

    def add(self, key: Key, now: float) -> None:
        """The key needs attention now."""
        # Not lost and not handled twice at once: the handler may have read its state before this change, so it runs
        # once more.
        if key in self.running:
            self.dirty.setdefault(key, now)
        else:
            self.ready.setdefault(key, now)

    def add_at(self, key: Key, moment: float) -> None:
        """The key needs attention at `moment`; an earlier timer of the same key stands."""
        known = self.due.get(key)
        # The handler that the earlier timer starts says when it wants the key again.
        if known is not None and known <= moment:
            return
        self.due[key] = moment
        self._sequence += 1
        heapq.heappush(self._timers, (moment, self._sequence, key))

    def promote(self, now: float) -> None:
        """Move everything whose time has come to the ready keys."""
        while self._timers and self._timers[0][0] <= now:
            moment, _, key = heapq.heappop(self._timers)
            if self.due.get(key) == moment:  # else replaced by an earlier timer that has fired already
                del self.due[key]
                self.add(key, now)

    def next_due(self) -> float | None:
        """Return the time at which the next timer fires."""
        while self._timers and self.due.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def take(self) -> tuple[Key, float] | None:
        """Start the key that has waited longest: (key, ready since); None when nothing is ready."""
        if not self.ready:
            return None
        key, since = self.ready.popitem(last=False)
        self.running.add(key)
        return key, since

    def done(self, key: Key) -> None:
        """The key's handler ended; attention asked for meanwhile makes it ready again."""
        self.running.discard(key)
        if key in self.dirty:
            self.ready.setdefault(key, self.dirty.pop(key))

    def failed(self, key: Key) -> int:
        """Count one more failure in a row; returns the count."""
        self.failures[key] = self.failures.get(key, 0) + 1
        return self.failures[key]


class QueueMetrics(Protocol):
    """The measures that the queue reports to the outside."""

    def depth(self, ready: int, running: int) -> None:
        """Report how many keys wait and how many are being handled."""
        ...

    def added(self) -> None:
        """A key was added."""
        ...

    def retried(self) -> None:
        """A key failed and was put back."""
        ...

    def waited(self, seconds: float) -> None:
        """A key's handling starts after this long a wait."""
        ...

    def handled(self, seconds: float, *, ok: bool) -> None:
        """A key's handling ended."""
        ...


Handler = Callable[[Key], Awaitable[float | None]]


class WorkQueue(Generic[Key]):
    """Feeds keys to a handler with bounded concurrency.

    The handler returns None, or the number of seconds after which it wants the key back whatever happens. An
    exception means: try again with backoff. The clock is the event loop's unless given.
    """

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        min_interval: float = 0.05,
        metrics: QueueMetrics | None = None,
        clock: Callable[[], float] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._schedule: KeySchedule[Key] = KeySchedule()
        self._backoff = backoff or Backoff()
        self._min_interval = min_interval
        self._metrics = metrics
        self._given_clock = clock
        self._rng = rng or random.Random()
        self._changed = asyncio.Event()
        self._draining = False

    def _now(self) -> float:
        return self._given_clock() if self._given_clock is not None else asyncio.get_running_loop().time()

    def add(self, key: Key) -> None:
        """Handle the key soon. Ignored once draining: the next coordinator lists everything anyway."""
        if self._draining:
            return
        self._schedule.add(key, self._now())
        if self._metrics is not None:
            self._metrics.added()
        self._wake()

    def add_after(self, key: Key, delay: float) -> None:
        """Handle the key after `delay` seconds (an earlier timer of the key stands)."""
        if self._draining:
            return
        self._schedule.add_at(key, self._now() + max(delay, 0.0))
        self._wake()

    def __len__(self) -> int:
        return len(self._schedule.ready) + len(self._schedule.running)

    @property
    def idle(self) -> bool:
        """Nothing ready and nothing running; timers may be pending."""
        return len(self) == 0

    def drain(self) -> None:
        """Let the running handlers end, start no new ones, accept nothing more."""
        self._draining = True
        self._wake()

    async def run(self, handler: Handler[Key], *, concurrency: int = 4) -> None:
        """Serve until `drain()`; returns when every running handler has ended. Cancelling it cancels the handlers."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                self._schedule.promote(self._now())
                while not self._draining and len(self._schedule.running) < concurrency:
                    taken = self._schedule.take()
                    if taken is None:
                        break
                    group.create_task(self._handle(handler, *taken), name=f"reconcile {taken[0]}")
                self._report()
                if self._draining and not self._schedule.running:
                    return
                await self._wait()

    async def _wait(self) -> None:
        """Sleep until something changed or the next timer fires."""
        due = None if self._draining else self._schedule.next_due()
        try:
            async with asyncio.timeout(None if due is None else max(due - self._now(), 0.0)):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _handle(self, handler: Handler[Key], key: Key, since: float) -> None:
        started = self._now()
        if self._metrics is not None:
            self._metrics.waited(started - since)
        ok = False
        try:
            again = await handler(key)
            ok = True
            self._schedule.failures.pop(key, None)
            if again is not None and not self._draining:
                self._schedule.add_at(key, self._now() + max(again, self._min_interval))
        except Exception as error:  # noqa: BLE001 - one of the two places that must survive anything a handler raises
            self._failed(key, error)
        finally:
            if self._metrics is not None:
                self._metrics.handled(self._now() - started, ok=ok)
            self._schedule.done(key)
            self._wake()

    def _failed(self, key: Key, error: Exception) -> None:
        failures = self._schedule.failed(key)
        delay = self._backoff.delay(failures, self._rng)
        expected = isinstance(error, ApiError)  # its message says all; anything else deserves its traceback
        _log.warning(
            "reconcile failed, will retry",
            key=str(key),
            failures=failures,
            retry_in=round(delay, 2),
            error=str(error) or type(error).__name__,
            exc_info=None if expected else error,
        )
        if self._metrics is not None:
            self._metrics.retried()
        if not self._draining:
            self._schedule.add_at(key, self._now() + delay)

    def _report(self) -> None:
        if self._metrics is not None:
            self._metrics.depth(len(self._schedule.ready), len(self._schedule.running))

    def _wake(self) -> None:
        self._changed.set()


_log = structlog.get_logger(__name__)
