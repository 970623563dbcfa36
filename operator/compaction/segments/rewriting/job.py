"""A SegmentRewrite job in the words of the segment library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from compaction.api.job.resource import CompactionJobSpec
from compaction.api.policy.segment_logs import SEGMENT_REWRITE, Ownership, SegmentLogSources
from compaction.errors import InvalidAssignmentError
from compaction.segments.clump.plan import ClumpOptions
from compaction.segments.errors import InvalidGroupError
from compaction.segments.format.names import group_key, stem
from compaction.segments.planning.limits import IndexesMissing, SegmentLimits

Sources = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """What one job is to do to one log. Checked: the groups are well formed and no segment is in two places.

    `clump`: a request to re-write live entries at the head; then there are neither groups nor obsolete segments.
    `estimated_bytes`: what the plan expects to copy; 0 when it does not say.
    """

    name: str
    directory: Path
    snapshot_index: int
    groups: tuple[Sources, ...]
    obsolete: Sources
    limits: SegmentLimits
    indexes_missing: IndexesMissing
    ownership: Ownership = Ownership.DETECT
    clump: ClumpOptions | None = None
    estimated_bytes: int = 0

    @classmethod
    def of(cls, spec: CompactionJobSpec, *, name: str) -> Self:
        """Read a job's spec.

        Raises:
            InvalidAssignmentError: another kind of job, or sources that no plan can have made.
        """
        source, parameters = spec.sources.segment_log, spec.segment_log_parameters
        if spec.kind != SEGMENT_REWRITE or source is None:
            raise InvalidAssignmentError(f"job {name}: this worker cannot do a {spec.kind} without a segment log")
        groups = tuple(group.segments for group in source.groups)
        try:
            for sources in groups:
                group_key(sources)
            for segment in source.obsolete:
                stem(segment)
            limits = SegmentLimits(
                max_entries=parameters.max_entries_per_segment, max_bytes=parameters.max_bytes_per_segment
            )
        except InvalidGroupError as error:
            raise InvalidAssignmentError(f"job {name}: {error}") from error
        job = cls(
            name=name,
            directory=Path(source.path),
            snapshot_index=source.snapshot_index,
            groups=groups,
            obsolete=source.obsolete,
            limits=limits,
            indexes_missing=IndexesMissing(parameters.when_indexes_missing.value),
            ownership=parameters.ownership,
            clump=_clump(source),
            estimated_bytes=spec.estimated_bytes,
        )
        if len(set(job.all_sources)) != len(job.all_sources):
            raise InvalidAssignmentError(f"job {name}: a segment is named twice")
        return job

    @property
    def all_sources(self) -> Sources:
        """Every segment the job names."""
        return (*(segment for sources in self.groups for segment in sources), *self.obsolete)


def _clump(source: SegmentLogSources) -> ClumpOptions | None:
    wanted = source.clump
    if wanted is None:
        return None
    return ClumpOptions(wanted.shorter_than, wanted.min_ranges, wanted.max_bytes, wanted.owner_reads_maps)
