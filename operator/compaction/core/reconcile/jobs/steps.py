"""One job's step in a reconcile: what its Lease, its worker and a report say about it, in a fixed order.

The order matters: an assignment that is newer than the status first (a crash between Lease and status), then a report
(the worker's word is faster than waiting), then the worker's death, then silence. Leases that mean nothing any more
are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from compaction.api.enums import AttemptOutcome, JobReason, JobState, WorkerEnding
from compaction.api.job.job import CompactionJob, CompactionJobStatus, SkippedSource
from compaction.api.job.job_status import AttemptStatus, JobReport, ReportOutcome
from compaction.api.names import ANNOTATION_RETRY
from compaction.api.text.printing import mark_of
from compaction.core.reconcile.actions import NO_PREMISE, Announce, DeleteJob, EndAttempt, Premise
from compaction.core.reconcile.jobs.job import (
    JobEvent,
    assigned,
    ended,
    evolve,
    is_finished,
    lease_ending,
    may_reopen,
    refused,
    reopened,
    reported,
    retried,
    state_of,
    token_of,
    with_progress,
)
from compaction.core.reconcile.observations import JobLease, JobView, Moment, OperatorIdentity
from compaction.registry import fate_of

PROGRESS_STEP = 34
"""Progress is written when it passes 34 % and 68 %: two writes per attempt (docs/design/invariants.md, 6).
The Lease has it exactly.
"""


@dataclass(frozen=True, slots=True)
class GoneWorker:
    """The evidence that a worker is gone. `absent_lease`: known only because its Lease is not there; `ending`: how its
    launcher says that it ended.
    """

    message: str
    absent_lease: str = ""
    ending: WorkerEnding | None = None


@dataclass(frozen=True, slots=True)
class JobRefusal:
    """The reason for which no attempt of a job can ever succeed."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class StepRules:
    """The rules that a step needs of the policy and its workers. `refuse` says why a job can never run, or None;
    `released` whether the quarantine of one of its sources has just ended; `futile` why a retry of a parked job would
    change nothing, or "", or None as long as that is not known.
    """

    max_attempts: int
    gone: Callable[[str], GoneWorker | None]
    refuse: Callable[[CompactionJob], JobRefusal | None]
    released: Callable[[CompactionJob], bool] = lambda job: False
    futile: Callable[[CompactionJob], str | None] = lambda job: ""


@dataclass(frozen=True, slots=True)
class JobStep:
    """A job after its step. `lease` is the one that stands; `drop` the one to delete; `skipped` newly found damage.

    `refused`: it can never run, so there is no fence of its target to close either.
    """

    view: JobView
    status: CompactionJobStatus
    lease: JobLease | None = None
    drop: OperatorIdentity | None = None
    premise: Premise = NO_PREMISE
    events: tuple[Announce, ...] = ()
    skipped: tuple[SkippedSource, ...] = ()
    refused: bool = False

    @property
    def name(self) -> str:
        """The job's name."""
        return self.view.name

    @property
    def state(self) -> JobState:
        """The job's state after the step."""
        return state_of(self.status)

    @property
    def target(self) -> str:
        """The job's target."""
        return self.view.job.spec.target

    @property
    def changed(self) -> bool:
        """True when the status has to be written."""
        return self.status != self.view.job.status

    @property
    def finished_now(self) -> bool:
        """True when this step ended the job."""
        return is_finished(self.status) and not is_finished(self.view.job.status)

    @property
    def ended_now(self) -> AttemptStatus | None:
        """The attempt that this step ended; None when it ended none."""
        before = self.view.job.status.attempts
        last = self.status.attempts[-1] if self.status.attempts else None
        if last is None or last.outcome is AttemptOutcome.RUNNING or (before and before[-1] == last):
            return None
        return last

    def deletion(self, reason: str) -> DeleteJob:
        """The deletion of the job, with its Lease."""
        return DeleteJob(self.view.identity, self.target, reason, self.view.lease.identity if self.view.lease else None)

    def action(self) -> EndAttempt | None:
        """The write that carries this step out, if there is anything to write."""
        if not self.changed and self.drop is None:
            return None
        return EndAttempt(
            job=self.view.identity,
            status=self.status if self.changed else None,
            lease=self.drop,
            premise=self.premise,
            target=self.target,
            retire=self.finished_now and self.state is JobState.FAULTY and not self.refused,
            ended=self.ended_now,
        )


def take_step(view: JobView, rules: StepRules, now: Moment) -> JobStep:
    """The job's step. Pure: the same view gives the same step."""
    status, lease = view.job.status, view.lease
    generation = view.job.metadata.generation
    step = JobStep(view, status, lease)
    if state_of(status) is JobState.SUCCEEDED:
        return _without_lease(step)
    # A coordinator died between the Lease and the status. The Lease is what the worker acts on, so it counts.
    if lease is not None and lease.holder and lease.token > token_of(status):
        step = replace(
            step,
            status=assigned(
                status,
                token=lease.token,
                worker=lease.holder,
                now=now,
                generation=generation,
                event=JobEvent.ADOPT,
                bytes_per_second=lease.bytes_per_second,
            ),
        )
    elif state_of(status) is JobState.FAULTY:
        return _reopen(_without_lease(step), rules, now)
    reporting = _take_report(step, rules, now)
    if reporting is not None:
        return reporting
    if state_of(step.status) is JobState.IN_PROGRESS:
        return _watch(step, rules, now)
    step = _without_lease(step)
    refusal = rules.refuse(view.job)
    if refusal is None:
        return step
    after = refused(status, reason=refusal.reason, message=refusal.message, now=now, generation=generation)
    return replace(step, status=after, events=(_event(step, "Refused", refusal.message, warning=True),), refused=True)


