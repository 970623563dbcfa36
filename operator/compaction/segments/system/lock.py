"""One process at a time writes a system of logs: an advisory lock on a file in its directory, and its marker."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from compaction.segments.directory import lock
from compaction.segments.directory.marker import write_marker
from compaction.segments.directory.owner import Writers, doubt_of, signs_in
from compaction.segments.errors import ServerRunningError


def hold_system(directory: Path, resources: ExitStack, *, timeout: float) -> lock.HeldLock:
    """Hold the system's lock until `resources` close, and say that this owner follows compactions.

    Raises:
        LockHeldError: another process writes the system; names it.
        ServerRunningError: a Ra server has its files open for writing. OSError passes through.
    """
    signs = signs_in(directory, wals=())
    if signs.writers is Writers.SOME:
        raise ServerRunningError(str(directory), doubt_of(signs))
    held = resources.enter_context(lock.hold(directory, holder=f"system of logs, pid {os.getpid()}", timeout=timeout))
    write_marker(directory, held=held)
    return held
