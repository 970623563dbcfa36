"""The life of one job: the states it may take, and what its Lease, its worker and the clock make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from compaction.api.conditions import clear_failed, get_condition, set_complete, set_failed, set_reconciling
from compaction.api.enums import AttemptOutcome, ConditionType, JobReason, JobState, WorkerEnding
from compaction.api.job.job import AttemptStatus, CompactionJob, CompactionJobStatus, JobReceipt
from compaction.api.job.job_status import JobReport, ReportOutcome, ResourceUsage
from compaction.core.meaning import Fate
from compaction.core.planning.candidates import Parts
from compaction.core.reconcile.observations import ClaimProblem, JobLease, Memory, Moment, frozen
from compaction.errors import IllegalTransitionError
from compaction.registry import fate_of, kind_of_job

# The state machine of a job, as a table. Whatever changes a job's state goes through `next_state`.
#
# ```
# Unassigned --assign--> InProgress --succeed--> Succeeded
#                         |  ^   |
#               end_retry |   |   | end_final
#                         v   |   v
#                     Abandoned   Faulty --reopen--> Abandoned
# ```
#
# `adopt` is an assignment found on the job's Lease after a crash between the Lease and the status (its token is
# larger than the status knows). A late `succeed` or `end_final` in Abandoned is a report with the token that is still
# the last one assigned: no other attempt has started, so the work counts
# (docs/design/scheduling.md#scenarios-of-the-scheduler, S10). `refuse` parks a job that waits, tried before or not,
# because no attempt can succeed: its sources are gone, or not of the policy's store.

UNASSIGNED, IN_PROGRESS, ABANDONED, FAULTY, SUCCEEDED = (
    JobState.UNASSIGNED,
    JobState.IN_PROGRESS,
    JobState.ABANDONED,
    JobState.FAULTY,
    JobState.SUCCEEDED,
)


class JobEvent(StrEnum):
    """The events that can happen to a job."""

    ASSIGN = "assign"
    ADOPT = "adopt"
    SUCCEED = "succeed"
    END_RETRY = "end_retry"
    END_FINAL = "end_final"
    REFUSE = "refuse"
    REOPEN = "reopen"


TRANSITIONS: Mapping[tuple[JobState, JobEvent], JobState] = MappingProxyType(
    {
        (UNASSIGNED, JobEvent.ASSIGN): IN_PROGRESS,
        (UNASSIGNED, JobEvent.ADOPT): IN_PROGRESS,
        (UNASSIGNED, JobEvent.REFUSE): FAULTY,
        (IN_PROGRESS, JobEvent.ADOPT): IN_PROGRESS,
        (IN_PROGRESS, JobEvent.SUCCEED): SUCCEEDED,
        (IN_PROGRESS, JobEvent.END_RETRY): ABANDONED,
        (IN_PROGRESS, JobEvent.END_FINAL): FAULTY,
        (ABANDONED, JobEvent.ASSIGN): IN_PROGRESS,
        (ABANDONED, JobEvent.ADOPT): IN_PROGRESS,
        (ABANDONED, JobEvent.SUCCEED): SUCCEEDED,
        (ABANDONED, JobEvent.END_FINAL): FAULTY,
        (ABANDONED, JobEvent.REFUSE): FAULTY,
        (FAULTY, JobEvent.REOPEN): ABANDONED,
        (FAULTY, JobEvent.ADOPT): IN_PROGRESS,
    }
)
"""Everything that may happen; any other pair is a defect and raises."""


def next_state(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`.

    Raises:
        IllegalTransitionError: the table has no such transition.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransitionError(f"a job that is {state} cannot {event.replace('_', ' ')}") from None


# The parts of a job, as its kind says.


def parts_of(job: CompactionJob) -> Parts:
    """The parts of a job; none for work that no plan makes."""
    return kind_of_job(job.spec.kind).parts(job.spec)


# The lasting part of a job's record, whatever is reported later: the proof of its commits, and the damage that was
# found.


def proof(before: JobReceipt | None, said: JobReceipt | None) -> JobReceipt | None:
    """The receipt after a report. What was proved stays as it was proved: a report that adds no commit to it was made
    by an attempt that committed nothing.
    """
    if before is None or said is None:
        return said or before
    return said if said.commits - before.commits else before


def known_damage(attempts: Sequence[AttemptStatus]) -> AttemptStatus | None:
    """The attempt that found a source damaged. That the siblings were compacted since, and so changed, is no news about
    the damage: it stays what the job is parked for.
    """
    return next((attempt for attempt in reversed(attempts) if attempt.reason == JobReason.SOURCE_CORRUPT), None)


# Claims that the store refused: how long a job waits before its claim is tried again. Pure.

CLAIM_PAUSE: Final = 5.0
LONGEST_CLAIM_PAUSE: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """The reason for which a claim was refused, as what the job waits for. `terminal`: its sources are known to be
    gone.
    """

    reason: str
    message: str
    terminal: bool = False


def learned(memory: Memory, *, refused: Mapping[str, ClaimRefused], claimed: Set[str], now: float) -> Memory:
    """The memory after claims were tried. The pause grows with the age of the problem; `now` is monotonic."""
    claims = {name: problem for name, problem in memory.claims.items() if name not in claimed}
    for name, refusal in refused.items():
        before = claims.get(name)
        since = before.since if before is not None and before.reason == refusal.reason else now
        pause = min(LONGEST_CLAIM_PAUSE, max(CLAIM_PAUSE, now - since))
        claims[name] = ClaimProblem(refusal.reason, refusal.message, since, now + pause, refusal.terminal)
    return replace(memory, claims=frozen(claims))


# The life of one job: what its Lease, its worker and the clock make of its status.
#
# Every function takes a status and returns a new one; states change through `core.reconcile.jobs.job` only.
# Invariants:
#
# * a report counts only with the token that was assigned last, and only once;
# * a job gets exactly `max_attempts` charged attempts; what is not the job's fault is not charged, but only
#   `UNCHARGED_ATTEMPTS` times, so every job ends;
# * nothing is decided on a remote clock.

UNCHARGED_ATTEMPTS: Final = 10
"""So many attempts in a row of attempts may end uncharged; further ones are charged whatever their cause."""
LONGEST_BACKOFF: Final = 60.0

_LOSSES: Final[Mapping[WorkerEnding | None, JobReason]] = {
    WorkerEnding.OUT_OF_MEMORY: JobReason.WORKER_OUT_OF_MEMORY,
    WorkerEnding.DISRUPTED: JobReason.WORKER_DISRUPTED,
}
_NO_BACKOFF: Final = frozenset({JobReason.WORKER_STOPPED, JobReason.ENGINE_LOST})


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt without success."""

    outcome: AttemptOutcome
    reason: str
    message: str
    charged: bool
    usage: ResourceUsage | None = None


