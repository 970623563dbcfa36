"""The status of a policy: conditions, debt, figures of its store, and when the debt is worked off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from compaction.api.base import timestamp_from_epoch
from compaction.api.conditions import Conditions, get_condition, reason_since
from compaction.api.enums import Approval, ConditionType, JobReason, JobState, PlanApproval, PolicyReason, WaitReason
from compaction.api.policy.policy import (
    CompactionPolicy,
    CompactionPolicyStatus,
    DebtStatus,
    LevelDebtStatus,
    MeasureStatus,
    QuarantinedSource,
    SourceConflict,
    TargetDebtStatus,
    TargetError,
    TenantDebtStatus,
    is_superseded,
)
from compaction.api.policy.policy_status import RunRecord, WaitCount, WaitStatus, WorkerStatus
from compaction.api.policy.store import conditions_for
from compaction.api.text.printing import format_bytes, plural
from compaction.core.kind import Kind
from compaction.core.planning.debt import (
    Debt,
    FinishedWork,
    ScanResult,
    TargetProblem,
    bytes_per_second,
    debt_of,
    eta_seconds,
)
from compaction.core.reconcile.jobs import ending
from compaction.core.reconcile.jobs.counting import Totals, finished_work
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import Hold, Memory, Moment, RequestMemory
from compaction.core.reconcile.status.announcing import for_window
from compaction.core.reconcile.timing import NO_WINDOWS, Timing, finished_by
from compaction.core.reconcile.workers.fleet import Raised, with_skew
from compaction.registry import kind_of, policy_standing

# The time at which the debt is worked off, from what the newest jobs took; None where it is unknown.
#
# It is unknown while nothing runs: the store refuses a claim, no worker starts, a retry waits, no window is open.
# Where plans wait for a schedule or for approval the debt as a whole has no known end: there it is the jobs that
# exist whose end is estimated. Windows and the limit on bytes per second are taken into account.

TIMES_MOVED = 3
"""Each byte that is copied is read, written, and read back: all of it counts against limits.bytesPerSecond."""


def eta(policy: CompactionPolicy, steps: tuple[JobStep, ...], debt: Debt, clock: Timing, now: Moment) -> int | None:
    """Seconds until the debt, or with a schedule or approval what is planned of it, is worked off; None if unknown."""
    if not any(step.state is JobState.IN_PROGRESS for step in steps):
        return None
    spec = policy.spec
    only_planned = spec.trigger.schedule is not None or spec.approval is Approval.MANUAL
    unfinished = [step for step in steps if step.state not in (JobState.SUCCEEDED, JobState.FAULTY)]
    planned = sum(step.view.job.spec.estimated_bytes * (100 - _percent(step)) // 100 for step in unfinished)
    running = running_work(steps, now)
    # The scan that found the debt knows nothing of what the running jobs have copied since.
    copied = sum(work.cost_bytes for work in running)
    left = planned if only_planned or not debt.copy_bytes else max(planned, debt.copy_bytes - copied)
    if not left or not (only_planned or debt.copy_bytes):
        return None
    # The last jobs run alone, however many slots there are.
    most = len(unfinished) if only_planned else max(len(unfinished), debt.targets)
    parallel = min(spec.limits.max_concurrent_jobs, spec.workers.max * spec.workers.slots, most)
    speed = bytes_per_second(finished_work(steps)) or bytes_per_second(running)
    seconds = eta_seconds(left, speed, parallel=parallel)
    if seconds is None:
        return None
    if spec.limits.bytes_per_second is not None:
        seconds = max(seconds, left * TIMES_MOVED / int(spec.limits.bytes_per_second))
    done = finished_by(clock.windows, spec.trigger.time_zone, now=now.wall, work=seconds)
    return None if done is None else round(done - now.wall)


def running_work(steps: Iterable[JobStep], now: Moment) -> list[FinishedWork]:
    """Return what running jobs have copied so far, as their Leases say: all there is before the first of them has
    ended.
    """
    return [
        FinishedWork(
            step.view.job.spec.estimated_bytes * step.lease.progress // 100,
            (now.time - step.status.assigned_at).total_seconds(),
            now.wall,
        )
        for step in steps
        if step.state is JobState.IN_PROGRESS
        and step.lease is not None
        and step.lease.progress
        and step.status.assigned_at is not None
    ]


def progress_of(steps: Iterable[JobStep]) -> int | None:
    """Percent of the bytes that the running jobs copy; None while none runs. A job that copies nothing counts as one
    byte.
    """
    running = [step for step in steps if step.state is JobState.IN_PROGRESS]
    weights = [max(1, step.view.job.spec.estimated_bytes) for step in running]
    if not running:
        return None
    return sum(weight * _percent(step) for weight, step in zip(weights, running, strict=True)) // sum(weights)


def _percent(step: JobStep) -> int:
    """The Lease has it exactly, the status only now and then."""
    exact = step.lease.progress if step.lease is not None else None
    return exact if exact is not None else step.status.progress_percent or 0


# The figures of a store in its policy's status: its debt, by level and tenant, the kind's measures, and conflicts.


def store_figures(debt: Debt, scan: ScanResult, kind: Kind) -> dict[str, Any]:
    """The members `debt` and `conflicts` of the status. Of tenants, those with the most debt are kept (MAX_TENANTS)."""
    tenants = debt.tenants if kind.has_tenants else ()
    return {
        "debt": DebtStatus(
            bytes=debt.bytes,
            sources=debt.sources,
            targets=debt.targets,
            measures=tuple(
                MeasureStatus(name=measure.name, value=scan.measures[measure.name])
                for measure in kind.measures
                if measure.name in scan.measures
            ),
            behind=tuple(
                TargetDebtStatus(
                    target=item.target,
                    measures=tuple(MeasureStatus(name=name, value=value) for name, value in item.measures),
                )
                for item in scan.behind
            ),
            levels=tuple(
                LevelDebtStatus(level=level.level, bytes=level.bytes, sources=level.sources) for level in debt.levels
            ),
            tenants=tuple(
                TenantDebtStatus(tenant=tenant.tenant, bytes=tenant.bytes, sources=tenant.sources) for tenant in tenants
            ),
        ),
        "conflicts": tuple(
            SourceConflict(
                tenant=conflict.tenant, classes=conflict.classes, sources=conflict.sources, message=conflict.message
            )
            for conflict in scan.conflicts
        ),
    }


# A policy's status, assembled: conditions as kstatus reads them, debt, plan, counts, totals, and what is waited for.
#
# Everything here is computed from one picture; nothing is written when nothing changed. Changes a person waits for
# are written soon, numbers that only drift are written at most every `SLOW_GAP` seconds (no hot loop;
# docs/design/invariants.md, 6).

SOON_GAP: Final = 0.5
SLOW_GAP: Final = 10.0
LAZY_GAP: Final = 300.0
"""When nothing but the time of the last scan has changed."""
STALLED_AFTER_LAUNCHES: Final = 3
"""After so many failed launches in a row a user has to act."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that the status is assembled from. `waits` are the rows of status.waits, jobs first; `created` counts
    the jobs that are being created; `granted` are the bytes per second of the running jobs; `stuck` says why a worker
    cannot start; `raised` is the memory that pods get, when that is more than the spec says; `skew` tells of workers of
    another version, `held_by` of an older policy over the same store. `requests` are the answers to users' requests,
    `runs` the history; `defaulted` is what the operator's configuration adds to the spec.
    """

    policy: CompactionPolicy
    steps: tuple[JobStep, ...]
    reading: ScanResult | None
    memory: Memory
    now: Moment
    totals: Totals
    quarantined: tuple[QuarantinedSource, ...]
    created: int
    workers: int
    worker_statuses: tuple[WorkerStatus, ...]
    stuck: str
    raised: Raised
    waits: tuple[WaitCount, ...]
    clock: Timing
    granted: int | None
    released: str
    skew: str = ""
    held_by: str = ""
    hold: Hold | None = None
    defaulted: Mapping[str, Any] = field(default_factory=dict)
    requests: RequestMemory = field(default_factory=RequestMemory)
    runs: tuple[RunRecord, ...] = ()

    @property
    def effective_clock(self) -> Timing:
        """The clock, without windows while a request lets jobs start outside of them."""
        run = self.requests.run_now
        return replace(self.clock, window=NO_WINDOWS, windows=()) if run is not None and run.plans else self.clock


@dataclass(frozen=True, slots=True)
class _Counts:
    active: int
    queued: int
    faulty: int


def assemble(facts: Facts) -> CompactionPolicyStatus:
    """The status as it should stand now."""
    before = facts.policy.status
    counts = _count(facts)
    plan = facts.memory.planning.plan or before.plan
    debt = debt_of(facts.reading) if facts.reading is not None else None
    finished = [s.status.finished_at for s in facts.steps if s.state is JobState.SUCCEEDED and s.status.finished_at]
    known_success = [before.last_success_time] if before.last_success_time is not None else []
    conditions = _conditions(facts, counts, debt)
    changes: dict[str, Any] = {
        "observed_generation": facts.policy.metadata.generation,
        "conditions": with_skew(
            conditions,
            facts.skew,
            observed_generation=facts.policy.metadata.generation,
            now=facts.now.time,
        ),
        "reason_since": reason_since(before.conditions, conditions, known=before.reason_since, now=facts.now.time),
        "store": facts.policy.spec.store.name,
        "plan": plan,
        "approved": plan.hash if plan is not None and plan.approval is PlanApproval.APPROVED else before.approved,
        "active": counts.active,
        "progress_percent": progress_of(facts.steps),
        "queued": counts.queued,
        "faulty": counts.faulty,
        "succeeded": facts.totals.succeeded,
        "workers": facts.workers,
        "worker_statuses": facts.worker_statuses,
        "driver_memory_bytes": facts.raised.driver,
        "executor_memory_bytes": facts.raised.executor,
        "last_success_time": max([*finished, *known_success], default=None),
        "bytes_reclaimed": facts.totals.bytes_reclaimed,
        "cost": facts.totals.cost,
        "counted": facts.totals.counted,
        "history": facts.runs,
        "evicted": ending.eviction_rows(facts.memory.planning),
        "quarantined": facts.quarantined,
        "waiting": _waiting(facts, counts),
        "waits": facts.waits,
        "last_schedule_time": _time(facts.memory.planning.scheduled_for if facts.clock.anchor is not None else None),
        "next_schedule_time": _time(facts.clock.upcoming),
        "next_window_time": _time(facts.clock.window.opens_at),
        "granted_bytes_per_second": facts.granted,
        "released": facts.released,
        "defaults": dict(facts.defaulted),
        "last_handled_run_now": facts.requests.run_now_mark,
        "run_now": facts.requests.run_now,
        "last_handled_scan": facts.requests.scan_mark,
        "scan": facts.requests.scan,
        "last_handled_preview": facts.requests.preview_mark,
        "preview": facts.requests.preview,
    }
    # Without a scan, as after a restart, the figures of the last one stay.
    if facts.reading is not None and debt is not None:
        changes |= _from_reading(facts, facts.reading, debt)
    return CompactionPolicyStatus.model_validate({**dict(before), **changes})


def _count(facts: Facts) -> _Counts:
    states = [step.state for step in facts.steps]
    superseded = sum(is_superseded(step.view.job, facts.quarantined, status=step.status) for step in facts.steps)
    return _Counts(
        active=states.count(JobState.IN_PROGRESS),
        queued=states.count(JobState.UNASSIGNED) + states.count(JobState.ABANDONED) + facts.created,
        faulty=states.count(JobState.FAULTY) - superseded,
    )


def last_reason(step: JobStep) -> str:
    """Return the reason of the end of the job's last attempt, "" before the first."""
    return step.status.attempts[-1].reason if step.status.attempts else ""


