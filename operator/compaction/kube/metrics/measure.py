"""The values of the metrics of one policy, from the picture a reconcile saw and the decision it made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from compaction.api.enums import Approval, AttemptOutcome, JobReason, JobState
from compaction.api.job.job_status import ResourceUsage
from compaction.api.policy.policy import CompactionPolicy, is_superseded
from compaction.core.explain.words import job_words
from compaction.core.kind import Kind
from compaction.core.planning.debt import ScanResult, debt_of
from compaction.core.reconcile.actions import Decision
from compaction.core.reconcile.observations import PolicySnapshot
from compaction.core.reconcile.workers.fleet import skewed
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.registry import Metrics
from compaction.registry import kind_of

SUPERSEDED: Final = "Superseded"
"""Parked jobs that are kept for the record only, in `compaction_jobs`."""


OTHER: Final = "Other"
"""Stands for a reason that this version does not know, so that workers cannot add series."""
_ENDS: Final[Mapping[AttemptOutcome, tuple[JobReason, ...]]] = {
    AttemptOutcome.SUCCEEDED: (JobReason.COMPLETED,),
    AttemptOutcome.FAILED: (
        JobReason.SOURCE_CORRUPT,
        JobReason.SOURCES_CHANGED,
        JobReason.STORE_UNREADABLE,
        JobReason.VERIFICATION_FAILED,
        JobReason.WORKER_STOPPED,
        JobReason.ENGINE_LOST,
        JobReason.INVALID_JOB,
        JobReason.INTERNAL_ERROR,
        JobReason.LEASE_EXPIRED,
        JobReason.WORKER_OUT_OF_MEMORY,
        JobReason.STALE_TOKEN,
    ),
    AttemptOutcome.EXPIRED: (JobReason.LEASE_EXPIRED,),
    AttemptOutcome.LOST: (JobReason.WORKER_LOST, JobReason.WORKER_DISRUPTED, JobReason.WORKER_OUT_OF_MEMORY),
    AttemptOutcome.REVOKED: (JobReason.REVOKED,),
}
"""Reasons that every kind's attempts end for; a kind adds its own to Failed."""


_ROLES: Final = ("driver", "executor")
"""Where an attempt uses something: as in the labels of pods."""


@dataclass(frozen=True, slots=True)
class CleanupState:
    """The state of deletions after the last scan and the last sweep: for how many seconds the oldest deletion had been
    due, and how many targets could not be swept.
    """

    overdue: float = 0.0
    problems: int = 0


def measure(
    metrics: Metrics,
    key: CacheKey,
    snapshot: PolicySnapshot,
    decision: Decision,
    cleanup: CleanupState = CleanupState(),
) -> None:
    """Set the policy's gauges, and count what this decision ends."""
    policy = snapshot.policy
    if policy is None:
        return
    now = snapshot.now.wall
    metrics.set_jobs(key, _by_state(snapshot, policy))
    metrics.conditions.set(key, policy.status.conditions)
    metrics.workers.labels(*key).set(len(snapshot.workers))
    metrics.skewed_workers.labels(*key).set(len(skewed(snapshot)))
    spec, trigger = policy.spec, policy.spec.trigger
    # The alert on old debt (CompactionDebtTooOld) leaves out policies whose user lets debt wait.
    by_spec = spec.suspend or spec.approval is Approval.MANUAL or trigger.schedule is not None or bool(trigger.windows)
    metrics.debt_may_wait.labels(*key).set(by_spec or snapshot.hold is not None)
    lacking = Counter(
        process.trouble.value for process in snapshot.processes if process.trouble is not None and not process.ended
    )
    metrics.set_pending_workers(key, lacking)
    metrics.quarantined.labels(*key).set(len(policy.status.quarantined))
    metrics.cleanup_overdue_seconds.labels(*key).set(cleanup.overdue)
    metrics.cleanup_problems.labels(*key).set(cleanup.problems)
    waits = policy.status.waits
    metrics.set_waits(key, {row.reason: max(0.0, now - row.since.timestamp()) for row in waits})
    metrics.set_waiting(key, {row.reason: row.count for row in waits})
    metrics.granted_bytes_per_second.labels(*key).set(policy.status.granted_bytes_per_second or 0)
    if snapshot.allowance.workers is not None:
        metrics.worker_share.labels(*key).set(snapshot.allowance.workers.share)
    reading = snapshot.reading
    scanned = reading.wall if reading is not None and reading.problem is None else None
    metrics.set_last_scan(key, scanned, now=now)
    metrics.scan_interval.labels(*key).set(float(trigger.interval))
    if reading is not None:
        _measure_store(metrics, key, reading, now)
    _begin_counting(metrics, key, kind_of(spec.store))
    _count_endings(metrics, key, decision, snapshot)


