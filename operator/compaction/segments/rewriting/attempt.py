"""An attempt at a job of a segment log, whatever it does to the log."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import ClassVar

from compaction.errors import CompactionError
from compaction.segments.errors import SegmentLogError
from compaction.segments.rewriting.job import SegmentJob
from compaction.segments.rewriting.task import GroupFailure, failure_of
from compaction.segments.store import SegmentLogStore
from compaction.worker.attempt import RewriteAttempt


@dataclass(slots=True, kw_only=True)
class SegmentLogAttempt(RewriteAttempt, ABC):
    """`failures`: what went wrong. `identities`: see `segment_report.identities_of`."""

    reported: ClassVar[tuple[type[CompactionError], ...]] = (SegmentLogError,)

    job: SegmentJob
    store: SegmentLogStore
    failures: list[GroupFailure] = field(default_factory=list)
    identities: dict[str, str] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        return self.job.name

    def _failed(self, error: CompactionError) -> None:
        self.failures.append(failure_of(error, self.job.all_sources))
