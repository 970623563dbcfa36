"""This process as one that claims jobs: which it is, so that others can tell whether it still runs."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from compaction.local.processes.process import start_mark
from compaction.storage.processes import LEASE, Holder, ThisProcess


def this_process() -> ThisProcess:
    """A holder of its own for each call."""
    pid = os.getpid()
    holder = Holder(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        place=_place(),
        pid=pid,
        started=start_mark(pid) or "",
        lease=LEASE,
    )
    return ThisProcess(holder, has_ended)


def has_ended(pid: int, started: str) -> bool:
    """The process of this pid and start is gone. One that cannot be inspected is not."""
    mark = start_mark(pid)
    if mark is not None:
        return mark != started
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False  # where /proc hides the processes of other users
    except ProcessLookupError:
        return True
    return True  # it has ended, and its parent has not asked for it yet


def _place() -> str:
    """This boot of this machine, and the namespace in which its pids count; empty where neither can be read."""
    boot, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    try:
        return f"{boot.read_text().strip()} {namespace.readlink()}"
    except OSError:
        return ""
