"""A file lock between processes that says for whom it waits, and what that process does.

The words are the holder's, in the file: a waiter knows its own task only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from compaction.api.text.safe import cut, printable

POLL_SECONDS = 0.2
NAMELESS_LOOKS = 25
"""How often a waiter looks for the name of a holder before it speaks of another process: 5 seconds."""
_LONGEST: Final = 500
"""Characters of a holder's words in a message: a task may name a directory."""


@contextlib.contextmanager
def exclusive(path: Path, *, what: str, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock `path` while the body runs, which is busy with `what`; tell once, through `report`, when another
    process holds it.

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
                note = os.pread(descriptor, 4 * _LONGEST, 0).decode(errors="replace").strip()
                holder = printable(cut(note, _LONGEST))
                # A holder that has just begun has not written its name yet.
                if not told and (holder or looks == NAMELESS_LOOKS):
                    report(f"waiting for {holder or 'another process'}")
                    told = True
                looks += 1
                time.sleep(POLL_SECONDS)
        try:
            os.ftruncate(descriptor, 0)
            note = f"process {os.getpid()}, which is busy with: {what}"
            os.pwrite(descriptor, note.encode(errors="replace"), 0)
            yield
        finally:
            os.ftruncate(descriptor, 0)  # the next holder's waiters are not told this name
    finally:
        os.close(descriptor)
