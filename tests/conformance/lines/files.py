"""Every system call that changes a directory of lines, one small function each, so that a test can interrupt it."""

from __future__ import annotations

import os
from pathlib import Path


def create(path: Path) -> int:
    """An empty file of that name, whatever was there; its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)


def write(fd: int, buffers: list[bytes]) -> None:
    with os.fdopen(os.dup(fd), "wb") as file:
        file.writelines(buffers)


def sync(fd: int) -> None:
    os.fsync(fd)


def rename(source: Path, target: Path) -> None:
    """Atomic replacement."""
    source.rename(target)


def unlink(path: Path) -> None:
    path.unlink()


def put(path: Path, data: bytes) -> None:
    """A whole file, durable with its name."""
    fd = create(path)
    try:
        write(fd, [data])
        sync(fd)
    finally:
        os.close(fd)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)
