"""What a job is made of, in words that all kinds share: the parts that a plan put together and may put apart again."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.api.job import CompactionJob, CompactionJobSpec
from compaction.planning.candidates import LEAST_MERGED, Candidate, tenant_of


@dataclass(frozen=True, slots=True)
class Parts:
    """The groups of a job and what it drops; `divisible` groups may be taken apart, as blocks of a batch may."""

    snapshot_index: int = 0
    groups: tuple[tuple[str, ...], ...] = ()
    unreferenced: tuple[str, ...] = ()
    divisible: bool = False

    @property
    def may_be_halved(self) -> bool:
        """Whether there are two halves to plan when the whole has failed."""
        several = len(self.groups) + bool(self.unreferenced) > 1
        return several or (self.divisible and any(len(group) >= 2 * LEAST_MERGED for group in self.groups))

    def is_offered(self, candidate: Candidate) -> bool:
        """Whether a plan from this candidate could make the very job again: of segments, as long as any part of it is
        there; of blocks, while all of them are, since the name is made of them.
        """
        if candidate.snapshot_index != self.snapshot_index:
            return False  # the names of all its jobs are different ones now
        if self.divisible:
            return offered(candidate).issuperset(*self.groups)
        groups = {group.sources for group in candidate.groups}
        names = {one.name for one in candidate.unreferenced}
        return any(group in groups for group in self.groups) or not names.isdisjoint(self.unreferenced)


def parts_of(job: CompactionJob) -> Parts:
    """The parts of a job; none for one that re-writes entries at the head of a log."""
    blocks, log = job.spec.sources.blocks, job.spec.sources.segment_log
    if blocks is not None:
        return Parts(groups=(blocks.blocks,), divisible=True)
    if log is None:
        return Parts()
    return Parts(log.snapshot_index, tuple(group.segments for group in log.groups), log.unreferenced)


def offered(candidate: Candidate) -> frozenset[str]:
    """The names of all sources in the groups of a candidate."""
    return frozenset(name for group in candidate.groups for name in group.sources)


def tenant_of_job(spec: CompactionJobSpec, root: str) -> str:
    """Whose job it is: the tenant of its blocks, or of its log below `root`."""
    if spec.sources.blocks is not None:
        return spec.sources.blocks.tenant
    return tenant_of(root, spec.lane)
