"""A file lock between processes that says for whom it waits."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.2
NAMELESS_LOOKS = 25
"""How often a waiter looks for the name of a holder before it speaks of another process: 5 seconds."""


@contextlib.contextmanager
def exclusive(path: Path, *, what: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock `path` while the body runs; tell once, through `report`, when another process holds it.

    The kernel drops the lock when its holder dies, so a crash never leaves a stale one; the file itself stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        told, looks = False, 0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
                # A holder that has just begun has not written its name yet.
                if not told and (holder or looks == NAMELESS_LOOKS):
                    report(f"waiting for {holder or 'another process'}, which is busy with: {what}")
                    told = True
                looks += 1
                time.sleep(POLL_SECONDS)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
            yield
        finally:
            os.ftruncate(descriptor, 0)  # the next holder's waiters are not told this name
    finally:
        os.close(descriptor)
