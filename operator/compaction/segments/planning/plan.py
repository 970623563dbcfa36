"""The plan of a compaction of one log, with a reason for every segment left alone: pure decisions over a `LogState`.

The rules are Ra's (docs/design/segment-planning.md): dead segments are unreferenced; runs of adjacent segments that are
less than half live, by entries or by bytes, become one. Differences:

* a group has at most `max_sources` sources;
* a dead segment between two sources is carried along: with nothing to copy, but replaced in the same commit, because
  left in place it would hide the compacted entries above its own first index from readers
  (docs/design/segment-files.md#log-view). Ra deletes it later instead: a crash in between costs it the hidden entries;
* live bytes are those that will be copied: a rewritten index is counted once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from compaction.segments.commit.records import UnreferencedReason
from compaction.segments.errors import CorruptSegmentError, SourcesChangedError
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES, FileIdentity, RowArray, SegmentIndex
from compaction.segments.planning.unreferenced import (
    DeadSegment,
    IndexesMissing,
    SegmentLimits,
    compactable_refs,
    find_dead,
    find_stranded,
    known_live,
    torn_newest,
)
from compaction.segments.reading.view import LogState, MissingEntries, SegmentRef
from compaction.segments.snapshot.live_indexes import LiveSet

IndexRange = tuple[int, int]


class LeftAloneReason(StrEnum):
    """The reason why a segment is not touched."""

    NO_SNAPSHOT = "NoSnapshot"
    NEWEST_SEGMENT = "NewestSegment"
    NEWEST_TORN = "NewestTorn"
    LIVE_ENTRIES_MISSING = "LiveEntriesMissing"
    DAMAGED = "Damaged"
    ABOVE_SNAPSHOT = "AboveSnapshot"
    DENSE_ENOUGH = "DenseEnough"
    ALONE_TOO_LARGE = "AloneTooLarge"
    QUARANTINED = "Quarantined"
    STRANDED_ENTRIES = "StrandedEntries"
    AWAITING_DELETION = "AwaitingDeletion"


@dataclass(frozen=True, slots=True)
class LeftAloneSegment:
    """A segment that stays, the reason, and the numbers behind it in words."""

    name: str
    reason: LeftAloneReason
    detail: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Adjacent segments that become one. `source_bytes` are file sizes, `live_bytes` payloads that will be copied.

    `carried`: dead segments between the sources; they go in the same commit, and count in `source_bytes`.
    """

    sources: tuple[str, ...]
    live_entries: int
    live_bytes: int
    source_bytes: int
    carried: tuple[str, ...] = ()

    @property
    def output_bytes(self) -> int:
        """Size of the compacted file: header, index area, payloads."""
        return HEADER_BYTES + self.live_entries * SLOT_BYTES[2] + self.live_bytes

    @property
    def reclaimable_bytes(self) -> int:
        return max(0, self.source_bytes - self.output_bytes)


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """A segment that can be deleted, its file size, and why no reader needs it."""

    name: str
    bytes: int
    reason: UnreferencedReason


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The whole plan of one log. Every regular segment is in exactly one of the three lists.

    `live_entries`, `live_bytes`: what is live in the segments that may be compacted at all; `total_bytes`: size of all
    regular segment files. `debt_segments`: segments that would be rewritten or deleted.
    """

    groups: tuple[GroupPlan, ...] = ()
    unreferenced: tuple[Unreferenced, ...] = ()
    left_alone: tuple[LeftAloneSegment, ...] = ()
    live_entries: int = 0
    live_bytes: int = 0
    total_bytes: int = 0

    @property
    def debt_bytes(self) -> int:
        return sum(g.reclaimable_bytes for g in self.groups) + sum(u.bytes for u in self.unreferenced)

    @property
    def debt_segments(self) -> int:
        return sum(len(g.sources) + len(g.carried) for g in self.groups) + len(self.unreferenced)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A segment as the grouping sees it. `size` is the file's."""

    name: str
    size: int
    entries: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Grouping:
    """The greedy pass, oldest to newest. `behind`: dead segments that are carried only if another source follows."""

    limits: SegmentLimits
    groups: list[GroupPlan] = field(default_factory=list)
    sources: list[_Candidate] = field(default_factory=list)
    carried: list[_Candidate] = field(default_factory=list)
    behind: list[_Candidate] = field(default_factory=list)

    def fits_alone(self, candidate: _Candidate) -> bool:
        return candidate.entries <= self.limits.max_entries and candidate.bytes <= self.limits.max_bytes

    def fits(self, candidate: _Candidate) -> bool:
        """An equal number fits."""
        return (
            sum(s.entries for s in self.sources) + candidate.entries <= self.limits.max_entries
            and sum(s.bytes for s in self.sources) + candidate.bytes <= self.limits.max_bytes
            and len(self.sources) + 1 <= self.limits.max_sources
        )

    def add(self, candidate: _Candidate) -> None:
        if self.sources and not self.fits(candidate):
            self.close()
        self.carried += self.behind
        self.behind = []
        self.sources.append(candidate)

    def carry(self, dead: _Candidate) -> None:
        if self.sources:
            self.behind.append(dead)

    def close(self) -> None:
        """End the open group, if any; dead segments behind its last source stay outside."""
        if self.sources:
            self.groups.append(
                GroupPlan(
                    sources=tuple(s.name for s in self.sources),
                    live_entries=sum(s.entries for s in self.sources),
                    live_bytes=sum(s.bytes for s in self.sources),
                    source_bytes=sum(s.size for s in (*self.sources, *self.carried)),
                    carried=tuple(s.name for s in self.carried),
                )
            )
        self.sources, self.carried, self.behind = [], [], []