def evolve(status: CompactionJobStatus, **changes: Any) -> CompactionJobStatus:
    """The status with these fields changed, validated (texts and lists are cut to what the schema holds)."""
    return type(status).model_validate({**dict(status), **changes})


def state_of(status: CompactionJobStatus) -> JobState:
    """The job's state; one without a status is Unassigned."""
    return status.state or JobState.UNASSIGNED


def token_of(status: CompactionJobStatus) -> int:
    """The token assigned last; 0 before the first assignment."""
    return status.fencing_token or 0


def is_finished(status: CompactionJobStatus) -> bool:
    """True when no attempt will follow by itself."""
    return state_of(status) in (JobState.SUCCEEDED, JobState.FAULTY)


def assigned(
    status: CompactionJobStatus,
    *,
    token: int,
    worker: str,
    now: Moment,
    generation: int,
    event: JobEvent = JobEvent.ASSIGN,
    bytes_per_second: int | None = None,
) -> CompactionJobStatus:
    """The status after `worker` was given the job with `token` (or, with ADOPT, was found to have been)."""
    message = f"{worker} holds the lease with token {token}"
    conditions = set_reconciling(
        clear_failed(status.conditions),
        reason=JobReason.ASSIGNED,
        message=message,
        observed_generation=generation,
        now=now.time,
    )
    attempt = AttemptStatus(
        token=token,
        worker=worker,
        started_at=now.time,
        outcome=AttemptOutcome.RUNNING,
        charged=False,
        bytes_per_second=bytes_per_second,
    )
    return evolve(
        status,
        observed_generation=generation,
        state=next_state(state_of(status), event),
        conditions=conditions,
        worker=worker,
        fencing_token=token,
        progress_percent=0,
        # An attempt that no coordinator saw end is closed here: two would seem to run otherwise.
        attempts=(*_closed(status.attempts, now), attempt),
        assigned_at=now.time,
        finished_at=None,
        waiting=None,
    )


def _closed(attempts: Sequence[AttemptStatus], now: Moment) -> tuple[AttemptStatus, ...]:
    """The attempts, a still running one ended as revoked: a larger token has taken its place."""
    if not attempts or attempts[-1].outcome is not AttemptOutcome.RUNNING:
        return tuple(attempts)
    ending = Ending(AttemptOutcome.REVOKED, JobReason.REVOKED, "a larger token was assigned", charged=False)
    return (*attempts[:-1], _ended(attempts[-1], ending, now))


