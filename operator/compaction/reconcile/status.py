"""A policy's status, assembled: conditions as kstatus reads them, debt, plan, counts, totals, and what is waited for.

Everything here is computed from one picture; nothing is written when nothing changed. Changes a person waits for are
written soon, numbers that only drift are written at most every `SLOW_GAP` seconds (no hot loop; DESIGN §7.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from compaction.api.conditions import Conditions, get_condition
from compaction.api.enums import ConditionType, JobReason, JobState, PolicyReason, WaitReason
from compaction.api.formatting import format_bytes, plural
from compaction.api.plan_status import WaitCount, Waiting
from compaction.api.policy import (
    CompactionPolicy,
    CompactionPolicyStatus,
    LogError,
    QuarantinedSource,
)
from compaction.api.policy_status import WorkerStatus
from compaction.api.standing import conditions_for
from compaction.api.times import timestamp_from_epoch
from compaction.planning.debt import Debt, debt_of
from compaction.reconcile import evictions
from compaction.reconcile.counting import Totals
from compaction.reconcile.eta import eta
from compaction.reconcile.figures import store_figures
from compaction.reconcile.observations import Memory, Moment, Reading
from compaction.reconcile.pod_memory import Raised
from compaction.reconcile.skew import with_skew
from compaction.reconcile.steps import JobStep
from compaction.reconcile.superseded import is_superseded
from compaction.reconcile.timing import Timing
from compaction.reconcile.waits import for_window

SOON_GAP: Final = 0.5
SLOW_GAP: Final = 10.0
LAZY_GAP: Final = 300.0
"""When nothing but the time of the last look has changed."""
STALLED_AFTER_LAUNCHES: Final = 3
"""So many failed launches in a row, and the policy says that someone has to act."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the status is assembled from. `waits` are the rows of status.waits, jobs first; `created` counts the jobs
    that are being created; `granted` are the bytes per second of the running jobs; `stuck` says why a worker cannot
    start; `raised` is the memory that pods get, when that is more than the spec says; `skew` tells of workers of
    another version, `held_by` of an older policy over the same store.
    """

    policy: CompactionPolicy
    steps: tuple[JobStep, ...]
    reading: Reading | None
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


@dataclass(frozen=True, slots=True)
class _Counts:
    active: int
    queued: int
    faulty: int


def assemble(facts: Facts) -> CompactionPolicyStatus:
    """The status as it should stand now."""
    before = facts.policy.status
    counts = _count(facts)
    debt = debt_of(facts.reading) if facts.reading is not None else None
    finished = [s.status.finished_at for s in facts.steps if s.state is JobState.SUCCEEDED and s.status.finished_at]
    known_success = [before.last_success_time] if before.last_success_time is not None else []
    changes: dict[str, Any] = {
        "observed_generation": facts.policy.metadata.generation,
        "conditions": with_skew(
            _conditions(facts, counts, debt),
            facts.skew,
            observed_generation=facts.policy.metadata.generation,
            now=facts.now.time,
        ),
        "store": facts.policy.spec.store.kind,
        "plan": facts.memory.plan or before.plan,
        "active": counts.active,
        "queued": counts.queued,
        "faulty": counts.faulty,
        "succeeded": facts.totals.succeeded,
        "workers": facts.workers,
        "worker_statuses": facts.worker_statuses,
        "driver_memory_bytes": facts.raised.driver,
        "executor_memory_bytes": facts.raised.executor,
        "last_success_time": max([*finished, *known_success], default=None),
        "bytes_reclaimed": facts.totals.bytes_reclaimed,
        "counted": facts.totals.counted,
        "evicted": evictions.rows(facts.memory),
        "quarantined": facts.quarantined,
        "waiting": _waiting(facts, counts),
        "waits": facts.waits,
        "last_schedule_time": _time(facts.memory.planned_for if facts.clock.anchor is not None else None),
        "next_schedule_time": _time(facts.clock.upcoming),
        "next_window_time": _time(facts.clock.window.opens_at),
        "granted_bytes_per_second": facts.granted,
        "released": facts.released,
    }
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
    """Why the job's last attempt ended."""
    return step.status.attempts[-1].reason if step.status.attempts else ""


