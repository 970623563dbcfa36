"""Why a log, or a directory in which logs may be, could not be read: as data, with the whole message."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from compaction.api.text.safe import printable
from compaction.segments.directory.faults import storage_error
from compaction.segments.errors import (
    CorruptFenceError,
    CorruptSegmentError,
    LiveEntriesMissingError,
    LiveSetUnknownError,
    OwnerRunningError,
    SegmentLogError,
)


class LogErrorReason(StrEnum):
    """Why a log, or a directory in which logs may be, could not be read."""

    NOT_FOUND = "NotFound"
    NOT_A_DIRECTORY = "NotADirectory"
    PERMISSION_DENIED = "PermissionDenied"
    OUTSIDE_ROOT = "OutsideRoot"
    CORRUPT_SEGMENT = "CorruptSegment"
    CORRUPT_FENCE = "CorruptFence"
    LIVE_SET_UNKNOWN = "LiveSetUnknown"
    LOG_INVALID = "LogInvalid"
    OWNER_RUNNING = "OwnerRunning"
    LIVE_ENTRIES_MISSING = "LiveEntriesMissing"
    INPUT_OUTPUT = "InputOutputError"


@dataclass(frozen=True, slots=True)
class LogError:
    """A path, why it was left out, and the whole message. `segment`: the file's name when one segment is to blame."""

    path: Path
    reason: LogErrorReason
    message: str
    segment: str | None = None


def log_error(path: Path, error: SegmentLogError | OSError) -> LogError:
    """The entry for a log, or a directory, that could not be read."""
    reason, segment = LogErrorReason.LOG_INVALID, None
    match error:
        case LiveSetUnknownError():
            reason = LogErrorReason.LIVE_SET_UNKNOWN
        case CorruptSegmentError():
            reason, segment = LogErrorReason.CORRUPT_SEGMENT, Path(error.file).name
        case OwnerRunningError():
            reason = LogErrorReason.OWNER_RUNNING
        case LiveEntriesMissingError():
            reason = LogErrorReason.LIVE_ENTRIES_MISSING
        case CorruptFenceError():
            reason = LogErrorReason.CORRUPT_FENCE
        case PermissionError():
            reason = LogErrorReason.PERMISSION_DENIED
        case FileNotFoundError():
            reason = LogErrorReason.NOT_FOUND
        case NotADirectoryError():
            reason = LogErrorReason.NOT_A_DIRECTORY
        case OSError():
            reason = LogErrorReason.INPUT_OUTPUT
        case _:
            pass
    message = _os_message(path, error) if isinstance(error, OSError) else str(error)
    return LogError(path=path, reason=reason, message=message, segment=segment)


def _os_message(path: Path, error: OSError) -> str:
    named = storage_error(error, path)
    return f"{getattr(named, 'path', path)}: {error.strerror or error}"


def unnameable(path: str) -> LogError:
    """An error for a directory that no resource can name: strings of the API are UTF-8, and so are jobs' sources; and
    lines of output must not be written by users who may create a directory.
    """
    said = printable(path)
    message = f"{said}: name is not valid UTF-8, or holds control characters: rename it"
    return LogError(path=Path(said), reason=LogErrorReason.LOG_INVALID, message=message)


def leads_out(root: Path, path: str) -> LogError | None:
    """An error for a symlinked directory that leads out of the root; one that stays inside is found under its own
    name.
    """
    said = printable(path)
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            return None
    except PermissionError as error:
        message = f"{said}: a symbolic link whose target may not be read ({error.strerror}): not followed"
        return LogError(path=Path(said), reason=LogErrorReason.PERMISSION_DENIED, message=message)
    except OSError:
        return None  # it leads nowhere: dangling, in a circle, through a file
    # Not Path.resolve, which has an error of its own for links in a circle.
    target = os.path.realpath(path)
    if Path(target).is_relative_to(os.path.realpath(root)):
        return None
    message = (
        f"{said}: a symbolic link to {printable(target)}, outside of {root}: not followed; make that directory a root"
    )
    return LogError(path=Path(said), reason=LogErrorReason.OUTSIDE_ROOT, message=message)