def plan_log(
    log: LogState,
    limits: SegmentLimits,
    *,
    quarantined: frozenset[str] = frozenset(),
    awaiting_deletion: frozenset[str] = frozenset(),
    indexes_missing: IndexesMissing = IndexesMissing.REFUSE,
) -> LogPlan:
    """The plan of one log.

    `quarantined`: segments that must not be rewritten (known to be corrupt). `awaiting_deletion`: segments that were
    marked as unreferenced already.

    Raises:
        LiveSetUnknownError: the snapshot does not say what is live, and the policy is to refuse.
    """
    live = known_live(log, indexes_missing)
    refs = {ref.name: ref for ref in compactable_refs(log)}
    stranded = find_stranded(log, live)
    dead = find_dead(log, live, stranded=stranded)
    grouping = _Grouping(limits)
    left_alone: list[LeftAloneSegment] = []
    live_entries = live_bytes = 0
    for segment in log.segments:
        name = segment.name
        if name in dead:
            grouping.carry(_Candidate(name=name, size=segment.identity.size))
            continue
        ref = refs.get(name)
        candidate = None
        if ref is not None:
            rows = live_rows(log, ref, live)
            size = int(segment.length[rows].sum(dtype="u8"))
            live_entries, live_bytes = live_entries + rows.size, live_bytes + size
            candidate = _Candidate(name=name, size=segment.identity.size, entries=int(rows.size), bytes=size)
        reason = _why_left_alone(log, candidate, name, grouping, quarantined=quarantined, stranded=stranded)
        if reason is None and candidate is not None:
            grouping.add(candidate)
        elif reason is not None:
            # A segment that stays ends the group: only dead segments may lie between its sources.
            grouping.close()
            left_alone.append(reason)
    grouping.close()
    return _assemble(log, grouping.groups, dead, left_alone, awaiting_deletion, live_entries, live_bytes)


def live_rows(log: LogState, ref: SegmentRef, live: LiveSet) -> RowArray:
    """Positions of the records of a segment that a compaction keeps: readable through the ref, and live."""
    rows = log.readable(ref)
    return rows[live.mask(log.segment(ref.name).idx[rows])]


def _why_left_alone(
    log: LogState,
    candidate: _Candidate | None,
    name: str,
    grouping: _Grouping,
    *,
    quarantined: frozenset[str],
    stranded: dict[str, int],
) -> LeftAloneSegment | None:
    """The reason for a segment that is not dead; None when it is to be rewritten."""
    segment = log.segment(name)
    if log.snapshot_index is not None and log.missing:
        return LeftAloneSegment(name, LeftAloneReason.LIVE_ENTRIES_MISSING, str(MissingEntries.of(log.missing)))
    if segment.damage and name < log.newest:
        return LeftAloneSegment(name, LeftAloneReason.DAMAGED, segment.damage)
    if name in stranded:
        detail = f"live index {stranded[name]} is only in records that newer segments hide"
        return LeftAloneSegment(name, LeftAloneReason.STRANDED_ENTRIES, detail)
    if candidate is None:
        return _above(log, name)
    if name in quarantined:
        return LeftAloneSegment(name, LeftAloneReason.QUARANTINED, "a rewrite found it corrupt")
    if 2 * candidate.entries >= segment.count and 2 * candidate.bytes >= segment.data_bytes:
        entries, size = f"{candidate.entries} of {segment.count}", f"{candidate.bytes} of {segment.data_bytes}"
        detail = f"{entries} entries and {size} bytes are live"
        return LeftAloneSegment(name, LeftAloneReason.DENSE_ENOUGH, detail)
    if not grouping.fits_alone(candidate):
        most = f"{grouping.limits.max_entries} entries, {grouping.limits.max_bytes} bytes"
        detail = f"its {candidate.entries} live entries of {candidate.bytes} bytes exceed the limits of {most}"
        return LeftAloneSegment(name, LeftAloneReason.ALONE_TOO_LARGE, detail)
    return None


