"""A wall clock that is wrong, and jumps while the process runs: `time.time` and `datetime.now` of one process.

The offset in seconds stands in a file, read anew at every look, so a test can set the clock of a running process.
Monotonic clocks stay what they are, as under a real change of the system's time.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path


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
