"""When an owner compacts its own log: pure decisions over numbers, with the clock passed in.

What a compaction then does is `plan.plan_log`'s, as for everybody. A policy of the operator has thresholds of its own;
both may compact one log, under the same fence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from compaction.segments.planning.plan import LogPlan
from compaction.segments.planning.unreferenced import compactable_refs
from compaction.segments.reading.view import LogState


class Due(StrEnum):
    """Why a log is compacted now."""

    REQUESTED = "Requested"
    SPARSE = "Sparse"
    """Too little of what may be compacted is live, by entries or by bytes."""
    LARGE = "Large"
    """So many bytes can be reclaimed."""
    TIMER = "Timer"
    """The last compaction is long enough ago."""


@dataclass(frozen=True, slots=True)
class DueRules:
    """None of each: not for this reason. `live_share`: 0..1, below which a log is sparse; `debt_bytes`: to reclaim;
    `every`: seconds since the last compaction, or since the log was opened.
    """

    live_share: float | None = None
    debt_bytes: int | None = None
    every: float | None = None


@dataclass(frozen=True, slots=True)
class CompactionFacts:
    """What the decision is made from. Entries and bytes: live, and all, in the segments that may be compacted."""

    live_entries: int = 0
    entries: int = 0
    live_bytes: int = 0
    bytes: int = 0
    debt_bytes: int = 0
    debt_segments: int = 0

    @classmethod
    def of(cls, log: LogState, plan: LogPlan) -> CompactionFacts:
        """Of a log at one reading, and its plan."""
        segments = [log.segment(ref.name) for ref in compactable_refs(log)]
        return cls(
            live_entries=plan.live_entries,
            entries=sum(segment.count for segment in segments),
            live_bytes=plan.live_bytes,
            bytes=sum(segment.data_bytes for segment in segments),
            debt_bytes=plan.debt_bytes,
            debt_segments=plan.debt_segments,
        )

    @property
    def live_share(self) -> float:
        """The smaller one of the two shares; 1.0 without anything that may be compacted."""
        shares = [live / total for live, total in self._pairs if total]
        return min(shares, default=1.0)

    @property
    def _pairs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.live_entries, self.entries), (self.live_bytes, self.bytes)


def due(facts: CompactionFacts, rules: DueRules, *, compacted_at: float, now: float) -> Due | None:
    """Why to compact now; None when there is no reason, or nothing to gain. Both times in seconds of one clock."""
    if not facts.debt_segments:
        return None
    if rules.live_share is not None and facts.live_share < rules.live_share:
        return Due.SPARSE
    if rules.debt_bytes is not None and facts.debt_bytes >= rules.debt_bytes:
        return Due.LARGE
    if rules.every is not None and seconds_left(rules, compacted_at=compacted_at, now=now) == 0:
        return Due.TIMER
    return None


def seconds_left(rules: DueRules, *, compacted_at: float, now: float) -> float | None:
    """Until the timer asks for a compaction; None without one. A clock that was set back restarts it."""
    if rules.every is None:
        return None
    return max(0.0, min(rules.every, compacted_at + rules.every - now))
