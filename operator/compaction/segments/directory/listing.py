"""Reading names and files of a log directory without changing anything: small questions, answered by lstat."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from compaction.segments.model import SEGMENT_NAME, FileIdentity, segment_number


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