def _reopen(step: JobStep, rules: StepRules, now: Moment) -> JobStep:
    """A parked job goes on when more attempts are allowed now, or on request."""
    status, metadata = step.status, step.view.job.metadata
    if may_reopen(status, max_attempts=rules.max_attempts):
        after = reopened(status, max_attempts=rules.max_attempts, now=now, generation=metadata.generation)
        return replace(
            step, status=after, events=(_event(step, "Reopened", f"maxAttempts is {rules.max_attempts} now"),)
        )
    mark = mark_of(metadata.annotations.get(ANNOTATION_RETRY, ""))
    # Compared with the last one, not with its presence: a retry must count once, although the operator never removes
    # the annotation.
    if mark and mark != status.retried:
        why_not = rules.futile(step.view.job)
        if why_not is None:
            # An attempt at sources that other jobs have replaced would find them changed, and park the job for the
            # damage that was repaired since: the retry is answered after the scan.
            return step
        if why_not:
            event = _event(step, "RetryRefused", f"it is not tried again: {why_not}", warning=True)
            return replace(step, status=evolve(status, retried=mark), events=(event,))
        why = f"the annotation {ANNOTATION_RETRY} asks for it"
    elif rules.released(step.view.job):
        mark, why = status.retried, "the quarantine of one of its sources has ended"
    else:
        return step
    after = retried(status, mark=mark, why=why, now=now, generation=metadata.generation)
    return replace(step, status=after, events=(_event(step, "Reopened", why),))


def _without_lease(step: JobStep) -> JobStep:
    return step if step.lease is None else replace(step, lease=None, drop=step.lease.identity)


def _event(step: JobStep, reason: str, message: str, *, warning: bool = False) -> Announce:
    return Announce(reason, message, warning=warning, job=step.view.identity)


def _take_report(step: JobStep, rules: StepRules, now: Moment) -> JobStep | None:
    """The step after the worker's last word; None when none counts (docs/design/scheduling.md, S2, S6)."""
    lease, status = step.lease, step.status
    if lease is None or lease.token != token_of(status):
        return None
    report = lease.report
    if report is None and lease.report_error:
        message = f"the report of {lease.holder} cannot be read: {lease.report_error}"
        # An unreadable report still means that the worker is done: waiting for its lease to expire would gain nothing.
        report = JobReport(
            token=lease.token, outcome=ReportOutcome.FAILED, reason=JobReason.INTERNAL_ERROR, message=message
        )
    if report is None or report.token != token_of(status):
        return None
    if state_of(status) is JobState.ABANDONED:
        # The attempt was given up, but nobody else has begun: success or proof of damage counts, a failure was counted.
        if report.outcome is not ReportOutcome.SUCCEEDED and not fate_of(report.reason).is_final:
            return None
        report = report.model_copy(update={"charged": False})
    elif state_of(status) is not JobState.IN_PROGRESS:
        return None
    after = reported(
        status,
        report,
        max_attempts=rules.max_attempts,
        now=now,
        generation=step.view.job.metadata.generation,
    )
    events: tuple[Announce, ...] = ()
    if state_of(after) is not JobState.SUCCEEDED:
        events = (_event(step, report.reason, report.message, warning=True),)
    return replace(_without_lease(step), status=after, events=events, skipped=report.skipped)


def _watch(step: JobStep, rules: StepRules, now: Moment) -> JobStep:
    """A job in progress without a report: does its attempt go on?"""
    status, lease = step.status, step.lease
    worker = status.worker or ""
    gone = rules.gone(worker)
    ending = lease_ending(
        lease,
        worker=worker,
        worker_gone=gone.message if gone else "",
        worker_ending=gone.ending if gone else None,
        now_token=token_of(status),
    )
    if ending is None:
        return _with_share(_with_progress(step))
    after = ended(
        status,
        ending,
        max_attempts=rules.max_attempts,
        now=now,
        generation=step.view.job.metadata.generation,
    )
    if lease is None:
        premise = Premise(absent=(step.name,))
    else:
        # The worker's last word may be on its way: an attempt that is given up too early costs two writes more.
        absent = (gone.absent_lease,) if gone is not None and gone.absent_lease else ()
        premise = Premise(absent, unchanged=(lease.identity,))
    event = _event(step, ending.reason, ending.message, warning=True)
    return replace(_without_lease(step), status=after, premise=premise, events=(event,))


def _with_progress(step: JobStep) -> JobStep:
    known = step.status.progress_percent or 0
    progress = step.lease.progress if step.lease is not None else None
    if progress is None or progress // PROGRESS_STEP <= known // PROGRESS_STEP:
        return step
    return replace(step, status=with_progress(step.status, progress))


def _with_share(step: JobStep) -> JobStep:
    """The attempt says what its Lease says: the share may have been raised since it began."""
    attempts = step.status.attempts
    share = step.lease.bytes_per_second if step.lease is not None else None
    if share is None or not attempts or attempts[-1].bytes_per_second == share:
        return step
    last = attempts[-1].model_copy(update={"bytes_per_second": share})
    return replace(step, status=evolve(step.status, attempts=(*attempts[:-1], last)))
