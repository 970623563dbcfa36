"""What the API server says of the jobs of one log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from compaction.api.job.resource import CompactionJob, JobReceipt


def log_of(job: CompactionJob) -> Path | None:
    """The log that a job is about."""
    sources = job.spec.sources.segment_log
    return None if sources is None else Path(sources.path)


def receipts_of(path: Path, jobs: Sequence[CompactionJob]) -> dict[str, JobReceipt]:
    """The receipts of one log's jobs, by job name."""
    return {job.metadata.name: job.status.receipt for job in jobs if log_of(job) == path and job.status.receipt}


def commits_of(path: Path, jobs: Sequence[CompactionJob]) -> list[datetime]:
    """When jobs of one log were committed, in order."""
    receipts = receipts_of(path, jobs).values()
    return sorted(one.committed_at for one in receipts if one.committed_at is not None)