def _time(moment: float | None) -> datetime | None:
    return timestamp_from_epoch(moment) if moment is not None else None


def _from_reading(facts: Facts, reading: ScanResult, debt: Debt) -> dict[str, Any]:
    problems = [reading.problem] if reading.problem is not None else []
    return {
        **(store_figures(debt, reading, kind_of(facts.policy.spec.store)) if reading.problem is None else {}),
        "oldest_debt_at": timestamp_from_epoch(debt.oldest_at) if debt.oldest_at is not None else None,
        "eta_seconds": eta(facts.policy, facts.steps, debt, facts.effective_clock, facts.now),
        "last_sense_time": timestamp_from_epoch(reading.wall),
        "target_errors": tuple(
            TargetError(target=problem.target, reason=problem.reason, message=problem.message)
            for problem in (*problems, *reading.problems)
        ),
    }


def _waiting(facts: Facts, counts: _Counts) -> WaitStatus | None:
    """The reason most jobs wait for, and since when the one that waits longest does (for whatever reason); when no job
    waits, what the next plan waits for. On hold the hold, also where Ready has a reason for which a person has to act.
    """
    if facts.hold is not None:
        before = facts.policy.status.waiting
        known = before.since if before is not None and before.reason == WaitReason.HELD else facts.now.time
        return WaitStatus(reason=WaitReason.HELD, message=facts.hold.said, since=facts.hold.since or known)
    if not facts.waits:
        return None
    first = facts.waits[0]
    since = min((facts.memory.waits or {}).values(), default=first.since) if counts.queued else first.since
    return WaitStatus(reason=first.reason, message=first.message, since=since)


