"""What a job is made of, as its kind says."""

from __future__ import annotations

from compaction.api.job.resource import CompactionJob
from compaction.core.planning.parts import Parts
from compaction.registry import kind_of_job


def parts_of(job: CompactionJob) -> Parts:
    """The parts of a job; none for work that no plan makes."""
    return kind_of_job(job.spec.kind).parts(job.spec)