def _ended(attempt: AttemptStatus, ending: Ending, now: Moment) -> AttemptStatus:
    changes = {
        "ended_at": now.time,
        "outcome": ending.outcome,
        "charged": ending.charged,
        "reason": ending.reason,
        "message": ending.message,
        "usage": ending.usage,
    }
    return type(attempt).model_validate({**dict(attempt), **changes})


def ended(
    status: CompactionJobStatus, ending: Ending, *, max_attempts: int, now: Moment, generation: int
) -> CompactionJobStatus:
    """The status after an attempt ended without success: Abandoned (another will follow) or Faulty."""
    ending = _charge_in_the_long_run(status, ending)
    failures = status.failures + ending.charged
    at_once = fate_of(ending.reason).is_final
    final = at_once or failures >= max_attempts
    attempts = status.attempts
    damage = known_damage(attempts) if ending.reason == JobReason.SOURCES_CHANGED else None
    if attempts and attempts[-1].outcome is AttemptOutcome.RUNNING:
        attempts = (*attempts[:-1], _ended(attempts[-1], ending, now))
    if final:
        reason = ending.reason if at_once else JobReason.TOO_MANY_ATTEMPTS
        message = ending.message if at_once else f"{failures} of {max_attempts} attempts failed; last: {ending.message}"
        # A change of the sources follows from what happened since. The damage that an attempt has proved before is what
        # a person must read.
        if damage is not None:
            reason, message = damage.reason, damage.message
        conditions = set_failed(
            status.conditions, reason=reason, message=message, observed_generation=generation, now=now.time
        )
    else:
        conditions = set_reconciling(
            status.conditions,
            reason=JobReason.RETRYING,
            message=f"{ending.reason}: {ending.message}",
            observed_generation=generation,
            now=now.time,
        )
    return evolve(
        status,
        observed_generation=generation,
        state=next_state(state_of(status), JobEvent.END_FINAL if final else JobEvent.END_RETRY),
        conditions=conditions,
        worker=None,
        progress_percent=0,
        failures=failures,
        attempts=attempts,
        finished_at=now.time if final else None,
        waiting=None,
        usage=total_usage(status, ending.usage),
    )


def _charge_in_the_long_run(status: CompactionJobStatus, ending: Ending) -> Ending:
    """A job that kills every worker it runs on must end as well."""
    # A retry by a person begins a new count: attempts of before it must not use up what it grants.
    counted = [attempt for attempt in status.attempts if attempt.token > status.retried_token]
    spared = sum(not a.charged and a.outcome is not AttemptOutcome.RUNNING for a in counted)
    if ending.charged or spared < UNCHARGED_ATTEMPTS:
        return ending
    message = f"{ending.message} (charged: {spared} attempts ended without being charged)"
    return replace(ending, message=message, charged=True)


def total_usage(status: CompactionJobStatus, used: ResourceUsage | None) -> ResourceUsage | None:
    """Return the usage of all attempts of a job once this one is over; of those without a report nothing is known."""
    return used.plus(status.usage) if used is not None else status.usage


def reported(
    status: CompactionJobStatus, report: JobReport, *, max_attempts: int, now: Moment, generation: int
) -> CompactionJobStatus:
    """The status after the worker's last word. The caller has checked that the token is the one assigned last."""
    receipt, usage = proof(status.receipt, report.receipt), total_usage(status, report.usage)
    receipt = receipt.model_copy(update={"usage": usage}) if receipt is not None else None
    if report.outcome is not ReportOutcome.SUCCEEDED:
        ending = Ending(AttemptOutcome.FAILED, report.reason, report.message, report.charged, report.usage)
        if fate_of(report.reason).is_final and state_of(status) is not JobState.ABANDONED:
            # Whatever the worker says. (An Abandoned job's attempt has ended: it was charged then, or spared.)
            ending = replace(ending, charged=True)
        after = ended(status, ending, max_attempts=max_attempts, now=now, generation=generation)
        # What is committed stays committed, whoever takes the rest.
        percent = 100 * receipt.groups_committed // receipt.groups if receipt is not None and receipt.groups else 0
        return evolve(with_progress(after, percent), skipped=report.skipped or status.skipped, receipt=receipt)
    done = Ending(AttemptOutcome.SUCCEEDED, report.reason, report.message, charged=False, usage=report.usage)
    conditions = set_complete(
        status.conditions,
        reason=JobReason.SUCCEEDED,
        message=report.message,
        observed_generation=generation,
        now=now.time,
    )
    attempts = status.attempts
    return evolve(
        status,
        observed_generation=generation,
        state=next_state(state_of(status), JobEvent.SUCCEED),
        conditions=conditions,
        progress_percent=100,
        attempts=(*attempts[:-1], _ended(attempts[-1], done, now)) if attempts else (),
        finished_at=now.time,
        waiting=None,
        skipped=report.skipped,
        receipt=receipt,
        usage=usage,
    )


