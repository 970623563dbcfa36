"""The exclusive lock of a log directory: `compaction.lock`, flock(2), with the holder's name inside.

Invariants: the file is never deleted (a lock on a deleted file excludes nobody); the lock ends with the process that
took it, whatever children that process has; what is written in the file only serves messages, never decisions.
The kernel excludes processes of one machine, and of several machines where the file system supports flock (local disks,
NFS 4, CephFS).
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from compaction.exceptions import LockHeldError
from compaction.stores.segments.faults import storage_error

LOCK_FILE: Final = "compaction.lock"
DEFAULT_TIMEOUT: Final = 30.0
"""Seconds to wait for the lock: a commit holds it for milliseconds, recovery and sweeps for the time to read the
indexes.
"""

_POLL: Final = (0.002, 0.1)
_held: set[int] = set()


def _forget_in_child() -> None:
    """A forked child shares the open lock: left open there, it would keep the log locked after its parent's death."""
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def hold(directory: Path, *, holder: str, job: str = "", timeout: float = DEFAULT_TIMEOUT) -> Iterator[None]:
    """Hold the log's lock for the block. Not reentrant: a second `hold` waits, in the same thread as well.

    Raises:
        LockHeldError: not free within `timeout` seconds; names the holder.
        LogNotWritableError, StoreIOError: the lock file cannot be opened.
    """
    path = directory / LOCK_FILE
    try:
        fd = _acquire(path, timeout=timeout)
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        _sign(fd, holder=holder, job=job)
        yield
    finally:
        _held.discard(fd)
        # Explicitly, not only by closing: a child forked meanwhile may hold a copy of the descriptor.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _acquire(path: Path, *, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    pause = _POLL[0]
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        _held.add(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, fd):
                return fd
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = describe_holder(path)
                _release(fd)
                raise LockHeldError(str(path), holder, timeout) from None
        except OSError:
            _release(fd)
            raise
        _release(fd)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 2, _POLL[1])


def _release(fd: int) -> None:
    _held.discard(fd)
    os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    """Whether the locked file is the one under the name: someone may have moved it away while we waited."""
    mine = os.fstat(fd)
    try:
        theirs = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino)


def _sign(fd: int, *, holder: str, job: str) -> None:
    note = {"holder": holder, "job": job, "pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
    # Only a courtesy to whoever waits: a full disk must not stop the work that may free space.
    with suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(note).encode(), 0)


def describe_holder(path: Path) -> str:
    """Who signed the lock file last, in words."""
    try:
        note = json.loads(path.read_text())
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(note["since"])))
        job = f", job {note['job']}" if note["job"] else ""
        return f"{note['holder']} (pid {note['pid']} on {note['host']}{job}) since {since}"
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown process"
