"""One consistent reading of all segment files of a directory, while compactions, sweeps and the owner go on changing
it.

A reading counts if the names are the same after it as before; else it is made again, and what did not change is not
read again. (A directory that changes while it is listed may show a replaced name twice, or not at all.)

The newest segment is read each time, and once more when it is the newest no longer: its slots are written in place
behind its data, so within one tick of the file system's clock, or while a slot is copied, size and time say nothing.
The others do not change: a segment is whole before the next one is created.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.segments.directory.listing import regular_identity
from compaction.segments.errors import (
    CorruptSegmentError,
    LogChangedError,
    NotALogDirectoryError,
    SegmentIsLinkError,
    SegmentNameError,
)
from compaction.segments.format.codec import read_segment
from compaction.segments.model import SEGMENT_NAME, SEGMENT_SUFFIX, SegmentIndex

# A commit replaces at most 8 sources and what lies between; looks after the first one read only what was replaced.
LOOKS: Final = 20


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Regular segments in name order, symlinks (name -> base name of the target), and files that cannot be parsed."""

    segments: tuple[SegmentIndex, ...]
    links: dict[str, str]
    errors: tuple[SegmentNameError | CorruptSegmentError, ...]


def read_segments(directory: Path, *, known: Mapping[str, SegmentIndex] | None = None) -> SegmentFiles:
    """Parse the index of every segment file; of `known` ones, all of an earlier reading, only if the file is another,
    or was written to, since.

    Raises:
        NotALogDirectoryError: not a directory, or one without any segment.
        LogChangedError: names changed during each of `LOOKS` looks.
    """
    parsed = dict(known or {})
    parsed.pop(max(parsed, default=""), None)
    before = _list_names(directory)
    for _ in range(LOOKS):
        try:
            found = _parse(directory, before, parsed)
        except (FileNotFoundError, SegmentIsLinkError, _NotALinkError):
            found = None
        after = _list_names(directory)
        if found is not None and after == before:
            return found
        before = after
    raise LogChangedError(str(directory))


class _NotALinkError(Exception):
    """A name was a symlink when it was listed, and is none any more."""


def _list_names(directory: Path) -> dict[str, bool]:
    """Everything named *.segment, in name order, and whether it is a symlink."""
    try:
        with os.scandir(directory) as entries:
            return dict(sorted((e.name, e.is_symlink()) for e in entries if e.name.endswith(SEGMENT_SUFFIX)))
    except FileNotFoundError as error:
        raise NotALogDirectoryError(str(directory), "it does not exist") from error
    except NotADirectoryError as error:
        raise NotALogDirectoryError(str(directory), "it is not a directory") from error


def _parse(directory: Path, names: dict[str, bool], parsed: dict[str, SegmentIndex]) -> SegmentFiles:
    """Read what `parsed` does not hold already, and add it there, but for the newest."""
    segments: list[SegmentIndex] = []
    links: dict[str, str] = {}
    errors: list[SegmentNameError | CorruptSegmentError] = []
    regular = [name for name, is_link in names.items() if not is_link and SEGMENT_NAME.fullmatch(name)]
    for name, is_link in names.items():
        path = directory / name
        if not SEGMENT_NAME.fullmatch(name):
            errors.append(SegmentNameError(str(path)))
        elif is_link:
            links[name] = _target(path)
        else:
            try:
                segments.append(_read(path, parsed, newest=name == regular[-1]))
            except SegmentIsLinkError:
                raise
            except CorruptSegmentError as error:
                errors.append(error)
    if not segments and not errors:
        raise NotALogDirectoryError(str(directory), "it holds no segment file (NNNNNNNNNNNNNNNN.segment)")
    return SegmentFiles(segments=tuple(segments), links=links, errors=tuple(errors))


def _read(path: Path, parsed: dict[str, SegmentIndex], *, newest: bool) -> SegmentIndex:
    if newest:
        return read_segment(path, newest=True)
    known = parsed.get(path.name)
    if known is None or regular_identity(path) != known.identity:
        known = parsed[path.name] = read_segment(path)
    return known


def _target(path: Path) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise _NotALinkError from error
        raise