def _above(log: LogState, name: str) -> LeftAloneSegment:
    if log.snapshot_index is None:
        none = f"no valid snapshot ({log.rejected_snapshots[0]})" if log.rejected_snapshots else "no snapshot"
        return LeftAloneSegment(name, LeftAloneReason.NO_SNAPSHOT, f"{none}, so every entry is needed")
    if torn := torn_newest(log):
        return LeftAloneSegment(name, LeftAloneReason.NEWEST_TORN, torn)
    if name == log.newest or (log.refs and name >= log.refs[-1].name):
        return LeftAloneSegment(name, LeftAloneReason.NEWEST_SEGMENT, "the newest segment is its owner's")
    ref, over = log.ref(name), f"snapshot {log.snapshot_index}"
    detail = f"ends at {ref.last}, above {over}" if ref else f"hidden by newer segments, but not wholly below {over}"
    return LeftAloneSegment(name, LeftAloneReason.ABOVE_SNAPSHOT, detail)


def _assemble(
    log: LogState,
    groups: list[GroupPlan],
    dead: dict[str, DeadSegment],
    left_alone: list[LeftAloneSegment],
    awaiting: frozenset[str],
    live_entries: int,
    live_bytes: int,
) -> LogPlan:
    grouped = {name for group in groups for name in (*group.sources, *group.carried)}
    free = [d for name, d in dead.items() if name not in grouped]
    waiting = [
        LeftAloneSegment(d.name, LeftAloneReason.AWAITING_DELETION, f"{d.reason}: deleted after the grace")
        for d in free
        if d.name in awaiting
    ]
    return LogPlan(
        groups=tuple(groups),
        unreferenced=tuple(
            Unreferenced(name=d.name, bytes=d.identity.size, reason=d.reason) for d in free if d.name not in awaiting
        ),
        left_alone=tuple(sorted((*left_alone, *waiting), key=lambda item: item.name)),
        live_entries=live_entries,
        live_bytes=live_bytes,
        total_bytes=sum(segment.identity.size for segment in log.segments),
    )


# The check whether the groups of a plan may be rewritten, and committed, on a log as it is now.


@dataclass(frozen=True, slots=True)
class GroupRanges:
    """The facts of one reading about a group, and the files that it read: plain data, to be checked against.

    `spans`: for each source the range that is read from it, None for one that no reader needs; `identities`: the
    sources' files at that reading; `carried`: the segments between them, all dead at that reading.
    """

    spans: tuple[IndexRange | None, ...]
    identities: tuple[FileIdentity, ...]
    carried: tuple[DeadSegment, ...] = ()


class GroupCheck:
    """The check whether groups may (still) be rewritten on this log; computed once for any number of groups."""

    def __init__(self, log: LogState, live: LiveSet) -> None:
        self._log = log
        self._refs = {ref.name: ref for ref in compactable_refs(log)}
        self._stranded = find_stranded(log, live)
        self._dead = find_dead(log, live, stranded=self._stranded)
        self._present = [segment.name for segment in log.segments]

    @property
    def segments(self) -> Mapping[str, SegmentIndex]:
        """The indexes that were read, by name."""
        return {segment.name: segment for segment in self._log.segments}

    def ranges(self, sources: Iterable[str]) -> GroupRanges:
        """Return the ranges that are read from the sources of a group, and the dead segments between them.

        SourcesChangedError names the segment that is in the way; CorruptSegmentError a damaged source.
        LiveEntriesMissingError: entries of the log are lost, so none of its files may be replaced.
        """
        if self._log.missing:
            raise self._log.entries_missing()
        names = tuple(sources)
        for name in names:
            if name in self._present and (damage := self._log.segment(name).damage):
                raise CorruptSegmentError(str(self._log.directory / name), damage)
            if name in self._stranded or (name not in self._refs and name not in self._dead):
                gone = name not in self._present
                reason = "not a segment of its own any more" if gone else "must not be compacted now"
                raise SourcesChangedError(f"{self._log.directory / name}: {reason}")
        inside = self._present[bisect_right(self._present, names[0]) : bisect_left(self._present, names[-1])]
        between = [name for name in inside if name not in names]
        for name in between:
            if name not in self._dead:
                raise SourcesChangedError(f"{self._log.directory / name}: lies between the sources of the group")
        return GroupRanges(
            spans=tuple((self._refs[n].first, self._refs[n].last) if n in self._refs else None for n in names),
            identities=tuple(self._log.segment(n).identity for n in names),
            carried=tuple(self._dead[n] for n in between),
        )


def group_ranges(log: LogState, sources: Iterable[str], live: LiveSet) -> GroupRanges:
    """The ranges of one group; for several, `GroupCheck` looks for dead segments only once."""
    return GroupCheck(log, live).ranges(sources)
