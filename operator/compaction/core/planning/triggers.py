"""Which candidates are due now: thresholds, cooldown, suspension.

A candidate that is not due gets exactly one reason, the first that holds in the order of the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from compaction.core.planning.candidates import Candidate, LeftOutReason


def _always(candidate: Candidate) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class PlanTrigger:
    """When a target is due: its debt is enough (`is_due`, the kind's own rule) and the cooldown is over (seconds)."""

    is_due: Callable[[Candidate], bool] = _always
    cooldown: float = 0.0
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class TargetHistory:
    """What happened to a target lately: when its last finished job ended, on both clocks (epoch, monotonic)."""

    finished_at: float | None = None
    finished_monotonic: float | None = None
    has_unfinished_job: bool = False


_NO_HISTORY = TargetHistory()


def reason_not_due(
    candidate: Candidate, trigger: PlanTrigger, history: TargetHistory, *, now: float
) -> LeftOutReason | None:
    """Why `candidate` gets no job now, or None when it is due. `now` is epoch seconds, like `finished_at`."""
    if candidate.is_empty:
        return LeftOutReason.NOTHING_TO_GAIN
    if not trigger.is_due(candidate):
        return LeftOutReason.BELOW_THRESHOLD
    if trigger.suspended:
        return LeftOutReason.SUSPENDED
    if history.has_unfinished_job:
        return LeftOutReason.JOB_UNFINISHED
    if history.finished_monotonic is not None and candidate.sensed_at <= history.finished_monotonic:
        # Read before the last job's end: the sources it names may be replaced already.
        return LeftOutReason.SCAN_OUTDATED
    if candidate.compacted_at is not None:
        history = replace(history, finished_at=candidate.compacted_at)
    if cooldown_left(trigger, history, now=now) > 0:
        return LeftOutReason.COOLDOWN
    return None


def cooldown_left(trigger: PlanTrigger, history: TargetHistory, *, now: float) -> float:
    """Seconds until the cooldown of a target is over. An end that is still to come was written by a clock that was
    ahead: it begins no cooldown.
    """
    if trigger.cooldown <= 0 or history.finished_at is None or history.finished_at > now:
        return 0.0
    return max(0.0, history.finished_at + trigger.cooldown - now)


def split_due(
    candidates: tuple[Candidate, ...], trigger: PlanTrigger, history: Mapping[str, TargetHistory], *, now: float
) -> tuple[list[Candidate], list[tuple[Candidate, LeftOutReason]]]:
    """The due candidates and the others with their reason, both in the given order."""
    due: list[Candidate] = []
    others: list[tuple[Candidate, LeftOutReason]] = []
    for candidate in candidates:
        reason = reason_not_due(candidate, trigger, history.get(candidate.target, _NO_HISTORY), now=now)
        if reason is None:
            due.append(candidate)
        else:
            others.append((candidate, reason))
    return due, others
