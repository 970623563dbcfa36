"""Candidates for compaction and the parts of jobs, in words that every store shares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Candidates that a store offers for compaction, in words every store shares.
#
# A sensor turns its own plan of one target into a `Candidate`; the planner turns candidates into jobs. Nothing here
# knows a kind of store.
#
# Units: bytes, epoch seconds for `oldest_debt_at`, the coordinator's monotonic seconds for `sensed_at`.

LEAST_MERGED: Final = 2
"""Sources of a part of a group that was taken apart: to rewrite one into one gains nothing and uses up a level."""


class LeftOutReason(StrEnum):
    """The reason for which a candidate got no job in a plan (`status.plan.leftOut`); a store adds others for parts."""

    BELOW_THRESHOLD = "BelowThreshold"
    COOLDOWN = "Cooldown"
    SUSPENDED = "Suspended"
    JOB_UNFINISHED = "JobUnfinished"
    FAULTY_JOB = "FaultyJob"
    JOB_FINISHED = "JobFinished"
    SCAN_OUTDATED = "ScanOutdated"
    RECENTLY_EVICTED = "RecentlyEvicted"
    QUEUE_FULL = "QueueFull"
    NOTHING_TO_GAIN = "NothingToGain"


@dataclass(frozen=True, slots=True)
class GroupCandidate:
    """Adjacent sources that become one: `identities` has one entry per source and changes when the source changes.

    `divisible`: any of them may be rewritten without the others.
    """

    sources: tuple[str, ...]
    identities: tuple[str, ...]
    copy_bytes: int
    gain_bytes: int
    divisible: bool = False

    def halves(self) -> tuple[GroupCandidate, GroupCandidate] | None:
        """The group in two, their bytes estimated by the number of sources; None when it cannot be divided, or one of
        them would have a single source.
        """
        half = len(self.sources) // 2
        if not self.divisible or half < LEAST_MERGED:
            return None
        return self._part(self.sources[:half]), self._part(self.sources[half:])

    def apart(self, parts: Iterable[tuple[str, ...]]) -> tuple[GroupCandidate, ...]:
        """Those of the parts that are wholly in the group, the largest first, and what is in none of them, unless it is
        a single source. The group as it is, when it cannot be divided.
        """
        if not self.divisible:
            return (self,)
        left = dict.fromkeys(self.sources)
        found = []
        for part in sorted(parts, key=lambda part: (-len(part), part)):
            if left.keys() >= set(part):
                found.append(self._part(part))
                left = {name: None for name in left if name not in part}
        return (*found, self._part(tuple(left))) if len(left) >= LEAST_MERGED else tuple(found)

    def _part(self, sources: tuple[str, ...]) -> GroupCandidate:
        whole, identities = len(self.sources), dict(zip(self.sources, self.identities, strict=True))
        return GroupCandidate(
            sources,
            tuple(identities[name] for name in sources),
            self.copy_bytes * len(sources) // whole,
            self.gain_bytes * len(sources) // whole,
            divisible=True,
        )


@dataclass(frozen=True, slots=True)
class ObsoleteSource:
    """A source nothing live refers to: dropping it costs nothing."""

    name: str
    identity: str
    gain_bytes: int


@dataclass(frozen=True, slots=True)
class LeftAlonePart:
    """A source of a candidate that the store's own rules leave alone, with the store's reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """The gain that compaction of one target would have, as of the scan that began at `sensed_at`.

    `base_version`: opaque text, the version of the target that a plan is made from. `debt_bytes` and `debt_sources` are
    what compaction would reclaim, or merge. `turn` orders the candidates of a level; those of the same turn go by
    target. `compacted_at`: when the last compaction of the target began (epoch seconds), where the store keeps that:
    the cooldown runs from there, otherwise from the end of the target's last job. `measures`: numbers that the kind's
    thresholds compare, by name.
    """

    target: str
    tenant: str
    base_version: str
    groups: tuple[GroupCandidate, ...]
    obsolete: tuple[ObsoleteSource, ...]
    debt_bytes: int
    debt_sources: int
    sensed_at: float
    level: int = 0
    oldest_debt_at: float | None = None
    left_alone: tuple[LeftAlonePart, ...] = ()
    turn: int = 0
    compacted_at: float | None = None
    measures: tuple[tuple[str, float], ...] = ()

    def measure(self, name: str) -> float:
        """The value of a measure; 0 when the candidate has none of that name."""
        return next((value for known, value in self.measures if known == name), 0.0)

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to do."""
        return not self.groups and not self.obsolete

    @property
    def sources(self) -> frozenset[str]:
        """The names of all sources in the groups."""
        return frozenset(name for group in self.groups for name in group.sources)


# The parts of a job, in words that all kinds share: a plan put them together and may put them apart again.


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups of a job and what it drops; `divisible` groups may be taken apart (`GroupCandidate.divisible`)."""

    base_version: str = ""
    groups: tuple[tuple[str, ...], ...] = ()
    obsolete: tuple[str, ...] = ()
    divisible: bool = False

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source that the job names."""
        return (*(name for group in self.groups for name in group), *self.obsolete)

    @property
    def may_be_halved(self) -> bool:
        """Return whether there are two halves to plan when the whole has failed."""
        several = len(self.groups) + bool(self.obsolete) > 1
        return several or (self.divisible and any(len(group) >= 2 * LEAST_MERGED for group in self.groups))

    def is_offered(self, candidate: Candidate) -> bool:
        """Return whether a plan from this candidate could make the very job again: as long as any part of it is there;
        of divisible groups while all sources are, since the name is made of them.
        """
        if candidate.base_version != self.base_version:
            return False  # the names of all its jobs are different ones now
        if self.divisible:
            return candidate.sources.issuperset(*self.groups)
        groups = {group.sources for group in candidate.groups}
        names = {item.name for item in candidate.obsolete}
        return any(group in groups for group in self.groups) or not names.isdisjoint(self.obsolete)
