"""The marker of an owner that follows compactions: `compaction.owner` in the directory of its system of logs.

Without it, write-ahead logs (`*.wal`) above a log belong to a server of unknown kind, whose list of segments may be in
its memory, and the log is left alone. The marker is that owner's own word, in version 1, that it keeps to the rules of
docs/design/segment-owner.md while it runs: it takes the log's lock for what it deletes, finds replaced segments by name
and inode, writes the newest segment only, and deletes no other name than by these rules. It is written and synced
before the system's first write-ahead log, and stays for ever: after a stop, or a kill, the same is true.

It says nothing about a Ra server. Where `meta.dets` or `names.dets` lie, which every Ra server creates when it starts,
its rules decide (`owner`).
"""

from __future__ import annotations

import json
import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

from compaction.segments.directory import fs
from compaction.segments.directory.access import replace_file
from compaction.segments.directory.lock import HeldLock

MARKER_FILE: Final = "compaction.owner"
TEMPORARY_FILE: Final = "compaction.owner.tmp"
RULES: Final = 1
"""The version of the rules that an owner keeps to."""
_LARGEST: Final = 4096


class Marker(StrEnum):
    """What the marker says."""

    ABSENT = "Absent"
    FOLLOWS = "Follows"
    FOREIGN = "Foreign"
    """It is no marker, or of other rules than are known here."""


def read_marker(system: Path) -> tuple[Marker, str]:
    """What the marker in the directory of a system says, and what is wrong with one that is FOREIGN. Never raises: what
    cannot be read is no evidence.
    """
    # O_NONBLOCK: no FIFO under this name may hang us before it is refused.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(system / MARKER_FILE, flags)
    except FileNotFoundError:
        return Marker.ABSENT, ""
    except OSError as error:
        return Marker.FOREIGN, error.strerror or str(error)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Marker.FOREIGN, "it is not a regular file"
        return _judge(os.pread(fd, _LARGEST, 0))
    except OSError as error:
        return Marker.FOREIGN, error.strerror or str(error)
    finally:
        os.close(fd)


def write_marker(system: Path, *, held: HeldLock) -> None:
    """Say, durably, that the owner of this system follows compactions. `held`: the system's lock. OSError passes
    through.
    """
    if read_marker(system)[0] is Marker.FOLLOWS:
        # A crash may have come between its rename and the sync of the directory.
        fs.sync_directory(system)
        return
    data = json.dumps({"owner": "LogSystem", "rules": RULES}).encode()
    replace_file(system / TEMPORARY_FILE, system / MARKER_FILE, data, access=None, held=held)
    fs.sync_directory(system)


def _judge(data: bytes) -> tuple[Marker, str]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return Marker.FOREIGN, "it is not JSON"
    rules = said.get("rules") if isinstance(said, dict) else None
    if type(rules) is not int or rules != RULES:
        return Marker.FOREIGN, f"it is not of rules {RULES}"
    return Marker.FOLLOWS, ""