def _conditions(facts: Facts, counts: _Counts, debt: Debt | None) -> Conditions:
    reason, message = _stalled(facts, counts) or _going_on(facts, counts, debt)
    before, generation = facts.policy.status, facts.policy.metadata.generation
    known = get_condition(before.conditions, ConditionType.READY) is not None
    known = known and before.observed_generation == generation  # the status says how the policy stands with this spec
    if facts.reading is None and reason == PolicyReason.SENSING and known:
        return before.conditions  # a new coordinator: what the last one said holds until the first look has ended
    return conditions_for(
        before.conditions,
        reason=reason,
        message=message,
        observed_generation=generation,
        now=facts.now.time,
        standing=policy_standing(reason),
    )


def _going_on(facts: Facts, counts: _Counts, debt: Debt | None) -> tuple[str, str]:
    """Return the reason and the message of what the policy does, when nothing keeps it from that: the spec is carried
    out, jobs first, then what is left.
    """
    reading, location = facts.reading, facts.policy.spec.store.location
    if reading is None or reading.generation != facts.policy.metadata.generation:
        return PolicyReason.SENSING, f"{location} has not been scanned with this spec yet"
    if facts.hold is not None:
        running = plural(counts.active, "job still runs", "jobs still run")
        return PolicyReason.HELD, f"{facts.hold.said}; {running}, {_waiting_count(counts)}"
    if facts.policy.spec.suspend:
        if counts.active:
            running = plural(counts.active, "job still runs", "jobs still run")
            return PolicyReason.SUSPENDING, f"{running} and no other one starts; {_waiting_count(counts)}"
        return PolicyReason.SUSPENDED, f"no job runs, {_waiting_count(counts)}; set spec.suspend to false to go on"
    if counts.queued and not counts.active and not facts.effective_clock.window.is_open:
        queued = plural(counts.queued, "job waits", "jobs wait")
        return PolicyReason.OUTSIDE_WINDOW, f"{queued}: {for_window(facts.clock)}"
    if counts.active or counts.queued:
        bytes_left = format_bytes(debt.bytes if debt is not None else 0)
        gain = kind_of(facts.policy.spec.store).nouns.gain
        running = plural(counts.active, "job runs", "jobs run")
        return PolicyReason.COMPACTING, f"{running}, {_waiting_count(counts)}; {bytes_left} {gain}"
    if any(at >= reading.started for at in facts.memory.finished.values()):
        return PolicyReason.COMPACTING, f"jobs have finished since the last scan of {location}; scanning again"
    return _settled(facts, debt)


