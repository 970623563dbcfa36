"""Shares of the bytes per second, and what jobs that could run are short of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from compaction.api.enums import JobState, WaitReason
from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import format_bytes
from compaction.core.planning.scheduler import Rates, Schedule
from compaction.core.reconcile.jobs.job import token_of
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import (
    Allowance,
    HeldShare,
    JobLease,
    LimitDemand,
    Memory,
    PolicySnapshot,
    ShareMemory,
    WorkerProcess,
    frozen,
)
from compaction.core.reconcile.status.announcing import when
from compaction.core.reconcile.workers.fleet import Fleet
from compaction.registry import kind_of

# Attempts that have a share of the bytes per second, and may still write with it.
#
# A share may be in use for longer than its attempt is known to run. So an attempt that ends without a report (its
# worker went silent, its Lease or its job was deleted) keeps its share for one more duration of its lease: its worker
# has stopped by then, whatever it could not learn. A share that was decided on counts from that moment: a write
# without an answer may have happened.

Attempt = tuple[str, int]
"""A job and its token."""


def noted(
    shares: ShareMemory, steps: Iterable[JobStep], snapshot: PolicySnapshot, *, lease_seconds: float
) -> ShareMemory:
    """Return the memory with the shares that attempts have now. `lease_seconds` is what attempts have that ended before
    this term.
    """
    now = snapshot.now.monotonic
    held: dict[Attempt, HeldShare] = {}
    for key, lease in running(steps).items():
        known = shares.held.get(key)
        if lease.bytes_per_second is not None:
            decided = known.bytes_per_second if known is not None else 0
            held[key] = HeldShare(max(lease.bytes_per_second, decided), lease.duration)
    reported = _reported(snapshot)
    for key, share in shares.held.items():
        until = share.until if share.until is not None else now + share.duration
        if key not in held and key not in reported and until > now:
            held[key] = replace(share, until=until)
    known_at = now + lease_seconds if shares.known_at is None else shares.known_at
    return ShareMemory(frozen(held), known_at)


def granted_to(step: JobStep, shares: ShareMemory) -> int | None:
    """The bytes per second that a running job may read and write: what was decided, or its Lease says; its status
    repeats it.
    """
    held = shares.held.get((step.name, token_of(step.status)))
    if held is not None:
        return held.bytes_per_second
    return step.status.attempts[-1].bytes_per_second if step.status.attempts else None


def lingering(shares: ShareMemory) -> int:
    """Bytes per second of attempts that have ended without a report and may still write."""
    return sum(share.bytes_per_second for share in shares.held.values() if share.until is not None)


def next_free(shares: ShareMemory, *, now: float) -> float | None:
    """Seconds until more is known to be free; None when nothing is waited for."""
    moments = [share.until for share in shares.held.values() if share.until is not None]
    if len(moments) < len(shares.held) and shares.known_at is not None:
        moments.append(shares.known_at)
    return min((at - now for at in moments if at > now), default=None)


def running(steps: Iterable[JobStep]) -> dict[Attempt, JobLease]:
    """The Leases of the attempts that run."""
    found = ((step.name, token_of(step.status), step) for step in steps if step.state is JobState.IN_PROGRESS)
    return {(name, token): step.lease for name, token, step in found if step.lease is not None}


def _reported(snapshot: PolicySnapshot) -> set[Attempt]:
    """Attempts whose worker has left its last word: nothing of them writes any more."""
    leases = [view.lease for view in snapshot.jobs if view.lease is not None] + list(snapshot.stray_leases)
    return {
        (lease.identity.name, lease.report.token if lease.report is not None else lease.token)
        for lease in leases
        if lease.report is not None or lease.report_error
    }


# Shortages of jobs that could run, in words: slots, workers, bytes per second, of the policy or the operator.

Worded = tuple[WaitReason, str]


@dataclass(frozen=True, slots=True)
class Shortage:
    """The state of the limits when a schedule was made. `rates` are given when they allow fewer jobs than the limit of
    jobs.
    """

    policy: CompactionPolicy
    allowance: Allowance
    memory: Memory
    workers: Fleet
    demand: LimitDemand
    rates: Rates | None

    def worded(self, reason: WaitReason, schedule: Schedule) -> Worded:
        """The reason, where more is known here than in the scheduler, and its words."""
        limits = self.policy.spec.limits
        if reason is WaitReason.NO_FREE_SLOT:
            return self._slots()
        if reason is WaitReason.CONCURRENCY_LIMIT and self.rates is not None:
            return self._bytes(self.rates)
        if reason is WaitReason.CONCURRENCY_LIMIT:
            return reason, f"spec.limits.maxConcurrentJobs is {limits.max_concurrent_jobs}"
        if reason is WaitReason.BACKOFF and schedule.next_backoff_end is not None:
            return reason, f"the next attempt after a failure is made at {when(schedule.next_backoff_end)}"
        target = kind_of(self.policy.spec.store).nouns.target
        return reason, f"one job of a {target} runs at a time, another one goes first"

    def _slots(self) -> Worded:
        limits = self.policy.spec.workers
        if self.workers.trouble is not None and not self.workers.live:
            worker = self.workers.trouble
            return (
                WaitReason.WORKER_PENDING,
                f"{worker.name} was created and waits ({worker.trouble}): {worker.message}",
            )
        if self.memory.workers.failures and not self.workers.live:
            message = f"no worker could be started: {self.memory.workers.error}"
            return WaitReason.WORKERS_FAILING, message
        if self.workers.trouble is not None:
            return self._held_back(self.workers.trouble)
        if self.workers.launching or self.memory.workers.launches:
            return WaitReason.WORKER_STARTING, "a worker was started and has not announced itself yet"
        if self._lacks_worker():
            return self._operator_workers()
        return WaitReason.NO_FREE_SLOT, f"{self.workers.live} of {limits.max} workers run, {limits.slots} slots each"

    def _held_back(self, process: WorkerProcess) -> Worded:
        """A worker that has its place in workers.max and does nothing, beside others that work."""
        run = f"{self.workers.live} of {self.policy.spec.workers.max} workers run"
        return (
            WaitReason.WORKER_PENDING,
            f"{run}; {process.name} counts as one, and waits ({process.trouble}): {process.message}",
        )

    def _bytes(self, rates: Rates) -> Worded:
        """Say which of the two limits it is: the policy's own, or what the operator's leaves it."""
        own, grant = self.policy.spec.limits.bytes_per_second, self.allowance.bytes
        if grant is None or (own is not None and not Rates(int(own), rates.granted, rates.share).room):
            given, limit = format_bytes(rates.granted), format_bytes(rates.limit)
            message = f"the running jobs have {given} of the {limit} bytes per second of spec.limits.bytesPerSecond"
            return WaitReason.RATE_LIMITED, message
        if not self.demand.holds and self._lacks_worker():
            return self._operator_workers()
        total, share = format_bytes(self.allowance.limits.bytes_per_second or 0), format_bytes(grant.share)
        message = f"the jobs of all policies have {total} per second together (--max-bytes-per-second), {share} of them"
        return WaitReason.OPERATOR_RATE_LIMIT, f"{message} are this policy's; jobs that run already have the rest"

    def _lacks_worker(self) -> bool:
        """True when the policy could use more workers than the operator's limit leaves it now."""
        grant = self.allowance.workers
        return grant is not None and self.demand.holds >= grant.may_hold and self.demand.workers > grant.may_hold

    def _operator_workers(self) -> Worded:
        share = self.allowance.workers.share if self.allowance.workers is not None else 0
        turn = f"{share} of them are this policy's" if share else "this policy's turn comes after that of others"
        message = f"all policies have {self.allowance.limits.max_workers} workers together (--max-workers), {turn}"
        return WaitReason.OPERATOR_WORKER_LIMIT, message