def _time(moment: float | None) -> datetime | None:
    return timestamp_from_epoch(moment) if moment is not None else None


def _from_reading(facts: Facts, reading: Reading, debt: Debt) -> dict[str, Any]:
    problems = [reading.problem] if reading.problem is not None else []
    return {
        **(store_figures(debt, reading.blocks) if reading.problem is None else {}),
        "oldest_debt_at": timestamp_from_epoch(debt.oldest_at) if debt.oldest_at is not None else None,
        "eta_seconds": eta(facts.policy, facts.steps, debt, facts.clock, facts.now),
        "last_sense_time": timestamp_from_epoch(reading.wall),
        **({"missing_live_entries": reading.missing_entries} if reading.problem is None else {}),
        "log_errors": tuple(
            LogError(log=one.log, reason=one.reason, message=one.message) for one in (*problems, *reading.problems)
        ),
    }


def _waiting(facts: Facts, counts: _Counts) -> Waiting | None:
    """The reason most jobs wait for, and since when the one that waits longest does (for whatever reason); when no job
    waits, what the next plan waits for.
    """
    if not facts.waits:
        return None
    first = facts.waits[0]
    since = min((facts.memory.waits or {}).values(), default=first.since) if counts.queued else first.since
    return Waiting(reason=first.reason, message=first.message, since=since)


def _conditions(facts: Facts, counts: _Counts, debt: Debt | None) -> Conditions:
    reason, message = _stalled(facts, counts) or _going_on(facts, counts, debt)
    before = facts.policy.status
    if facts.reading is None and reason == PolicyReason.SENSING and _is_known(facts.policy):
        return before.conditions  # a new coordinator: what the last one said holds until the first look has ended
    return conditions_for(
        before.conditions,
        reason=reason,
        message=message,
        observed_generation=facts.policy.metadata.generation,
        now=facts.now.time,
    )


def _is_known(policy: CompactionPolicy) -> bool:
    """Whether the status says how the policy stands with this spec."""
    known = get_condition(policy.status.conditions, ConditionType.READY) is not None
    return known and policy.status.observed_generation == policy.metadata.generation


def _going_on(facts: Facts, counts: _Counts, debt: Debt | None) -> tuple[str, str]:
    """What the policy does, when nothing keeps it from that: the spec is carried out, jobs first, then what is left."""
    reading, location = facts.reading, facts.policy.spec.store.location
    if reading is None or reading.generation != facts.policy.metadata.generation:
        return PolicyReason.SENSING, f"{location} was not looked at yet with this spec"
    if facts.policy.spec.suspend:
        if counts.active:
            message = f"{plural(counts.active, 'job')} still run and no other one starts; {counts.queued} wait"
            return PolicyReason.SUSPENDING, message
        return PolicyReason.SUSPENDED, f"no job runs, {counts.queued} wait; set spec.suspend to false to go on"
    if counts.queued and not counts.active and not facts.clock.window.is_open:
        return PolicyReason.OUTSIDE_WINDOW, f"{plural(counts.queued, 'job')} wait: {for_window(facts.clock)}"
    if counts.active or counts.queued:
        bytes_left = format_bytes(debt.bytes if debt is not None else 0)
        gain = "to merge" if facts.policy.spec.store.block_store is not None else "to give back"
        return PolicyReason.COMPACTING, f"{counts.active} jobs run, {counts.queued} wait; {bytes_left} {gain}"
    if any(at >= reading.started for at in facts.memory.finished.values()):
        return PolicyReason.COMPACTING, f"jobs have finished since {location} was looked at; looking again"
    return _settled(facts, debt)


