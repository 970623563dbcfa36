"""A file lock between processes that says for whom it waits."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.2


@contextlib.contextmanager
def exclusive(path: Path, *, what: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock `path` while the body runs; tell once, through `report`, when another process holds it.

    The kernel drops the lock when its holder dies, so a crash never leaves a stale one; the file itself stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip() or "another process"
                    report(f"waiting for {holder}, which is busy with: {what}")
                    told = True
                time.sleep(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)
