"""Turns errors of the operating system into errors that name the log and say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compaction.segments.errors import (
    LogNotReadableError,
    LogNotWritableError,
    SegmentLogError,
    StoreIOError,
    UnexpectedLogError,
)
from compaction.unexpected import defect

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
    """Whether it was reading that was refused: the error itself does not tell. A new name can only be written."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError:
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