def _stalled(facts: Facts, counts: _Counts) -> tuple[str, str] | None:
    """What a person has to act on, if anything does not go on by itself: whatever else goes on meanwhile, because under
    steady load something always does.
    """
    reading = facts.reading
    if facts.held_by:
        return PolicyReason.STORE_OVERLAPS, facts.held_by
    if reading is not None and reading.problem is not None:
        return reading.problem.reason, reading.problem.message
    if facts.stuck and counts.queued and not facts.workers:
        return PolicyReason.LAUNCH_FAILED, facts.stuck
    if facts.memory.launch_failures >= STALLED_AFTER_LAUNCHES and counts.queued:
        return PolicyReason.LAUNCH_FAILED, f"no worker could be started: {facts.memory.launch_error}"
    if reading is not None and reading.problems:
        first = reading.problems[0]
        if all(one.reason == PolicyReason.OWNER_RUNNING for one in reading.problems):
            more = f" ({len(reading.problems)} logs in all)" if len(reading.problems) > 1 else ""
            return PolicyReason.OWNER_RUNNING, f"{first.message}{more}"
        more = f" ({len(reading.problems)} logs in all, see status.logErrors)" if len(reading.problems) > 1 else ""
        return PolicyReason.LOGS_UNREADABLE, f"{first.reason}: {first.message}{more}"
    if facts.quarantined:
        return PolicyReason.SOURCES_QUARANTINED, _set_aside(facts)
    stuck = [step for step in facts.steps if step.state is JobState.FAULTY and not _explained(step)]
    if stuck:
        message = f"{len(stuck)} jobs used up their attempts, first {stuck[0].name}: {last_reason(stuck[0])}; mend the "
        return (
            PolicyReason.JOBS_FAULTY,
            f"{message}cause, then retry them, raise limits.maxAttempts, or delete them",
        )
    return None


def _set_aside(facts: Facts) -> str:
    logs = facts.policy.spec.store.segment_logs is not None
    first = facts.quarantined[-1]
    what, end = ("segments", "restore the file") if logs else ("blocks", "release or drop the block")
    message = f"{len(facts.quarantined)} damaged {what} are set aside, newest {first.log}/{first.segment}: "
    return f"{message}{first.message}; {end} to end its quarantine"


def _explained(step: JobStep) -> bool:
    """Faulty jobs that need nobody: replanned, or their culprit is in quarantine."""
    return last_reason(step) in (JobReason.SOURCES_CHANGED, JobReason.SOURCE_CORRUPT) or not step.status.attempts


def _settled(facts: Facts, debt: Debt | None) -> tuple[str, str]:
    store = facts.policy.spec.store.segment_logs
    if store is not None and facts.reading is not None and not facts.reading.logs:
        without = f" without {', '.join(store.exclude)}" if store.exclude else ""
        message = f"nothing below {store.root} that matches {', '.join(store.include)}{without} holds segment files: "
        return PolicyReason.NO_LOGS_FOUND, f"{message}check root, include and exclude, if there should be logs"
    approval = next((row for row in facts.waits if row.reason == WaitReason.APPROVAL_PENDING), None)
    if approval is not None:
        return PolicyReason.APPROVAL_PENDING, approval.message
    awaited = next((row for row in facts.waits if row.reason == WaitReason.AWAITING_SCHEDULE), None)
    if awaited is not None:
        return PolicyReason.AWAITING_SCHEDULE, awaited.message
    left = f", {format_bytes(debt.bytes)} of debt is not due yet" if debt is not None and debt.bytes else ""
    return PolicyReason.SCHEDULED, f"{_looked_at(facts.reading)} looked at, nothing to do now{left}"


def _looked_at(reading: Reading | None) -> str:
    if reading is not None and reading.blocks is not None:
        return plural(reading.blocks.live, "block")
    return plural(len(reading.logs) if reading is not None else 0, "log")


def write_gap(before: CompactionPolicyStatus, after: CompactionPolicyStatus) -> float | None:
    """Seconds that must have passed since the last write for this one; None when nothing changed."""
    if before == after:
        return None
    if {one.job for one in after.evicted} - {one.job for one in before.evicted}:
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
        tuple((one.type, one.status, one.reason) for one in status.conditions),
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
        tuple((one.log, one.reason) for one in status.log_errors),
    )
