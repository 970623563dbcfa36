"""Parked jobs that need no action: their work was planned again, and they are kept for the record only."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.api.conditions import get_condition
from compaction.api.enums import ConditionType, JobReason, JobState
from compaction.api.job.resource import CompactionJob, CompactionJobStatus
from compaction.api.policy.resource import QuarantinedSource


def parked_for(status: CompactionJobStatus) -> str:
    """Why a job is parked, as its condition Failed says; else why its last attempt ended."""
    failed = get_condition(status.conditions, ConditionType.FAILED)
    if failed is not None:
        return failed.reason
    return status.attempts[-1].reason if status.attempts else ""


def is_superseded(
    job: CompactionJob, quarantined: Iterable[QuarantinedSource], *, status: CompactionJobStatus | None = None
) -> bool:
    """True for a parked job whose sources changed under it, and for one whose damaged sources are not quarantined any
    more: they were replaced or released, and what is there now is planned. `status`: the job's, after this reconcile.
    """
    status = job.status if status is None else status
    if status.state is not JobState.FAULTY:
        return False
    reason = parked_for(status)
    if reason == JobReason.SOURCES_CHANGED:
        return True
    if reason != JobReason.SOURCE_CORRUPT or not status.skipped:
        return False
    damaged = {skipped.source for skipped in status.skipped}
    return not any(one.target == job.spec.target and one.source in damaged for one in quarantined)
