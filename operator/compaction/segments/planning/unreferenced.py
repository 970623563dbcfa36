"""Segments that hold nothing live, by the one rule of plan, commit and deletion; and the limits of a compacted
segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

import numpy as np

from compaction.segments.commit.records import SegmentTombstone, TombstoneKind, UnreferencedReason
from compaction.segments.errors import CorruptSegmentError, InvalidGroupError
from compaction.segments.format.names import MAX_SOURCES
from compaction.segments.model import (
    DEFAULT_MAX_COUNT,
    DEFAULT_MAX_SIZE,
    MAX_COUNT_LIMIT,
    FileIdentity,
    SegmentIndex,
    U64Array,
    torn_from,
)
from compaction.segments.reading.view import LogState, SegmentRef, open_log
from compaction.segments.snapshot.live_indexes import LiveSet

# Limits of a compacted segment, and the treatment of a snapshot that does not say what is live.


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of one compacted segment: entries (1..65535, 16 bits on disk), payload bytes, and source segments (1..8).

    An equal number fits (docs/design/segment-planning.md#groups). InvalidGroupError when a limit is out of range.
    """

    max_entries: int = DEFAULT_MAX_COUNT
    max_bytes: int = DEFAULT_MAX_SIZE
    max_sources: int = MAX_SOURCES

    def __post_init__(self) -> None:
        if not 1 <= self.max_entries <= MAX_COUNT_LIMIT:
            raise InvalidGroupError(f"max_entries {self.max_entries} is not in 1..{MAX_COUNT_LIMIT}")
        if self.max_bytes < 1:
            raise InvalidGroupError(f"max_bytes {self.max_bytes} is not positive")
        if not 1 <= self.max_sources <= MAX_SOURCES:
            raise InvalidGroupError(f"max_sources {self.max_sources} is not in 1..{MAX_SOURCES}")


class IndexesMissing(StrEnum):
    """The meaning of a snapshot without its `indexes` file.

    See W2 in docs/design/segment-commit.md#windows-of-the-reference.
    """

    REFUSE = "Refuse"
    """Unknown: plan nothing until a user states what is live."""
    TREAT_AS_EMPTY = "TreatAsEmpty"
    """Empty: only right when the log's owner keeps no live indexes."""


# Segments that hold nothing that anybody needs: one rule, used by the plan, the commit and, before a deletion, the
# sweep.
#
# A segment is dead (docs/design/segment-planning.md) when it lies wholly at or below the newest segment that may be
# compacted, and
#
# * every record is hidden by newer files (an orphan of an overwrite), or
# * it has no entries at all, or
# * no live index is in the range that is read from it.
#
# A damaged segment is never dead, nor is one that a damaged one may hide: what a file holds is known from its
# records, and damage is that they do not account for all of it. While live entries are missing (`reading.view`),
# none is dead.
#
# The newest segment, the newest one with entries, and everything that reaches above the snapshot are never dead. Nor
# is a segment with a *stranded* entry: a live index that newer files hide here and provide nowhere. Ra leaves such a
# log when it dies between linking a group around a dead segment and deleting that one: the compacted file then lies
# hidden behind the dead segment. Once the dead segment is deleted, the stranded entries can be read again.


@dataclass(frozen=True, slots=True)
class DeadSegment:
    """A segment that no reader needs, why, and which file it is."""

    name: str
    reason: UnreferencedReason
    identity: FileIdentity

    def tombstone(self, *, since: float, job: str, token: int = 0, holder: str = "") -> SegmentTombstone:
        """The mark with which this file, and no other under its name, waits for its deletion."""
        return SegmentTombstone(
            name=self.name,
            kind=TombstoneKind.UNREFERENCED,
            since=since,
            job=job,
            token=token,
            holder=holder,
            bytes=self.identity.size,
            reason=self.reason,
            identity=self.identity,
        )


def known_live(log: LogState, indexes_missing: IndexesMissing) -> LiveSet:
    """Return the live set at or below the snapshot that is in force; without any snapshot nothing is below it.

    "Treat as empty" speaks of one thing only: the directory's own snapshot, in force, without its `indexes` file. A
    snapshot index that a caller gave without a live set, whatever the directory holds, is of a state that no caller
    described: LiveSetUnknownError, as for a missing file when the policy is to refuse.
    """
    if log.live is not None:
        return log.live
    if log.snapshot_index is None:
        return LiveSet.empty()
    own = log.snapshot if log.snapshot and log.snapshot.index == log.snapshot_index else None
    missing = own is not None and own.live is None and own.live_error is None
    if missing and indexes_missing is IndexesMissing.TREAT_AS_EMPTY:
        return LiveSet.empty()
    raise log.live_unknown()


def damage_of(log: LogState) -> Iterator[CorruptSegmentError]:
    """One error for each damaged segment that its owner has closed."""
    for segment in log.segments[:-1]:
        if segment.damage:
            yield CorruptSegmentError(str(segment.path), segment.damage)


