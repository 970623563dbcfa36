"""What jobs that could run are short of, in words: slots, workers, bytes per second, of the policy or the operator."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.api.enums import WaitReason
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import format_bytes
from compaction.core.planning.rates import Rates
from compaction.core.planning.scheduler import Schedule
from compaction.core.reconcile.allowance import Allowance, LimitDemand
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.observations import WorkerProcess
from compaction.core.reconcile.status.waits import when
from compaction.core.reconcile.workers.fleet import Fleet
from compaction.registry import kind_of

Worded = tuple[WaitReason, str]


@dataclass(frozen=True, slots=True)
class Shortage:
    """What is known when a schedule was made. `rates` are given when they allow fewer jobs than the limit of jobs."""

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
            one = self.workers.trouble
            return WaitReason.WORKER_PENDING, f"{one.name} was created and waits ({one.trouble}): {one.message}"
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

    def _held_back(self, one: WorkerProcess) -> Worded:
        """A worker that has its place in workers.max and does nothing, beside others that work."""
        run = f"{self.workers.live} of {self.policy.spec.workers.max} workers run"
        return WaitReason.WORKER_PENDING, f"{run}; {one.name} counts as one, and waits ({one.trouble}): {one.message}"

    def _bytes(self, rates: Rates) -> Worded:
        """Which of the two limits it is: the policy's own, or what the operator's leaves it."""
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
