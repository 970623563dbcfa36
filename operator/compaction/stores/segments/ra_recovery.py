"""Half-done work of Ra's own major compaction: `L.compaction_group` markers (research/ra.md §3.3-3.4).

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

import numpy as np

from compaction.exceptions import SegmentLogError, TermFormatError
from compaction.stores.segments import etf, fs, names
from compaction.stores.segments.codec import pread_up_to
from compaction.stores.segments.listing import status
from compaction.stores.segments.model import SEGMENT_NAME, SegmentIndex
from compaction.stores.segments.seq import LiveSet
from compaction.stores.segments.unreferenced import find_stranded
from compaction.stores.segments.view import LogState, open_log

_MAX_MARKER_BYTES = 1 << 20


class RaOutcome(StrEnum):
    """What became of a half-done compaction of Ra."""

    ABORTED = "Aborted"
    """`.compacting` was still there: it is discarded, the members are untouched."""
    FINISHED = "Finished"
    """The leader holds every live entry of the other members: they are symlinks to it now."""
    UNPROVEN = "Unproven"
    """The leader does not, or it cannot be told: the members stay files of their own."""
    CLEANED = "Cleaned"
    """A group of one, or a marker that says nothing: only the marker had to go."""


@dataclass(frozen=True, slots=True)
class RaRecovery:
    """One marker: the leading segment, the group's members as far as the marker was readable, and what was done."""

    leader: str
    members: tuple[str, ...]
    outcome: RaOutcome


def settle_marker(directory: Path, marker: str) -> RaRecovery:
    """Settle one marker; the log's lock must be held. OSError passes through."""
    leader = names.parse_ra_marker(marker)
    if leader is None:
        raise ValueError(f"{marker!r} is not a marker's name")
    members = _read_marker(directory / marker, leader)
    compacting = directory / names.ra_compacting_name(leader)
    aborted = status(compacting) is not None
    proven = () if aborted or len(members) < 2 else _covered(directory, leader, members)
    if proven:
        # Ra syncs neither its rename nor, always, what it renamed; and the members are the only other copy.
        fs.sync_file(directory / leader)
        fs.sync_directory(directory)
    for name in proven:
        fs.unlink_if_present(directory / names.link_name(name))
        fs.symlink(leader, directory / names.link_name(name))
        fs.rename(directory / names.link_name(name), directory / name)
    if proven:
        fs.sync_directory(directory)
    fs.unlink_if_present(directory / marker)
    # Durable before `.compacting` goes: the marker alone would tell Ra that the group was committed.
    fs.sync_directory(directory)
    if aborted and fs.unlink_if_present(compacting):
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


def _covered(directory: Path, leader: str, members: tuple[str, ...]) -> tuple[str, ...]:
    """The members that can become symlinks: all that are still regular files, if the leader covers them; else none.

    All or nothing, and never past the newest segment or the snapshot: what is above the snapshot is needed whole.
    """
    try:
        log = open_log(directory)
    except SegmentLogError:
        return ()
    if log.live is None or log.snapshot_index is None or not log.refs:
        return ()
    regular = [name for name in members if name != leader and name not in log.links and (directory / name).exists()]
    present = {segment.name for segment in log.segments}
    if leader not in present or any(name not in present or name >= log.refs[-1].name for name in regular):
        return ()
    between = [name for name in present if leader < name <= members[-1] and name not in members]
    if between or not all(_covers(log, leader, name, log.live) for name in regular):
        return ()
    # Coverage is about what is read from a member. What newer files hide in it comes back when those are deleted.
    if not find_stranded(log, log.live).keys().isdisjoint(regular):
        return ()
    return tuple(regular)


def _covers(log: LogState, leader: str, member: str, live: LiveSet) -> bool:
    """Whether the leader holds every live entry that is read from the member now: index, term, and the same payload."""
    ref = next((ref for ref in log.refs if ref.name == member), None)
    if ref is None:
        return True
    if log.snapshot_index is None or ref.last > log.snapshot_index:
        return False
    output, source = log.segment(leader), log.segment(member)
    wanted = log.readable(ref)
    wanted = wanted[live.mask(source.idx[wanted])]
    if wanted.size != live.count_in(ref.first, ref.last):
        return False
    held = np.flatnonzero(output.effective)
    at = np.searchsorted(output.idx[held], source.idx[wanted])
    if np.any(at >= held.size):
        return False
    found = held[at]
    same = (
        (output.idx[found] == source.idx[wanted])
        & (output.term[found] == source.term[wanted])
        & (output.length[found] == source.length[wanted])
        & (output.crc[found] == source.crc[wanted])
    )
    return bool(np.all(same)) and _same_payloads(output, source, found.tolist(), wanted.tolist())


def _same_payloads(output: SegmentIndex, source: SegmentIndex, found: list[int], wanted: list[int]) -> bool:
    """Byte comparison: equal stored checksums prove nothing about bytes that never reached the disk."""
    left, right = (os.open(s.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) for s in (output, source))
    try:
        for mine, theirs in zip(found, wanted, strict=True):
            length = int(source.length[theirs])
            copy = pread_up_to(left, length, int(output.offset[mine]))
            if len(copy) != length or copy != pread_up_to(right, length, int(source.offset[theirs])):
                return False
    finally:
        os.close(left)
        os.close(right)
    return True
