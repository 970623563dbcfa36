"""Jobs of a local run: what became of them, and what happens while a watch runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compaction.api.conditions import get_condition, is_true
from compaction.api.enums import ConditionType, JobReason, JobState, PlanApproval, WaitReason
from compaction.api.job.job import CompactionJob, CompactionJobStatus
from compaction.api.policy.policy import CompactionPolicyStatus, PlanStatus, QuarantinedSource
from compaction.api.text.printing import format_work, plural
from compaction.core.planning.candidates import LeftOutReason, Parts
from compaction.core.planning.debt import ScanResult
from compaction.core.planning.planner import LeftOut
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.jobs.job import is_finished, parts_of, refused
from compaction.core.reconcile.observations import ClaimProblem, Moment
from compaction.storage.adapter import Swept

# Results of the jobs of a run that ends.

_LOST: Final = frozenset({JobReason.STALE_TOKEN, JobReason.SOURCES_CHANGED, WaitReason.TARGET_BUSY})
_GONE: Final = "some of its sources are not in the store any more"


@dataclass(frozen=True, slots=True)
class LocalJob:
    """A job that has ended, and why it ended so."""

    job: CompactionJob
    reason: str
    message: str

    @property
    def name(self) -> str:
        """The job's name: the same for the same work on the same files."""
        return self.job.metadata.name

    @property
    def target(self) -> str:
        """The target of the job's commits."""
        return self.job.spec.target

    @property
    def parts(self) -> Parts:
        """The parts of which the job is made."""
        return parts_of(self.job)

    @property
    def sources(self) -> tuple[str, ...]:
        """Every source the job names."""
        return self.parts.sources

    @property
    def status(self) -> CompactionJobStatus:
        """The job's status."""
        return self.job.status

    @property
    def state(self) -> JobState:
        """Succeeded or Faulty."""
        return self.status.state


def ended(job: CompactionJob, claims: Mapping[str, ClaimProblem], *, now: Moment) -> LocalJob:
    """The job at the end of its run. One that did not end itself, as others have it or have changed its sources, is
    Faulty for that: with this run its object goes, too. `claims`: those that the store refused of jobs that are there.
    """
    status, name = job.status, job.metadata.name
    if is_finished(status):
        last = status.attempts[-1] if status.attempts else None
        return LocalJob(job, *(last.reason, last.message) if last is not None else ("", ""))
    refusal, waiting = claims.get(name), status.waiting
    if refusal is not None:
        reason, message = refusal.reason, refusal.message
    else:
        reason, message = JobReason.SOURCES_CHANGED, waiting.message if waiting is not None else _GONE
    after = refused(status, reason=reason, message=message, now=now, generation=job.metadata.generation)
    return LocalJob(job.model_copy(update={"status": after}), reason, message)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. `plan` is the newest plan, `reading` the last scan of the store. `races`: another process
    may do a job first, and nothing is wrong then (`Kind.immutable_sources`).
    """

    plan: PlanStatus
    jobs: tuple[LocalJob, ...]
    reading: ScanResult
    quarantined: tuple[QuarantinedSource, ...]
    swept: Swept
    races: bool = False

    @property
    def succeeded(self) -> bool:
        """True when every job ended well, every target could be read, and nothing waits for approval."""
        problems = (*self.reading.problems, *self.swept.problems)
        return not problems and not self.quarantined and not self.failed and not self.unapproved

    @property
    def unapproved(self) -> str:
        """The hash of a plan that waits for approval, or ""."""
        return self.plan.hash if self.plan.approval is PlanApproval.PENDING else ""

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The reasons for which the rest got no job, by the newest plan."""
        return tuple(
            LeftOut(
                row.reason,
                row.count,
                row.example or "",
                due=None if row.due_at is None else row.due_at.timestamp(),
                missing=row.missing,
            )
            for row in self.plan.left_out
            if row.reason != LeftOutReason.JOB_FINISHED
        )

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
        return tuple(job for job in self.jobs if job.state is JobState.FAULTY and job.reason in _LOST)

    def _is_redone(self, job: LocalJob) -> bool:
        done = [other for other in self.jobs if other.state is JobState.SUCCEEDED and other.target == job.target]
        covered = {name for other in done for name in other.sources}
        changed = job.reason == JobReason.SOURCES_CHANGED  # its successors have other sources
        return bool(done) and (changed or covered >= set(job.sources))


# Events that a person wants to see while a watch runs.

PLAN_PENDING: Final = "PlanPending"
"""News of a plan that waits for approval; the message begins with its hash."""


@dataclass(frozen=True, slots=True)
class News:
    """An Event of the reconciler, or a change of the policy's status."""

    reason: str
    message: str
    warning: bool = False
    job: str = ""


def of_event(event: Announce) -> News:
    """An Event as news."""
    return News(event.reason, event.message, event.warning, event.job.name if event.job is not None else "")


def of_status(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> list[News]:
    """Return what a new status says: another reason of Ready, another plan that waits for approval."""
    news = []
    old, new = (get_condition(item.conditions, ConditionType.READY) for item in (before, after))
    if new is not None and (old is None or old.reason != new.reason):
        news.append(News(new.reason, new.message, warning=is_true(after.conditions, ConditionType.STALLED)))
    was, plan = before.plan, after.plan
    told = was.hash if was is not None and was.approval is PlanApproval.PENDING else ""
    if plan is not None and plan.approval is PlanApproval.PENDING and plan.hash != told:
        work = format_work(plan.cost_bytes, plan.gain_bytes)
        message = f"{plan.hash}: {plural(plan.jobs, 'job')}, {work}"
        news.append(News(PLAN_PENDING, message))
    return news
