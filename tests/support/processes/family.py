"""The family of a process: who they are, and that none of them is left."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil


def descendants(pid: int) -> list[psutil.Process]:
    """All living descendants of a process."""
    return psutil.Process(pid).children(recursive=True)


def command_line(process: psutil.Process) -> str:
    """The arguments, joined by spaces; empty for one that has ended since it was listed (launchers come and go)."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie is one, too
        return ""


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; a zombie that nobody has collected yet has ended, too."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def still_alive(processes: Sequence[psutil.Process], *, seconds: float) -> list[psutil.Process]:
    """Those that have not ended after `seconds`; returns as soon as all have."""
    until = time.monotonic() + seconds
    while (alive := [process for process in processes if not has_ended(process)]) and time.monotonic() < until:
        time.sleep(0.05)
    return alive
