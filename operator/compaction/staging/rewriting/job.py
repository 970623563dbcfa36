"""A MetarangeRewrite job in the words of the library of staging areas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from compaction.api.job.resource import CompactionJobSpec
from compaction.api.policy.staging_area import METARANGE_REWRITE, LakeFsMergeSpec, StagingAreaReference
from compaction.errors import InvalidAssignmentError
from compaction.staging.compaction.work import BranchWork
from compaction.staging.connecting import work_of


@dataclass(frozen=True, slots=True)
class MetarangeJob:
    """What one job is to make of which tokens. `lakefs`: they are those of a live lakeFS, and are merged into one."""

    name: str
    store: StagingAreaReference
    work: BranchWork
    lakefs: LakeFsMergeSpec | None = None

    @classmethod
    def of(cls, spec: CompactionJobSpec, *, name: str) -> Self:
        """Read a job's spec. Raises InvalidAssignmentError: another kind of job."""
        sources = spec.sources.metarange
        if spec.kind != METARANGE_REWRITE or sources is None:
            raise InvalidAssignmentError(f"job {name}: this worker cannot do a {spec.kind} without tokens of a branch")
        return cls(name, sources.store, work_of(sources), spec.metarange_parameters.lakefs)
