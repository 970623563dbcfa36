"""Which candidates are due now: thresholds, cooldown, suspension.

A candidate that is not due gets exactly one reason, the first that holds in the order of the checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compaction.planning.candidates import Candidate, LeftOutReason


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a log is due: BOTH thresholds are reached and the cooldown since its last finished job is over (seconds)."""

    debt_bytes: int = 0
    debt_segments: int = 1
    cooldown: float = 0.0
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class LogHistory:
    """What happened to a log lately: wall-clock end of its last finished job, and the same on our monotonic clock."""

    finished_at: float | None = None
    finished_monotonic: float | None = None
    has_unfinished_job: bool = False


_NO_HISTORY = LogHistory()


def reason_not_due(candidate: Candidate, trigger: Trigger, history: LogHistory, *, now: float) -> LeftOutReason | None:
    """Why `candidate` gets no job now, or None when it is due. `now` is epoch seconds, like `finished_at`."""
    if candidate.is_empty:
        return LeftOutReason.NOTHING_TO_GAIN
    if candidate.debt_bytes < trigger.debt_bytes or candidate.debt_segments < trigger.debt_segments:
        return LeftOutReason.BELOW_THRESHOLD
    if trigger.suspended:
        return LeftOutReason.SUSPENDED
    if history.has_unfinished_job:
        return LeftOutReason.JOB_UNFINISHED
    if history.finished_monotonic is not None and candidate.sensed_at <= history.finished_monotonic:
        # Read before the last job's end: the sources it names may be replaced already.
        return LeftOutReason.READING_OUTDATED
    if cooldown_left(trigger, history, now=now) > 0:
        return LeftOutReason.COOLDOWN
    return None


def cooldown_left(trigger: Trigger, history: LogHistory, *, now: float) -> float:
    """Seconds until the cooldown of a log is over. An end that is still to come was written by a clock that was ahead:
    it begins no cooldown.
    """
    if trigger.cooldown <= 0 or history.finished_at is None or history.finished_at > now:
        return 0.0
    return max(0.0, history.finished_at + trigger.cooldown - now)


def split_due(
    candidates: tuple[Candidate, ...], trigger: Trigger, history: Mapping[str, LogHistory], *, now: float
) -> tuple[list[Candidate], list[tuple[Candidate, LeftOutReason]]]:
    """The due candidates and the others with their reason, both in the given order."""
    due: list[Candidate] = []
    others: list[tuple[Candidate, LeftOutReason]] = []
    for candidate in candidates:
        reason = reason_not_due(candidate, trigger, history.get(candidate.path, _NO_HISTORY), now=now)
        if reason is None:
            due.append(candidate)
        else:
            others.append((candidate, reason))
    return due, others
