"""Proofs by content: what one file holds of another, and what a log provides without a file.

Asked before a name is replaced, or a file removed, whose content is no longer known: a commit without its
record, a restored copy, Ra's own half-done compaction. Everything here reads, nothing changes.
"""

from __future__ import annotations

import os

import numpy as np

from compaction.segments.format.codec import pread_up_to
from compaction.segments.model import RowArray, SegmentIndex, U64Array
from compaction.segments.planning.unreferenced import find_stranded
from compaction.segments.reading.view import LogState, SegmentRef


def covers(log: LogState, leader: str, member: str) -> bool:
    """Whether the segment `member` can become a link to `leader` without a loss.

    The leader holds everything that must survive of what is read from the member now: index, term, the same bytes.
    False as well for what reaches above the snapshot, for the newest segment, for a damaged one, for a member that
    alone holds a live entry which newer files hide, and while live entries are missing. When the live set is unknown,
    everything is live.
    """
    present = {segment.name for segment in log.segments}
    if log.snapshot_index is None or not log.refs or member >= log.refs[-1].name or not {leader, member} <= present:
        return False
    if log.missing or log.segment(member).damage or _holds_stranded(log, member):
        return False
    ref = log.ref(member)
    return ref is None or _holds_all(log, leader, ref, log.snapshot_index)


def _holds_stranded(log: LogState, member: str) -> bool:
    """Coverage is about what is read from a member. What newer files hide in it comes back when those are deleted."""
    if log.live is not None:
        return member in find_stranded(log, log.live)
    segment, ref = log.segment(member), log.ref(member)
    readable = 0 if ref is None else log.readable(ref).size
    return readable < int(np.count_nonzero(segment.effective))


def _holds_all(log: LogState, leader: str, ref: SegmentRef, snapshot_index: int) -> bool:
    if ref.last > snapshot_index:
        return False
    output, source = log.segment(leader), log.segment(ref.name)
    wanted = log.readable(ref)
    if log.live is not None:
        wanted = wanted[log.live.mask(source.idx[wanted])]
        if wanted.size != log.live.count_in(ref.first, ref.last):
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
    return bool(np.all(same)) and same_payloads(output, found, source, wanted)


def same_payloads(one: SegmentIndex, rows: RowArray, other: SegmentIndex, other_rows: RowArray) -> bool:
    """Whether the payloads of `rows` are those of `other_rows`, position by position; False for a torn one.

    Bytes are compared: equal stored checksums prove nothing about bytes that never reached the disk.
    """
    left, right = (os.open(s.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW) for s in (one, other))
    try:
        for mine, theirs in zip(rows.tolist(), other_rows.tolist(), strict=True):
            length = int(other.length[theirs])
            if int(one.length[mine]) != length:
                return False
            copy = pread_up_to(left, length, int(one.offset[mine]))
            if len(copy) != length or copy != pread_up_to(right, length, int(other.offset[theirs])):
                return False
    finally:
        os.close(left)
        os.close(right)
    return True


def not_provided(log: LogState, segment: SegmentIndex) -> U64Array:
    """The indexes that must survive, that the file `segment` holds, and that the log does not provide.

    `segment`: a file that is no part of the log. When the live set is unknown, everything is live.
    """
    held = segment.idx[segment.effective]
    if log.snapshot_index is None or log.live is not None:
        held = held[log.live_mask(held)]
    if not held.size or not log.refs:
        return held
    readable = np.concatenate([log.segment(ref.name).idx[log.readable(ref)] for ref in log.refs])
    return np.setdiff1d(held, readable)