def _waiting_count(counts: _Counts) -> str:
    return plural(counts.queued, "waits", "wait")


def _stalled(facts: Facts, counts: _Counts) -> tuple[str, str] | None:
    """Return what a person has to act on, if anything does not go on by itself: whatever else goes on meanwhile,
    because under steady load something always does.
    """
    reading = facts.reading
    if facts.held_by:
        return PolicyReason.STORE_OVERLAPS, facts.held_by
    if reading is not None and reading.problem is not None:
        return reading.problem.reason, reading.problem.message
    if facts.stuck and counts.queued and not facts.workers:
        return PolicyReason.LAUNCH_FAILED, facts.stuck
    if facts.memory.workers.failures >= STALLED_AFTER_LAUNCHES and counts.queued:
        return PolicyReason.LAUNCH_FAILED, f"no worker could be started: {facts.memory.workers.error}"
    if reading is not None and reading.problems:
        return _unreadable(facts, reading.problems)
    if facts.quarantined:
        return PolicyReason.SOURCES_QUARANTINED, _in_quarantine(facts)
    stuck = [step for step in facts.steps if step.state is JobState.FAULTY and not _explained(step)]
    if stuck:
        whose = plural(len(stuck), "job has used up its attempts", "jobs have used up their attempts")
        message = f"{whose}, first {stuck[0].name}: {last_reason(stuck[0])}; fix the "
        return (
            PolicyReason.JOBS_FAULTY,
            f"{message}cause, then retry, raise limits.maxAttempts, or delete what is not needed",
        )
    return None


