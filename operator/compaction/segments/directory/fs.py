"""Every system call that changes a log directory goes through this module, one small function each.

So there is one list of the places where a process can die, and a test can count and interrupt each of them. Errors of
the operating system pass through unchanged; callers turn them into errors of ours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

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
    """What is left of a batch after a short write."""
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
    """Whether there was something to remove."""
    try:
        unlink(path)
    except FileNotFoundError:
        return False
    return True
