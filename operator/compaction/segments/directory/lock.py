"""The lock of a log directory, and new files that the owner of the log must be able to read."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.api.text.printing import printable
from compaction.segments.directory import fs
from compaction.segments.directory.fs import storage_error
from compaction.segments.errors import LockFileError, LockHeldError, LockLostError, LogNotWritableError

# The exclusive lock of a log directory: `compaction.lock`, flock(2), with the holder's name inside.
#
# Invariants:
#
# * the file is never deleted (a lock on a deleted file excludes no process). Should a person do it all the same, the
#   holder notices: `HeldLock.verify` is asked before everything that could destroy another's work;
# * the lock ends with the process that took it, whatever children that process has;
# * what is written in the file only serves messages, never decisions, and is gone when the lock is free: a waiting
#   process is pointed to the process to end, so it must not be one that has finished;
# * one directory, one file: a copy made by `cp -al` shares the file with its original and would share the lock, so
#   who holds it puts a new file in its own directory's place (`_unshared`) and never writes into the shared one.
#
# The kernel excludes processes of one machine, and of several machines where the file system supports flock (local
# disks, NFS 4, CephFS).

LOCK_FILE: Final = "compaction.lock"
TEMPORARY_FILE: Final = "compaction.lock.tmp"
DEFAULT_TIMEOUT: Final = 30.0
"""Seconds to wait for the lock: a commit holds it for milliseconds, recovery and sweeps for the time to read the
indexes.
"""

_POLL: Final = (0.002, 0.1)
_NOTE_BYTES: Final = 4096
_LONGEST_WORD: Final = 253
_held: set[int] = set()


def _forget_in_child() -> None:
    """A forked child shares the open lock: left open there, it would keep the log locked after its parent's death."""
    for fd in _held:
        with suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The lock while it is held: which file, under which name."""

    path: Path
    fd: int

    def verify(self) -> None:
        """LockLostError unless the file that is locked is still the one under the name: else others may hold it too."""
        if not _is_still(self.path, self.fd):
            raise LockLostError(str(self.path), "", 0.0)

    def now(self) -> float:
        """Epoch seconds by the clock of the log's file system, which all processes and machines share that have it
        mounted. A process that waits for a grace that another one began must not compare with a clock of its own.
        """
        return fs.touch(self.fd)


@contextmanager
def hold(directory: Path, *, holder: str, job: str = "", timeout: float = DEFAULT_TIMEOUT) -> Iterator[HeldLock]:
    """Hold the log's lock for the block. Not reentrant: a second `hold` waits, in the same thread as well.

    Raises:
        LockHeldError: not free within `timeout` seconds; names the holder.
        LockFileError: something else than a file has the lock's name.
        LogNotReadableError, LogNotWritableError, StoreIOError: the lock file cannot be opened.
    """
    path = directory / LOCK_FILE
    try:
        fd = _acquire(path, timeout=timeout)
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        _sign(fd, holder=holder, job=job)
        yield HeldLock(path, fd)
    finally:
        _unsign(fd)
        _release(fd)


def _acquire(path: Path, *, timeout: float) -> int:
    deadline = time.monotonic() + timeout
    pause = _POLL[0]
    while True:
        fd = _open(path)
        kept = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(path, fd):
                kept = _unshared(path, fd)
                return kept
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise _held_error(path, fd, timeout) from None
        finally:
            if kept != fd:
                _release(fd)
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 2, _POLL[1])


def _open(path: Path) -> int:
    # O_NONBLOCK: no device or FIFO under this name may hang us before it is refused.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LockFileError(str(path), "it is not a regular file")
    _held.add(fd)
    found = os.fstat(fd)
    # A file with another name is somebody's elsewhere: a snapshot of the directory by hard links, or worse.
    if found.st_uid == os.geteuid() and found.st_nlink == 1:
        try:
            give_to_owner(fd, path.parent)
        except OSError:
            # The log was moved away in this moment: nobody gets the descriptor, so nobody closes it.
            _release(fd)
            raise
    return fd


def give_to_owner(fd: int, directory: Path) -> None:
    """A new file in a log belongs to whom the directory belongs, and may be written by those who may write there: else
    one run as root would lock the log's owner out. What takes a privilege that is not there is left out. OSError of
    other kinds passes through.
    """
    model, mine = os.stat(directory), os.fstat(fd)
    for uid in (model.st_uid, mine.st_uid):
        if (mine.st_uid, mine.st_gid) == (uid, model.st_gid):
            break
        with suppress(PermissionError):
            fs.set_owner(fd, uid=uid, gid=model.st_gid)
            break
    # Of a directory with the sticky bit, such as /tmp, every user may write to it, and none to the files of another.
    writers = 0 if model.st_mode & stat.S_ISVTX else model.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writers & ~mine.st_mode:
        with suppress(PermissionError):
            fs.set_mode(fd, stat.S_IMODE(mine.st_mode) | writers)


def _release(fd: int) -> None:
    if fd not in _held:
        # In a forked child: closed already, and the number may be another file's.
        return
    _held.discard(fd)
    # Explicitly, not only by closing: a child forked meanwhile may hold a copy of the descriptor.
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def _is_still(path: Path, fd: int) -> bool:
    """Return whether the locked file is the one under the name: another process may have moved it away meanwhile."""
    try:
        theirs = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), theirs)


def _unshared(path: Path, fd: int) -> int:
    """The lock on a file that only this directory has; `fd` itself when that is so, or cannot be changed.

    Safe: `fd` is locked and stands under the name, so no other process holds this directory's lock or does the same
    here. Who waits for the old file gets it, finds another one under the name, and starts again.
    """
    shared = os.fstat(fd)
    if shared.st_nlink <= 1:
        return fd
    temporary = path.with_name(TEMPORARY_FILE)
    try:
        fs.unlink_if_present(temporary)
        own = fs.create(temporary, mode=stat.S_IMODE(shared.st_mode) & 0o666)
        give_to_owner(own, path.parent)
    except OSError:
        return fd
    _held.add(own)
    renamed = False
    try:
        # Before the rename: a process that opens the new file must find it locked.
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fs.rename(temporary, path)
        renamed = True
    except OSError:
        with suppress(OSError):
            fs.unlink_if_present(temporary)
        return fd
    finally:
        if not renamed:
            _release(own)
    return own


def _sign(fd: int, *, holder: str, job: str) -> None:
    note = {
        "holder": holder[:_LONGEST_WORD],
        "job": job[:_LONGEST_WORD],
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.time(),
    }
    # Only a courtesy to whoever waits: a full disk must not stop the work that may free space.
    with suppress(OSError):
        if os.fstat(fd).st_nlink <= 1:
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(note).encode(), 0)


def _unsign(fd: int) -> None:
    with suppress(OSError):
        if fd in _held and os.fstat(fd).st_nlink <= 1:
            os.ftruncate(fd, 0)


def _held_error(path: Path, fd: int, waited: float) -> LockHeldError:
    """Return the error that names the last signer of the open lock file."""
    try:
        if os.fstat(fd).st_nlink > 1:
            # Nobody signs a file that a copy shares, so what it says may be of long ago.
            return LockHeldError(str(path), "an unknown process", waited)
        note = json.loads(os.pread(fd, _NOTE_BYTES, 0))
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(note["since"])))
        process = f"pid {int(note['pid'])} on {_plain(note['host'])}"
        job = f", job {_plain(note['job'])}" if note["job"] else ""
        holder = f"{_plain(note['holder'])} ({process}{job}) since {since}"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        # The note serves the message only: a torn or foreign one must not hide that the lock is held.
        return LockHeldError(str(path), "an unknown process", waited)
    return LockHeldError(str(path), holder, waited, process)


def _plain(word: object) -> str:
    """A word of the note as it may appear in a message: short, and nothing a terminal would obey."""
    if not isinstance(word, str):
        raise TypeError("not text")
    return printable(word[:_LONGEST_WORD])


# New files that the log's owner must be able to read: whom they belong to, and how one replaces another.


def inherit_access(fd: int, source: Path) -> None:
    """Owner, group and mode of `source`, for the open file: the log's owner must be able to read the new file.

    Giving a file away needs privileges. Without them it is enough that the owner can read it through its group or as
    anybody; otherwise LogNotWritableError.
    """
    model, mine = os.stat(source), os.fstat(fd)
    mode = stat.S_IMODE(model.st_mode)
    uid, gid = mine.st_uid, mine.st_gid
    for new_uid, new_gid in ((model.st_uid, model.st_gid), (mine.st_uid, model.st_gid)):
        if (uid, gid) != (new_uid, new_gid):
            with suppress(PermissionError):
                fs.set_owner(fd, uid=new_uid, gid=new_gid)
                uid, gid = new_uid, new_gid
                break
    readable = uid == model.st_uid or (gid == model.st_gid and mode & stat.S_IRGRP) or mode & stat.S_IROTH
    if not readable:
        reason = f"a rewritten copy cannot be given to its owner (uid {model.st_uid}, gid {model.st_gid})"
        raise LogNotWritableError(str(source), reason)
    fs.set_mode(fd, mode)


def replace_file(temporary: Path, target: Path, data: bytes, *, access: Path | None, held: HeldLock | None) -> None:
    """Put `data` under the name `target`, atomically and durably but for the directory, which the caller syncs.

    `access`: the file whose owner, group and mode the new one gets; None for those of its directory. `held` is asked
    right before the name changes.
    OSError passes through: the old file, or none, then stands under the name.
    """
    fs.unlink_if_present(temporary)
    try:
        fd = fs.create(temporary) if access is None else fs.create(temporary, mode=0o600)
        try:
            if access is not None:
                inherit_access(fd, access)
            else:
                give_to_owner(fd, target.parent)
            fs.write(fd, [data])
            fs.sync(fd)
        finally:
            os.close(fd)
        if held is not None:
            held.verify()
        fs.rename(temporary, target)
    except OSError:
        with suppress(OSError):
            fs.unlink_if_present(temporary)
        raise
