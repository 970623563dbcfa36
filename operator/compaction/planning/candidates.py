"""What a store offers for compaction, in words every store shares.

A sensor turns its own plan of one log (or one key of a block store) into a `Candidate`; the planner turns candidates
into jobs. Nothing here knows a file format.

Units: bytes, epoch seconds for `oldest_debt_at`, the coordinator's monotonic seconds for `sensed_at`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LEAST_MERGED: Final = 2
"""Sources of a part of a group that was taken apart: to rewrite one into one gains nothing and uses up a level."""


class LeftOutReason(StrEnum):
    """Why a candidate got no job in this plan (`status.plan.leftOut`); a store adds its own for parts."""

    BELOW_THRESHOLD = "BelowThreshold"
    COOLDOWN = "Cooldown"
    SUSPENDED = "Suspended"
    JOB_UNFINISHED = "JobUnfinished"
    FAULTY_JOB = "FaultyJob"
    JOB_FINISHED = "JobFinished"
    READING_OUTDATED = "ReadingOutdated"
    RECENTLY_EVICTED = "RecentlyEvicted"
    QUEUE_FULL = "QueueFull"
    NOTHING_TO_GAIN = "NothingToGain"
    OWNER_RUNNING = "OwnerRunning"


@dataclass(frozen=True, slots=True)
class GroupCandidate:
    """Adjacent sources that become one: `identities` has one entry per source and changes when the source changes.

    `divisible`: any of them may be rewritten without the others (blocks, not segments).
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
        for part in sorted(parts, key=lambda one: (-len(one), one)):
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
class UnreferencedCandidate:
    """A source nothing live refers to: it costs nothing to drop."""

    name: str
    identity: str
    gain_bytes: int


@dataclass(frozen=True, slots=True)
class LeftAlonePart:
    """A part of a candidate (a segment) that the store's own rules leave alone, with the store's reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one log would gain from compaction, as of the reading that began at `sensed_at`. `turn` orders the
    candidates of a level; those of the same turn go by path.
    """

    path: str
    tenant: str
    snapshot_index: int
    groups: tuple[GroupCandidate, ...]
    unreferenced: tuple[UnreferencedCandidate, ...]
    debt_bytes: int
    debt_segments: int
    sensed_at: float
    level: int = 0
    oldest_debt_at: float | None = None
    left_alone: tuple[LeftAlonePart, ...] = ()
    turn: int = 0

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to do."""
        return not self.groups and not self.unreferenced


def tenant_of(root: str, path: str) -> str:
    """The tenant of a log: the first directory below the policy's root, or "" for logs directly in it (or elsewhere).

    Logs of one owner share a directory in every layout seen (research/ra.md §2: one directory per server); a policy
    over several such directories serves them in turn, so that one busy owner does not keep the others waiting.
    """
    first, slash, _ = (relative_to(root, path) or "").partition("/")
    return first if slash else ""


def relative_to(root: str, path: str) -> str | None:
    """A path as seen from a directory it lies in ("" for that directory itself); None when it lies elsewhere.

    Both are absolute and without `..`. Every reconcile asks this of every job: `pathlib` takes ten times as long.
    """
    root, path = plain_path(root), plain_path(path)
    if path == root:
        return ""
    inside = f"{root.rstrip('/')}/"
    return path[len(inside) :] if path.startswith(inside) else None


def plain_path(path: str) -> str:
    """Without what means nothing: `//`, `/./` and a slash at the end."""
    if "//" in path or "/." in path or path.endswith("/"):
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return path
