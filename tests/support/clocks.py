"""Clocks: one that is wrong, one that jumps; and waiting for something to become true."""

from __future__ import annotations

import asyncio
import datetime
import selectors
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

# A wall clock that is wrong, and jumps while the process runs: `time.time` and `datetime.now` of one process.
#
# The offset in seconds stands in a file, read anew at every look, so a test can set the clock of a running process.
# Monotonic clocks stay what they are, as under a real change of the system's time.


def install(offset_file: Path) -> None:
    """Make this process's wall clock wrong. To be called before anything imports `datetime.datetime` by name."""
    real_time, real_time_ns, real_datetime = time.time, time.time_ns, datetime.datetime

    def offset() -> float:
        return float(offset_file.read_text())

    class AnyDatetime(type):
        """What others made is a datetime as well."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real_datetime)

    class SkewedDatetime(datetime.datetime, metaclass=AnyDatetime):
        """`now` and `utcnow` follow the skewed clock."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> SkewedDatetime:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> SkewedDatetime:
            return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    time.time = lambda: real_time() + offset()
    time.time_ns = lambda: real_time_ns() + int(offset() * 1e9)
    datetime.datetime = SkewedDatetime  # type: ignore[misc]


def set_offset(offset_file: Path, seconds: float) -> None:
    """Set the clock of every process that follows the file; atomic, so that nobody reads half a number."""
    temporary = offset_file.with_suffix(".new")
    temporary.write_text(str(seconds))
    temporary.replace(offset_file)


# An event loop whose clock jumps: sleeping costs no time, and time passes only while everybody sleeps.

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Advances the loop's clock by what it would have waited."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is scheduled: a deadlock")
        self.loop.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0 and is exact."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.now


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


# Waiting for something to become true. The limit is how long a broken build may hang, not a measure of speed.

Value = TypeVar("Value")

PATIENCE_SECONDS = 600.0
TIMEOUT_FLAG = f"--timeout={PATIENCE_SECONDS:.0f}s"
"""The same, for kubectl."""


def eventually(
    look: Callable[[], Value | None],
    what: str,
    *,
    timeout: float = PATIENCE_SECONDS,
    pause: float = 0.2,
    instead: Callable[[], object] | None = None,
) -> Value:
    """The first truthy value of `look`; AssertionError with `what` when none came, and the last value or what there is
    `instead` of it.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() >= deadline:
            seen = value if instead is None else instead()
            raise AssertionError(f"waited {timeout:.0f} s in vain for {what}; last seen: {seen!r}")
        time.sleep(pause)
