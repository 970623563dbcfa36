"""System calls on a log directory: all that change one, the questions that change nothing, and errors that name
the log.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compaction.segments.errors import (
    LogNotReadableError,
    LogNotWritableError,
    SegmentLogError,
    StoreIOError,
    UnexpectedLogError,
)
from compaction.segments.model import SEGMENT_NAME, FileIdentity, segment_number
from compaction.unexpected import defect

# Turns errors of the operating system into errors that name the log and say what to do.

_REFUSED = frozenset({errno.EACCES, errno.EPERM})


def storage_error(error: OSError, directory: Path, *, outcome: str = "") -> SegmentLogError:
    """The error to raise for `error`; names the file when the system call named one.

    `outcome`: what became of the commit that was under way.
    """
    path = str(error.filename) if isinstance(error.filename, str | Path) else str(directory)
    if not path.startswith("/"):
        path = str(directory / path)
    reason = error.strerror or str(error)
    if error.errno in _REFUSED and _unreadable(path):
        return LogNotReadableError(path, reason)
    if error.errno in _REFUSED or error.errno == errno.EROFS:
        return LogNotWritableError(path, reason, outcome)
    return StoreIOError(path, reason, outcome)


def _unreadable(path: str) -> bool:
    """Return whether reading was refused, which the error itself does not say. A new name can only be written."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
        # A directory on the way may not be searched, so the name itself was not reached.
        return True
    effective = os.access in os.supports_effective_ids
    return not os.access(path, os.R_OK, effective_ids=effective)


@contextmanager
def storage_errors(directory: Path) -> Iterator[None]:
    """OSError inside the block becomes LogNotReadableError, LogNotWritableError or StoreIOError."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, directory) from error


def fault_of(error: Exception, directory: Path) -> SegmentLogError:
    """The error of one log, whatever was raised (`unexpected.defect`): at the boundary of one log of several, so that
    the others go on.
    """
    match error:
        case SegmentLogError():
            return error
        case OSError():
            return storage_error(error, directory)
        case _:
            return UnexpectedLogError(str(directory), defect(error, str(directory)))


# Every system call that changes a log directory goes through this module, one small function each.
#
# So there is one list of the places where a process can die, and a test can count and interrupt each of them. Errors
# of the operating system pass through unchanged; callers turn them into errors of ours.

IOV_MAX: Final = min(1024, os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 1024)


def create(path: Path, *, mode: int = 0o644) -> int:
    """A new file, opened for reading and writing; FileExistsError if the name is taken (also by a dangling symlink)."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)


def reopen(path: Path) -> int:
    """An existing file, opened for reading and writing; a symlink is not followed."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def write(fd: int, buffers: Sequence[memoryview | bytes]) -> None:
    """Append all buffers in order, at most IOV_MAX of them per call."""
    for begin in range(0, len(buffers), IOV_MAX):
        batch = list(buffers[begin : begin + IOV_MAX])
        left = sum(len(part) for part in batch)
        while left:
            written = os.writev(fd, batch)
            left -= written
            batch = _rest(batch, written) if left else []


def _rest(batch: list[memoryview | bytes], written: int) -> list[memoryview | bytes]:
    """Return the parts of a batch that a short write left unwritten."""
    for position, part in enumerate(batch):
        if written < len(part):
            return [memoryview(part)[written:], *batch[position + 1 :]]
        written -= len(part)
    return []


def write_at(fd: int, data: bytes, offset: int) -> None:
    """All of `data` at `offset`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written


def set_owner(fd: int, *, uid: int, gid: int) -> None:
    os.fchown(fd, uid, gid)


def set_mode(fd: int, mode: int) -> None:
    os.fchmod(fd, mode)


def touch(fd: int) -> float:
    """Set a file's modification time to now, by the clock of the file system, and return that: epoch seconds."""
    os.utime(fd)
    return os.fstat(fd).st_mtime


def sync(fd: int) -> None:
    """Make a file's content and size durable."""
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make a file's content durable, and its size; not its times."""
    os.fdatasync(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable: creations, links, renames and removals."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make a regular file durable that another process wrote."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        sync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    os.mkdir(path)


def remove_directory(path: Path) -> None:
    os.rmdir(path)


def link(source: Path, target: Path) -> None:
    """A second name for a file; symlinks are not followed."""
    os.link(source, target, follow_symlinks=False)


def symlink(content: str, path: Path) -> None:
    os.symlink(content, path)


def rename(source: Path, target: Path) -> None:
    """Atomic replacement. Between two names of one file the kernel does nothing and leaves both."""
    os.rename(source, target)


def unlink(path: Path) -> None:
    os.unlink(path)


def unlink_if_present(path: Path) -> bool:
    """Remove a file. Return whether it was there."""
    try:
        unlink(path)
    except FileNotFoundError:
        return False
    return True


# Reading names and files of a log directory without changing anything: small questions, answered by lstat.


def regular_segments(directory: Path) -> list[str]:
    """Names of the segments that are files of their own, in name order."""
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if SEGMENT_NAME.fullmatch(e.name) and e.is_file(follow_symlinks=False))


def segment_links(directory: Path) -> list[str]:
    """Names of the segments that are symlinks, in name order."""
    with os.scandir(directory) as entries:
        return sorted(e.name for e in entries if SEGMENT_NAME.fullmatch(e.name) and e.is_symlink())


def highest_segment(directory: Path) -> int:
    """The largest number of any name that is a segment's, links included: their numbers are taken. 0 without any."""
    return max((segment_number(name) for name in os.listdir(directory) if SEGMENT_NAME.fullmatch(name)), default=0)


def status(path: Path) -> os.stat_result | None:
    """Of the name itself, not of what it links to; None when there is no such name."""
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


def regular_identity(path: Path) -> FileIdentity | None:
    """Identity of a regular file under its own name; None for anything else."""
    found = status(path)
    return FileIdentity.of(found) if found and stat.S_ISREG(found.st_mode) else None


def link_identity(path: Path) -> FileIdentity | None:
    """Identity of a symbolic link itself; None for anything else."""
    found = status(path)
    return FileIdentity.of(found) if found and stat.S_ISLNK(found.st_mode) else None


def links_of(directory: Path, names: Iterable[str]) -> dict[str, FileIdentity]:
    """The identities of those of `names` that are symbolic links."""
    found = {name: link_identity(directory / name) for name in names}
    return {name: identity for name, identity in found.items() if identity is not None}
