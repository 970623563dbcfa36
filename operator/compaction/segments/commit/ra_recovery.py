"""Half-done work of Ra's own major compaction: `L.compaction_group` markers.

Its steps: docs/design/segment-commit.md#the-protocol-of-ra.

Ra infers "the compacted file was renamed over L" from the absence of `L.compacting`, which is wrong when it died before
creating it (B1), and cannot start with two markers (B4). Here the leader's CONTENT decides: the other members become
symlinks only if the leader holds every live entry of each of them. Without that proof they stay regular files, which
is always safe: a reader takes from the leader what lies below the next member's first index, and the rest from the
members. A member that alone holds an entry which newer files hide stays as well, whatever the leader holds. The leader
is durable before a member goes. The marker is always removed, first, because it is what Ra draws the wrong conclusion
from.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from compaction.segments.commit import coverage, replacing
from compaction.segments.commit.evidence import SegmentReplacement
from compaction.segments.directory import fs
from compaction.segments.directory.listing import status
from compaction.segments.errors import SegmentLogError, TermFormatError
from compaction.segments.format import etf, names
from compaction.segments.format.codec import pread_up_to
from compaction.segments.model import SEGMENT_NAME
from compaction.segments.reading.view import open_log

_MAX_MARKER_BYTES = 1 << 20


class RaOutcome(StrEnum):
    """What became of a half-done compaction of Ra."""

    ABORTED = "Aborted"
    """`.compacting` was still there: the members are untouched."""
    FINISHED = "Finished"
    """The leader holds every live entry of the other members: they are symlinks to it now."""
    UNPROVEN = "Unproven"
    """The leader does not, or it is unknown: the members stay files of their own."""
    CLEANED = "Cleaned"
    """A group of one, or a marker that says nothing: only the marker had to go."""


@dataclass(frozen=True, slots=True)
class RaRecovery:
    """One marker: the leading segment, the group's members in the readable part of the marker, and what was done."""

    leader: str
    members: tuple[str, ...]
    outcome: RaOutcome


def settle_marker(directory: Path, marker: str) -> RaRecovery:
    """Settle one marker; the log's lock must be held. OSError passes through.

    The `.compacting` file of an aborted one is left to `recovery`, which removes it if nothing in it is needed.
    """
    leader = names.parse_ra_marker(marker)
    if leader is None:
        raise ValueError(f"{marker!r} is not a marker's name")
    members = _read_marker(directory / marker, leader)
    compacting = directory / names.ra_compacting_name(leader)
    aborted = status(compacting) is not None
    # `.compacting` still there proves that the rename did not happen; its absence proves nothing, so content decides.
    proven = () if aborted or len(members) < 2 else _covered(directory, leader, members)
    if proven:
        # Ra syncs neither its rename nor, always, what it renamed; and the members are the only other copy.
        fs.sync_file(directory / leader)
        fs.sync_directory(directory)
    for one in proven:
        if not replacing.put_symlink(directory, one.segment, leader, expected=one.identity):
            break
    if proven:
        fs.sync_directory(directory)
    fs.unlink_if_present(directory / marker)
    # Durable before `.compacting` goes: the marker alone would tell Ra that the group was committed.
    fs.sync_directory(directory)
    return RaRecovery(leader=leader, members=members, outcome=_outcome(directory, leader, members, aborted=aborted))


def _outcome(directory: Path, leader: str, members: tuple[str, ...], *, aborted: bool) -> RaOutcome:
    if aborted:
        return RaOutcome.ABORTED
    if len(members) < 2:
        return RaOutcome.CLEANED
    linked = all((directory / name).is_symlink() for name in members if name != leader)
    return RaOutcome.FINISHED if linked else RaOutcome.UNPROVEN


def _read_marker(path: Path, leader: str) -> tuple[str, ...]:
    """The members a marker lists, ascending; empty when it is torn, foreign, or lists what it cannot."""
    try:
        term = etf.decode(_marker_bytes(path))
    except TermFormatError:
        return ()
    if not isinstance(term, list) or not all(isinstance(item, bytes) for item in term):
        return ()
    members = [os.fsdecode(item) for item in term if isinstance(item, bytes)]
    if any(SEGMENT_NAME.fullmatch(name) is None for name in members) or leader != min(members, default=""):
        return ()
    return tuple(sorted(set(members)))


def _marker_bytes(path: Path) -> bytes:
    """The content of a marker; nothing of what is no file, or larger than any marker. Never waits for a FIFO."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        if path.is_symlink():
            return b""
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_MARKER_BYTES:
            return b""
        return pread_up_to(fd, found.st_size, 0)
    finally:
        os.close(fd)


def _covered(directory: Path, leader: str, members: tuple[str, ...]) -> tuple[SegmentReplacement, ...]:
    """The members that can become symlinks: all that are still regular files, if the leader covers them; else none.

    All or nothing, and nothing when the live set is unknown.
    """
    try:
        log = open_log(directory)
    except SegmentLogError:
        return ()
    if log.live is None:
        return ()
    regular = [name for name in members if name != leader and name not in log.links and (directory / name).exists()]
    present = {segment.name for segment in log.segments}
    between = [name for name in present if leader < name <= members[-1] and name not in members]
    if between or not all(coverage.covers(log, leader, name) for name in regular):
        return ()
    return tuple(SegmentReplacement(name, log.segment(name).identity) for name in regular)
