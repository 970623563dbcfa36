"""Exceptions that no code expects, at the boundary of one member: a file, a block, a branch, a log, a participant.

There, whatever goes wrong is the failure of that member, by name, and its siblings go on. What is expected has a class
in a module `errors`; the rest is a defect, so its traceback goes to the log, and users read its place in one line.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import traceback
from pathlib import Path
from typing import Final

from compaction.errors import CompactionError
from compaction.storage.errors import LackOfResourcesError

log = logging.getLogger(__name__)
# Python itself would write warnings on standard error where no log is set up, as in most commands.
log.addHandler(logging.NullHandler())

_RESOURCES: Final = frozenset(
    {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
)
_ALLOCATION: Final = re.compile(r"of size (\d+) failed")
_ABSURD: Final = 1 << 40
"""Bytes that no file needs at once: one that asks for them lies about its sizes."""
_PACKAGE: Final = Path(__file__).parent


def defect(error: Exception, of: str) -> str:
    """Log an exception that nothing expected, with its traceback; returns what users read of it. `of`: the member.

    An error of ours says itself what it is, wherever it comes. The text of any other is in the log only: libraries
    quote what they read, and what they were opened with.
    """
    if isinstance(error, CompactionError):
        return str(error)
    log.warning("unexpected failure of %s", of, exc_info=error)
    return f"an unexpected {type(error).__name__} at {_place(error)}; this is a defect: please report it"


def lack_of(error: Exception, path: str) -> LackOfResourcesError | None:
    """Return the error to raise instead when it was this machine that failed while an object was read, and not the
    object: which would be accused, or refused for good, although it is sound.

    Libraries raise OSError for damaged files, too, but then no call of the system has failed. Of an allocation that is
    absurd the file is at fault.
    """
    if isinstance(error, MemoryError):
        wanted = _ALLOCATION.search(str(error))
        return None if wanted and int(wanted[1]) >= _ABSURD else LackOfResourcesError(path, "out of memory")
    if isinstance(error, OSError) and error.errno in _RESOURCES:
        return LackOfResourcesError(path, os.strerror(error.errno))
    return None


def _place(error: Exception) -> str:
    """The innermost line of ours that the exception came through, such as `blocks/reader.py:20`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(_PACKAGE):
            return f"{file.relative_to(_PACKAGE)}:{frame.lineno}"
    return "an unknown place"