def torn_newest(log: LogState) -> str:
    """Describe the damage of a power failure in a flush to the newest segment with entries; empty when it is whole.

    Half a slot may name any smaller index, and hide what is needed above it (docs/design/segment-wal.md).
    """
    newest = log.segment(log.refs[-1].name) if log.refs else None
    if newest is None or (torn_from(newest) is None and not newest.is_holed):
        return ""
    return f"the power failed while {log.refs[-1].name} was written: start the log's owner, which repairs it"


def compactable_refs(log: LogState) -> tuple[SegmentRef, ...]:
    """The refs that a compaction may touch: all but the newest, if they end at or below the snapshot. None while the
    newest segment is torn, or live entries are missing: until it is known what took them, any file may be the only
    trace of one.
    """
    if log.snapshot_index is None or log.missing or torn_newest(log):
        return ()
    end = 0
    for ref in log.refs[:-1]:
        if ref.last > log.snapshot_index:
            break
        end += 1
    return log.refs[:end]


def find_stranded(log: LogState, live: LiveSet) -> dict[str, int]:
    """By segment name, the smallest live index that only this or other hidden records hold."""
    if not live:
        return {}
    last_read = {ref.name: ref.last for ref in log.refs}
    hidden: dict[str, U64Array] = {}
    for segment in log.segments:
        keys = segment.idx[segment.effective]
        if segment.name in last_read:
            keys = keys[keys > np.uint64(last_read[segment.name])]
        keys = keys[live.mask(keys)]
        if keys.size:
            hidden[segment.name] = keys
    if not hidden:
        return {}
    readable = np.concatenate([log.segment(ref.name).idx[log.readable(ref)] for ref in log.refs])
    stranded = {name: np.setdiff1d(keys, readable) for name, keys in hidden.items()}
    return {name: int(keys[0]) for name, keys in stranded.items() if keys.size}


def find_dead(log: LogState, live: LiveSet, *, stranded: dict[str, int] | None = None) -> dict[str, DeadSegment]:
    """Dead segments by name. `stranded`: the answer of `find_stranded`, when it is known already."""
    refs = compactable_refs(log)
    if not refs:
        return {}
    reasons = {ref.name: UnreferencedReason.NO_LIVE_INDEX for ref in refs if not live.count_in(ref.first, ref.last)}
    orphans = frozenset(log.orphans)
    damaged = {segment.name for segment in log.segments if segment.name <= refs[-1].name and segment.damage}
    for segment in log.segments:
        if segment.name > refs[-1].name:
            break
        if not segment.count:
            reasons[segment.name] = UnreferencedReason.NO_ENTRIES
        elif segment.name in orphans and segment.name > max(damaged, default="") and not _drops(log, segment):
            reasons[segment.name] = UnreferencedReason.OVERWRITTEN
    if stranded is None:
        stranded = find_stranded(log, live)
    return {
        name: DeadSegment(name=name, reason=reason, identity=log.segment(name).identity)
        for name, reason in sorted(reasons.items())
        if name not in stranded and name not in damaged
    }


def _drops(log: LogState, orphan: SegmentIndex) -> bool:
    """Return whether newer files hide entries above the snapshot in it that are nowhere else, and drop none of them.

    A file of a later term drops entries, as its leader did. A file of no later term that hides them is an old file
    under a new name.
    """
    assert log.snapshot_index is not None
    rows = orphan.effective & (orphan.idx > np.uint64(log.snapshot_index))
    if not rows.any():
        return False
    newer = [segment for segment in log.segments if segment.name > orphan.name and segment.count]
    held = np.concatenate([segment.idx for segment in newer]) if newer else orphan.idx[:0]
    lost = rows & ~np.isin(orphan.idx, held)
    latest = max((int(segment.term.max()) for segment in newer), default=0)
    return bool(np.any(orphan.term[lost] >= np.uint64(latest)))


class ToldOfLive(TypedDict, total=False):
    """What a caller says of the live entries of a log, in place of what its directory says: see `open_log`."""

    snapshot_index: int | None
    live: LiveSet | None
    indexes_missing: IndexesMissing
    wal_directory: Path | None


def dead_segments(
    directory: Path,
    *,
    snapshot_index: int | None = None,
    live: LiveSet | None = None,
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE,
    wal_directory: Path | None = None,
) -> dict[str, DeadSegment]:
    """Dead segments of a log as it is on disk now. Errors as of `open_log`, LiveSetUnknownError, and
    LiveEntriesMissingError: until they are found, none is known to be dead.
    """
    log = open_log(directory, snapshot_index=snapshot_index, live=live, wal_directory=wal_directory)
    if log.missing:
        raise log.entries_missing()
    return find_dead(log, known_live(log, indexes_missing))
