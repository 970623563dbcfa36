"""The modules `time` and FileIdentity as simulated code sees them: the clock of whichever process is asking.

What reads a clock or sleeps gets the process's virtual time. Inode numbers and modification times, which no two runs
share, are renamed in the order in which they were first seen: job names are made of them, so a seed would not replay.
"""

from __future__ import annotations

import os
import sys
import time as real_time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from compaction.segments.model import FileIdentity
from compaction.segments.scan import find, sense
from simulation.processes import EPOCH, PROCESS, give_way


class SimulatedTime:
    """Stands where a module of ours imported `time`."""

    CLOCK_BOOTTIME = getattr(real_time, "CLOCK_BOOTTIME", 7)
    gmtime = staticmethod(real_time.gmtime)
    strftime = staticmethod(real_time.strftime)

    @staticmethod
    def monotonic() -> float:
        process = PROCESS.get()
        return process.monotonic() if process is not None else 0.0

    perf_counter = monotonic

    @staticmethod
    def clock_gettime(clock: int) -> float:
        return SimulatedTime.monotonic()

    @staticmethod
    def time() -> float:
        process = PROCESS.get()
        return process.wall() if process is not None else EPOCH

    @staticmethod
    def sleep(seconds: float) -> None:
        give_way(seconds)


class _Stamps(type):
    def __getattr__(cls, name: str) -> Any:
        return getattr(os, name)


class SimulatedStamps(metaclass=_Stamps):
    """`os` for those who compare a file's ctime, the one stamp that nobody can set: it is what mtime is."""

    @staticmethod
    def stat(path: Any, **options: Any) -> Any:
        found = os.stat(path, **options)
        names = ("st_dev", "st_ino", "st_mode", "st_size", "st_mtime", "st_mtime_ns", "st_nlink", "st_uid", "st_gid")
        return SimpleNamespace(st_ctime_ns=found.st_mtime_ns, **{name: getattr(found, name) for name in names})

    @staticmethod
    def lstat(path: Any) -> Any:
        return SimulatedStamps.stat(path, follow_symlinks=False)


@contextmanager
def simulated_time() -> Iterator[Numbers]:
    """Every module of ours that is loaded reads simulated clocks within the block."""
    replaced = [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith("compaction.") and getattr(module, "time", None) is real_time
    ]
    shim: Any = SimulatedTime
    for module in replaced:
        module.time = shim  # type: ignore[attr-defined]
    stamped: Any = SimulatedStamps
    for module in (find, sense):
        module.os = stamped  # type: ignore[attr-defined]
    original = FileIdentity.__dict__["of"]
    numbers = Numbers()
    FileIdentity.of = classmethod(numbers.of)  # type: ignore[assignment]
    try:
        yield numbers
    finally:
        FileIdentity.of = original  # type: ignore[method-assign]
        for module in (find, sense):
            module.os = os  # type: ignore[attr-defined]
        for module in replaced:
            module.time = real_time  # type: ignore[attr-defined]


class Numbers:
    """Inodes and modification times by number, in the order in which they were first seen since `begin`."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}

    def begin(self) -> None:
        """Nothing was seen yet."""
        self._numbers.clear()

    def of(self, kind: type[FileIdentity], stat: os.stat_result) -> FileIdentity:
        number = self._numbers.setdefault((stat.st_ino, stat.st_mtime_ns), len(self._numbers) + 1)
        return kind(device=1, inode=number, size=stat.st_size, mtime_ns=number)
