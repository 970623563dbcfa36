"""Private temporary directories that do not outlive their process, however it ends.

Spark keeps sockets, shuffle files and its Python workers' data in temporary directories and removes them at a proper
exit only. Ours all lie in one directory per process, locked while the process lives: the next process removes those
that no process holds any more (a lock ends with its process, also across process-id namespaces that share /tmp).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "compactor-spark-"
_LOCK = "in-use.lock"


@contextmanager
def scratch_directory(parent: Path | None = None) -> Iterator[Path]:
    """A new directory under `parent` (default: the system's temporary directory), removed at the end of the block."""
    base = parent or Path(tempfile.gettempdir())
    remove_abandoned(base)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    fd = hold(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def hold(path: Path) -> int:
    """Lock a new directory; the descriptor returned, or one that another process inherited from it, is the lock.

    Raises OSError, also when the directory is gone: who looks between the two steps takes it for abandoned.
    """
    fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def remove_abandoned(base: Path, pattern: str = PREFIX + "*") -> tuple[Path, ...]:
    """Remove the directories of processes that are gone; returns them."""
    removed = []
    for path in sorted(base.glob(pattern)):
        try:
            fd = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # being made just now, somebody else's, or not one of ours
        try:
            if os.fstat(fd).st_uid == os.getuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
        except BlockingIOError:
            # Its process runs, or another one that inherited the lock.
            continue
        finally:
            os.close(fd)
    return tuple(removed)