def refused(
    status: CompactionJobStatus, *, reason: str, message: str, now: Moment, generation: int
) -> CompactionJobStatus:
    """A job that can never succeed (its sources are not the policy's, or gone): Faulty without another attempt."""
    return evolve(
        status,
        observed_generation=generation,
        state=next_state(state_of(status), JobEvent.REFUSE),
        conditions=set_failed(
            status.conditions, reason=reason, message=message, observed_generation=generation, now=now.time
        ),
        finished_at=now.time,
        waiting=None,
    )


def may_reopen(status: CompactionJobStatus, *, max_attempts: int) -> bool:
    """True for a job that is Faulty only because its attempts were used up, when more are allowed now."""
    if state_of(status) is not JobState.FAULTY or not status.attempts or status.failures >= max_attempts:
        return False
    failed = get_condition(status.conditions, ConditionType.FAILED)
    if failed is not None and fate_of(failed.reason) is Fate.REFUSE:
        return False
    return not fate_of(status.attempts[-1].reason).is_final


def reopened(status: CompactionJobStatus, *, max_attempts: int, now: Moment, generation: int) -> CompactionJobStatus:
    """The status of a parked job that may be tried again because the policy's maxAttempts was raised."""
    message = f"maxAttempts was raised to {max_attempts}: {max_attempts - status.failures} attempts left"
    return _eligible(status, message, now=now, generation=generation)


def retried(status: CompactionJobStatus, *, mark: str, why: str, now: Moment, generation: int) -> CompactionJobStatus:
    """The status of a parked job whose retry was requested: its attempts are reset.

    `mark` is what is remembered of the annotation that asked for it.
    """
    after = _eligible(status, f"{why}: its attempts are reset", now=now, generation=generation)
    return evolve(after, failures=0, retried=mark, retried_token=token_of(status))


def _eligible(status: CompactionJobStatus, message: str, *, now: Moment, generation: int) -> CompactionJobStatus:
    conditions = set_reconciling(
        clear_failed(status.conditions),
        reason=JobReason.RETRYING,
        message=message,
        observed_generation=generation,
        now=now.time,
    )
    return evolve(
        status,
        observed_generation=generation,
        state=next_state(JobState.FAULTY, JobEvent.REOPEN),
        conditions=conditions,
        finished_at=None,
    )


def not_before(status: CompactionJobStatus, now: Moment) -> float:
    """Until when (epoch seconds) a retry waits: 1, 2, 4 ... 60 s after attempts that failed in a row; 0 for none.

    An expired lease has waited long enough already. An end that is still to come was written by a clock that was
    ahead, perhaps by hours, and says nothing about how long ago it was.
    """
    row = 0
    for attempt in reversed(status.attempts):
        if attempt.outcome is not AttemptOutcome.FAILED:
            break
        row += 1
    last = status.attempts[-1] if row else None
    if last is None or last.ended_at is None or last.reason in _NO_BACKOFF:
        return 0.0
    ended_at = last.ended_at.timestamp()
    return 0.0 if ended_at > now.wall else ended_at + min(LONGEST_BACKOFF, 2.0 ** min(row - 1, 10))


def with_progress(status: CompactionJobStatus, percent: int) -> CompactionJobStatus:
    """The status with the worker's progress (0 to 99: 100 is only said by a receipt)."""
    return evolve(status, progress_percent=max(0, min(99, percent)))


def lease_ending(
    lease: JobLease | None,
    *,
    worker: str,
    worker_gone: str,
    now_token: int,
    worker_ending: WorkerEnding | None = None,
) -> Ending | None:
    """Judge by its Lease and its worker whether the attempt with `now_token` is over without a report: return its
    ending, None while it goes on.

    `worker_gone` says why the worker is known to be gone, or is empty; `worker_ending` how it ended, if that is known.
    """
    if lease is None or not lease.holder:
        return Ending(AttemptOutcome.LOST, JobReason.WORKER_LOST, "the job's Lease is gone", charged=False)
    if lease.token != now_token or lease.holder != worker:
        return Ending(AttemptOutcome.REVOKED, JobReason.REVOKED, "the job's Lease was changed by hand", charged=False)
    if worker_gone:
        reason = _LOSSES.get(worker_ending, JobReason.WORKER_LOST)
        # More memory than it has is what the job asked for; the other losses are nobody's fault.
        return Ending(AttemptOutcome.LOST, reason, worker_gone, charged=reason is JobReason.WORKER_OUT_OF_MEMORY)
    if not lease.is_live:
        message = f"{worker} did not renew its lease for {lease.silence:.0f} s (token {now_token})"
        return Ending(AttemptOutcome.EXPIRED, JobReason.LEASE_EXPIRED, message, charged=True)
    return None
