"""Logs to which a plan still owes something: one of its jobs ended with a source that cannot be compacted.

With a schedule, plans are made at its times only. The siblings of a damaged source, and the halves of a job that
failed as a whole, belong to the time their job was planned for: they do not wait for the next one (DESIGN §4 "one bad
source never blocks its siblings").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compaction.api.enums import JobReason, JobState
from compaction.api.policy import QuarantinedSource
from compaction.planning.candidates import Candidate
from compaction.reconcile.job import AT_ONCE_FAULTY, NOT_THE_SOURCES
from compaction.reconcile.parts import offered, parts_of
from compaction.reconcile.steps import JobStep
from compaction.reconcile.teardown import owner_uid


def owed(steps: Sequence[JobStep], quarantined: Iterable[QuarantinedSource], *, since: float | None) -> frozenset[str]:
    """Logs whose newest planned job ended with a bad source, after `since` (epoch seconds; None: no schedule)."""
    if since is None:
        return frozenset()
    planned = [step for step in steps if owner_uid(step.view.job)]
    ended = [(step.log, step.status.finished_at) for step in planned if is_blamed(step)]
    ended += [(entry.log, entry.since) for entry in quarantined]
    failed = _newest((log, at.timestamp()) for log, at in ended if at is not None)
    births = ((step.log, step.view.job.metadata.creation_timestamp) for step in planned)
    born = _newest((log, at.timestamp()) for log, at in births if at is not None)
    return frozenset(log for log, at in failed.items() if at >= since and born.get(log, 0.0) <= at)


def is_blamed(step: JobStep) -> bool:
    """Whether the job is parked for something that may lie in one of its sources."""
    if step.state is not JobState.FAULTY:
        return False
    return may_split(step) or any(attempt.reason == JobReason.SOURCE_CORRUPT for attempt in step.status.attempts)


def may_split(step: JobStep) -> bool:
    """A job that used up its attempts for a reason that may lie in one of its groups."""
    reasons = {attempt.reason for attempt in step.status.attempts if attempt.charged}
    return bool(reasons) and not reasons & (NOT_THE_SOURCES | AT_ONCE_FAULTY)


def is_parked(candidate: Candidate, faulty: Mapping[str, Sequence[JobStep]]) -> bool:
    """Whether all that the log offers are sources of its parked jobs (`faulty`, by log): no plan would take it up."""
    known = [parts_of(step.view.job) for step in faulty.get(candidate.path, ())]
    # What was planned from another snapshot is planned anew, under other names.
    mine = [parts for parts in known if parts.snapshot_index == candidate.snapshot_index]
    groups = {group for parts in mine for group in parts.groups}
    names = {name for parts in mine for name in parts.unreferenced}
    if not groups and not names:
        return False
    if any(parts.divisible for parts in mine):
        return offered(candidate) <= {block for group in groups for block in group}
    return {one.sources for one in candidate.groups} <= groups and {one.name for one in candidate.unreferenced} <= names


def _newest(moments: Iterable[tuple[str, float]]) -> dict[str, float]:
    newest: dict[str, float] = {}
    for log, at in moments:
        newest[log] = max(at, newest.get(log, at))
    return newest
