"""How the name of a segment comes to stand for another file: atomically, and only if it still is what it was.

The name is checked once more right before the system call that replaces it. What remains is the moment between the
two, which no file system of all that hold logs can close: a compaction of the owner's own must not run at that time.
"""

from __future__ import annotations

from pathlib import Path

from compaction.segments.directory import fs
from compaction.segments.directory.listing import regular_identity
from compaction.segments.format.names import link_name
from compaction.segments.model import FileIdentity


def put_link(directory: Path, name: str, source: Path, *, expected: FileIdentity) -> bool:
    """Replace the segment `name` by a hard link to `source`; False, and nothing is done, if it is not `expected`."""
    temporary = directory / link_name(name)
    fs.unlink_if_present(temporary)
    fs.link(source, temporary)
    done = _put(directory / name, temporary, expected)
    # rename() between two names of one file does nothing and leaves both.
    fs.unlink_if_present(temporary)
    return done


def put_symlink(directory: Path, name: str, target: str, *, expected: FileIdentity) -> bool:
    """Replace the segment `name` by a relative symlink to its sibling `target`; False if it is not `expected`."""
    temporary = directory / link_name(name)
    fs.unlink_if_present(temporary)
    fs.symlink(target, temporary)
    done = _put(directory / name, temporary, expected)
    if not done:
        fs.unlink_if_present(temporary)
    return done


def _put(name: Path, temporary: Path, expected: FileIdentity) -> bool:
    if regular_identity(name) != expected:
        return False
    fs.rename(temporary, name)
    return True
