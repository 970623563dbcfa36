"""Jobs that lost to what the store's users do: they end for the record, and their work is planned again."""

from __future__ import annotations

from compaction.api.enums import JobReason, JobState
from compaction.api.job.resource import CompactionJob


def last_reason(job: CompactionJob) -> str:
    """Of the newest attempt."""
    return job.status.attempts[-1].reason if job.status.attempts else ""


def was_outdated(job: CompactionJob) -> bool:
    """Whether the sources of a job were changed before it committed."""
    return job.status.state is JobState.FAULTY and last_reason(job) == JobReason.SOURCES_CHANGED