def _unreadable(facts: Facts, problems: Sequence[TargetProblem]) -> tuple[str, str]:
    """Of targets that could not be planned: when all have one reason that the kind has words for, that one."""
    kind, first, count = kind_of(facts.policy.spec.store), problems[0], len(problems)
    if first.reason in kind.words.policies and all(problem.reason == first.reason for problem in problems):
        more = f" ({count} {kind.nouns.targets} in all)" if count > 1 else ""
        return first.reason, f"{first.message}{more}"
    more = f" ({count} {kind.nouns.targets} in all, see status.targetErrors)" if count > 1 else ""
    return PolicyReason.SOURCES_UNREADABLE, f"{first.reason}: {first.message}{more}"


def _in_quarantine(facts: Facts) -> str:
    nouns, newest = kind_of(facts.policy.spec.store).nouns, facts.quarantined[-1]
    count, path = len(facts.quarantined), f"{newest.target}/{newest.source}"
    which = f"{'newest ' if count > 1 else ''}{path}"
    cause = newest.message.removeprefix(f"{path}: ") or newest.reason
    remedy = nouns.ends_quarantine[0].upper() + nouns.ends_quarantine[1:]
    damaged = plural(count, f"damaged {nouns.damaged or nouns.source}")
    return f"{damaged} quarantined: {which} ({cause}). {remedy} to end its quarantine."


def _explained(step: JobStep) -> bool:
    """Faulty jobs that need no action: replanned, or their culprit is in quarantine."""
    return last_reason(step) in (JobReason.SOURCES_CHANGED, JobReason.SOURCE_CORRUPT) or not step.status.attempts


def _settled(facts: Facts, debt: Debt | None) -> tuple[str, str]:
    store, scan = facts.policy.spec.store, facts.reading
    kind = kind_of(store)
    if scan is not None and (nothing := kind.nothing_found(store, scan)) is not None:
        return nothing.reason, nothing.message
    approval = next((row for row in facts.waits if row.reason == WaitReason.APPROVAL_PENDING), None)
    if approval is not None:
        return PolicyReason.APPROVAL_PENDING, approval.message
    awaited = next((row for row in facts.waits if row.reason == WaitReason.AWAITING_SCHEDULE), None)
    if awaited is not None:
        return PolicyReason.AWAITING_SCHEDULE, awaited.message
    left = f", {format_bytes(debt.bytes)} of debt is not due yet" if debt is not None and debt.bytes else ""
    found = kind.scanned(scan) if scan is not None else "nothing"
    return PolicyReason.SCHEDULED, f"{found} scanned, nothing is due{left}"


def write_gap(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> float | None:
    """Seconds that must have passed since the last write for this one; None when nothing changed."""
    if before == after:
        return None
    if {item.job for item in after.evicted} - {item.job for item in before.evicted}:
        return 0.0  # the jobs are being deleted: this is all that is left of them
    if _unmade(after) and not _unmade(before):
        return 0.0  # the jobs of the approved plan are created once this is written
    if _urgent(before) != _urgent(after):
        return SOON_GAP
    looked = before.model_copy(update={"last_sense_time": after.last_sense_time})
    return LAZY_GAP if looked == after else SLOW_GAP


def _unmade(status: CompactionPolicyStatus) -> str:
    return status.plan.unmade if status.plan is not None else ""


def _urgent(status: CompactionPolicyStatus) -> tuple[Any, ...]:
    return (
        status.observed_generation,
        tuple((condition.type, condition.status, condition.reason) for condition in status.conditions),
        status.plan.hash if status.plan is not None else "",
        status.active,
        status.queued,
        status.faulty,
        status.counted,
        status.succeeded,
        status.bytes_reclaimed,
        status.quarantined,
        status.waiting.reason if status.waiting is not None else "",
        status.plan.approval if status.plan is not None else None,
        status.last_schedule_time,
        status.released,
        status.last_handled_run_now,
        status.last_handled_scan,
        status.last_handled_preview,
        tuple((error.target, error.reason) for error in status.target_errors),
        status.defaults,
        status.events.last if status.events is not None else 0,
    )
