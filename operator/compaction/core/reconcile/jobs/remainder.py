"""Targets to which a plan still owes something: one of its jobs ended with a source that cannot be compacted.

With a schedule, plans are made at its times only. The siblings of a damaged source, and the halves of a job that failed
as a whole, belong to the time their job was planned for: they do not wait for the next one
(docs/design/scheduling.md#faulty-jobs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compaction.api.enums import JobReason, JobState
from compaction.api.policy.resource import QuarantinedSource
from compaction.core.fate import Fate
from compaction.core.planning.candidates import Candidate
from compaction.core.reconcile.jobs.parts import parts_of
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.teardown import owner_uid
from compaction.registry import fate_of


def owed(steps: Sequence[JobStep], quarantined: Iterable[QuarantinedSource], *, since: float | None) -> frozenset[str]:
    """Targets whose newest planned job ended with a bad source, after `since` (epoch seconds; None: no schedule)."""
    if since is None:
        return frozenset()
    planned = [step for step in steps if owner_uid(step.view.job)]
    ended = [(step.target, step.status.finished_at) for step in planned if is_blamed(step)]
    ended += [(entry.target, entry.since) for entry in quarantined]
    failed = _newest((target, at.timestamp()) for target, at in ended if at is not None)
    births = ((step.target, step.view.job.metadata.creation_timestamp) for step in planned)
    born = _newest((target, at.timestamp()) for target, at in births if at is not None)
    return frozenset(target for target, at in failed.items() if at >= since and born.get(target, 0.0) <= at)


def is_blamed(step: JobStep) -> bool:
    """Whether the job is parked for something that may lie in one of its sources."""
    if step.state is not JobState.FAULTY:
        return False
    return may_split(step) or any(attempt.reason == JobReason.SOURCE_CORRUPT for attempt in step.status.attempts)


def may_split(step: JobStep) -> bool:
    """A job that used up its attempts for a reason that may lie in one of its parts."""
    reasons = {attempt.reason for attempt in step.status.attempts if attempt.charged}
    return bool(reasons) and all(fate_of(reason) is Fate.SPLIT for reason in reasons)


def is_parked(candidate: Candidate, faulty: Mapping[str, Sequence[JobStep]]) -> bool:
    """Whether all that the target offers are sources of its parked jobs (`faulty`, by target): no plan takes it up."""
    known = [parts_of(step.view.job) for step in faulty.get(candidate.target, ())]
    # What was planned from another version is planned again, under other names.
    mine = [parts for parts in known if parts.base_version == candidate.base_version]
    groups = {group for parts in mine for group in parts.groups}
    names = {name for parts in mine for name in parts.obsolete}
    if not groups and not names:
        return False
    if any(parts.divisible for parts in mine):
        return candidate.sources <= {name for group in groups for name in group}
    return {one.sources for one in candidate.groups} <= groups and {one.name for one in candidate.obsolete} <= names


def _newest(moments: Iterable[tuple[str, float]]) -> dict[str, float]:
    newest: dict[str, float] = {}
    for target, at in moments:
        newest[target] = max(at, newest.get(target, at))
    return newest