def _by_state(snapshot: PolicySnapshot, policy: CompactionPolicy) -> dict[str, int]:
    """Jobs by state. Faulty are those of the column FAULTY: whose work was planned again stand apart."""
    states = [view.job.status.state for view in snapshot.jobs]
    counts = {state.value: states.count(state) for state in JobState}
    counts[SUPERSEDED] = sum(is_superseded(view.job, policy.status.quarantined) for view in snapshot.jobs)
    counts[JobState.FAULTY.value] -= counts[SUPERSEDED]
    return counts


def _measure_store(metrics: Metrics, key: CacheKey, reading: ScanResult, now: float) -> None:
    """Set the metrics of what the last scan found; one that failed leaves what is known. The measures of one kind of
    store are absent for the others.
    """
    metrics.target_errors.labels(*key).set(len(reading.problems))
    if reading.problem is not None:
        return
    debt = debt_of(reading)
    metrics.debt_bytes.labels(*key).set(debt.bytes)
    metrics.set_level_debt(key, {str(level.level): level.bytes for level in debt.levels})
    metrics.debt_oldest_age_seconds.labels(*key).set(max(0.0, now - (debt.oldest_at or now)))
    metrics.debt_sources.labels(*key).set(debt.sources)
    metrics.targets.labels(*key).set(len(reading.targets))
    for name, value in reading.measures.items():
        metrics.measures[name].labels(*key).set(value)


def _begin_counting(metrics: Metrics, key: CacheKey, kind: Kind) -> None:
    """A counter that first appears with its first event has never grown for a query that computes a rate."""
    for outcome, reasons in _ENDS.items():
        for reason in (*reasons, *(kind.words.jobs if outcome is AttemptOutcome.FAILED else ())):
            metrics.attempts.labels(*key, outcome.value, str(reason))
    for counter in (
        metrics.fenced_commits,
        metrics.cleanup_bytes,
        metrics.unmeasured,
        metrics.bytes_read,
        metrics.bytes_written,
    ):
        counter.labels(*key)
    for role in _ROLES:
        metrics.cpu_seconds.labels(*key, role)


def _count_endings(metrics: Metrics, key: CacheKey, decision: Decision, snapshot: PolicySnapshot) -> None:
    """Counters of attempts and bytes, from the writes this decision makes."""
    before = {view.name: view.job.status for view in snapshot.jobs}
    for action in decision.end_attempts:
        after, old = action.status, before.get(action.job.name)
        if after is None or old is None or not after.attempts:
            continue
        last = after.attempts[-1]
        if last.ended_at is not None and (not old.attempts or old.attempts[-1].ended_at is None):
            # Who writes a report can write any word into it: series are made of those that are known.
            reason = last.reason if last.reason in job_words() else OTHER
            metrics.attempts.labels(*key, last.outcome.value, reason).inc()
            metrics.unmeasured.labels(*key).inc(not last.is_measured)
            if last.reason == JobReason.STALE_TOKEN:
                metrics.fenced_commits.labels(*key).inc()
        # A report may come after its attempt was given up: then it is no new end, and its usage is new all the same.
        if last.usage is not None and {each.token: each.usage for each in old.attempts}.get(last.token) is None:
            _count_usage(metrics, key, last.usage)
        if after.receipt is not None and after.receipt != old.receipt:
            reclaimed, written = (
                (old.receipt.bytes_reclaimed, old.receipt.bytes_after) if old.receipt is not None else (0, 0)
            )
            metrics.bytes_reclaimed.labels(*key).inc(max(0, after.receipt.bytes_reclaimed - reclaimed))
            metrics.bytes_rewritten.labels(*key).inc(max(0, after.receipt.bytes_after - written))
            changes = after.receipt.measures
            if changes:
                metrics.set_last_job(
                    key,
                    {change.name: change.before for change in changes},
                    {change.name: change.after for change in changes},
                )
        if after.state is JobState.SUCCEEDED and after.assigned_at is not None and after.finished_at is not None:
            seconds = (after.finished_at - after.assigned_at).total_seconds()
            metrics.job_seconds.labels(*key).observe(max(0.0, seconds))


def _count_usage(metrics: Metrics, key: CacheKey, used: ResourceUsage) -> None:
    """Add what an attempt used; what it could not say adds nothing."""
    for role, seconds in zip(_ROLES, (used.driver_cpu_seconds, used.executor_cpu_seconds), strict=True):
        metrics.cpu_seconds.labels(*key, role).inc(seconds or 0.0)
    metrics.bytes_read.labels(*key).inc(used.bytes_read or 0)
    metrics.bytes_written.labels(*key).inc(used.bytes_written or 0)
    peaks = zip(_ROLES, (used.driver_peak_bytes, used.executor_peak_bytes), strict=True)
    metrics.set_last_peaks(key, {role: peak for role, peak in peaks if peak is not None})
