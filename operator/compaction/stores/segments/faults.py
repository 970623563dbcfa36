"""Turns errors of the operating system into errors that name the log and say what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compaction.exceptions import LogNotWritableError, SegmentLogError, StoreIOError

_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def storage_error(error: OSError, directory: Path) -> SegmentLogError:
    """The error to raise for `error`; names the file when the system call named one."""
    path = str(error.filename) if isinstance(error.filename, str | Path) else str(directory)
    if not path.startswith("/"):
        path = str(directory / path)
    reason = error.strerror or str(error)
    return LogNotWritableError(path, reason) if error.errno in _REFUSED else StoreIOError(path, reason)


@contextmanager
def storage_errors(directory: Path) -> Iterator[None]:
    """OSError inside the block becomes LogNotWritableError or StoreIOError."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, directory) from error
