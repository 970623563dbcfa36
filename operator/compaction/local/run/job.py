"""The jobs of one run without Kubernetes, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from compaction.api.enums import JobReason, JobState
from compaction.api.job.resource import CompactionJobSpec, CompactionJobStatus
from compaction.api.policy.resource import QuarantinedSource
from compaction.planning.planner import Plan, PlannedJob
from compaction.planning.reading import ScanResult
from compaction.stores.adapter import Swept


@dataclass(slots=True)
class LocalJob:
    """One job of this run. `percent` is 0 to 100."""

    planned: PlannedJob
    spec: CompactionJobSpec
    created_at: float
    status: CompactionJobStatus = field(default_factory=CompactionJobStatus)
    percent: int = 0

    @property
    def name(self) -> str:
        """The job's name: the same for the same work on the same files."""
        return self.planned.name

    @property
    def target(self) -> str:
        """What the job's commits are to."""
        return self.planned.target

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source the job names."""
        grouped = (name for group in self.planned.groups for name in group.sources)
        return (*grouped, *(one.name for one in self.planned.obsolete))

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return self.status.state

    @property
    def is_waiting(self) -> bool:
        """True before an attempt, and between two."""
        return self.state in (JobState.UNASSIGNED, JobState.ABANDONED)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run did. `plan` is the first plan, `reading` the last scan of the store. `races`: another process may do a
    job first, and nothing is wrong then (`Kind.immutable_sources`).
    """

    plan: Plan
    jobs: tuple[LocalJob, ...]
    reading: ScanResult
    quarantined: tuple[QuarantinedSource, ...]
    swept: Swept
    races: bool = False

    @property
    def succeeded(self) -> bool:
        """True when every job ended well and every target could be read."""
        problems = (*self.reading.problems, *self.swept.problems)
        return not problems and not self.quarantined and not self.failed

    @property
    def failed(self) -> tuple[LocalJob, ...]:
        """Jobs that did not succeed, whose work was not done by a later one either, and is not another process's."""
        lost = {job.name for job in self.lost}
        unfinished = [job for job in self.jobs if job.state is not JobState.SUCCEEDED and job.name not in lost]
        return tuple(job for job in unfinished if not self._is_redone(job))

    @property
    def lost(self) -> tuple[LocalJob, ...]:
        """Jobs that another process claimed, did or made obsolete first. Nothing is wrong with them: it was a race, and
        what was left of their sources was planned again.
        """
        if not self.races:
            return ()
        return tuple(job for job in self.jobs if job.state is JobState.FAULTY and _reason(job) in _LOST)

    def _is_redone(self, job: LocalJob) -> bool:
        done = [other for other in self.jobs if other.state is JobState.SUCCEEDED and other.target == job.target]
        covered = {name for other in done for name in other.sources}
        changed = _reason(job) == JobReason.SOURCES_CHANGED  # its successors have other sources
        return bool(done) and (changed or covered >= set(job.sources))


_LOST: Final = frozenset({JobReason.STALE_TOKEN, JobReason.SOURCES_CHANGED})


def _reason(job: LocalJob) -> str:
    return job.status.attempts[-1].reason if job.status.attempts else ""
