"""Assignments of waiting jobs to workers, new workers, and rates that rise when another job ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import JobState, WaitReason
from compaction.api.policy.policy import CompactionPolicy
from compaction.core.planning.scheduler import (
    QueuedJob,
    Rates,
    Schedule,
    TenantLoad,
    WorkerLimits,
    assign,
    share_of,
    topped_up,
    workers_to_launch,
    worth_raising,
)
from compaction.core.reconcile.actions import AssignJob, LaunchWorker, RaiseShare
from compaction.core.reconcile.jobs.job import not_before
from compaction.core.reconcile.jobs.steps import JobStep
from compaction.core.reconcile.observations import LimitDemand, Memory, PolicySnapshot, ShareMemory, frozen
from compaction.core.reconcile.requests import needs_no_window
from compaction.core.reconcile.status.announcing import NO_WAITS, Wait, Waits, for_window
from compaction.core.reconcile.timing import Timing
from compaction.core.reconcile.workers import fleet, shares
from compaction.core.reconcile.workers.shares import Shortage
from compaction.registry import kind_of_job

# Assignment of waiting jobs to workers, the decision whether another worker is started, and what the others wait for.

LAUNCH_LOOK: Final = 2.0
PLAN_TO_COME: Final = 60.0
"""Seconds after the end of a job for which its share is kept for jobs that a scan may lead to."""
LAUNCH_DESPITE_CLAIM: Final = 300.0
"""A claim is only tried again with a worker at hand, so a refused one gets a worker of its own in the end: so many
seconds after it could have been tried again. Not earlier: Spark would be started over and over for nothing.
"""


@dataclass(frozen=True, slots=True)
class AssignmentResult:
    """The result of scheduling. `waits` says what jobs wait for; `seconds` until it may change by itself.

    `likely` are the actions whose claim was not refused before: the others still wait, until theirs succeeds. `granted`
    are the bytes per second of the jobs that run then, `rates` what is left beside all actions; None without a limit.
    `idle`: no other job could start with what is left. `demand` is for the operator's limits.
    """

    actions: tuple[AssignJob, ...]
    likely: tuple[AssignJob, ...]
    launches: tuple[LaunchWorker, ...]
    waits: Waits
    memory: Memory
    seconds: float | None
    granted: int | None
    demand: LimitDemand
    rates: Rates | None
    idle: bool


class Assigner:
    """One run of scheduling for a policy."""

    def __init__(self, snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory, *, clock: Timing) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = snapshot.now
        self.memory = memory
        self.clock = clock
        self._tenants: dict[str, str] = {}

    def assign(self, steps: tuple[JobStep, ...], workers: fleet.Fleet) -> AssignmentResult:
        """Assignments and launches for the jobs as they stand after their steps."""
        spec = self.policy.spec
        lease_seconds = float(spec.lease.duration_seconds)
        held = shares.noted(self.memory.shares, steps, self.snapshot, lease_seconds=lease_seconds)
        self.memory = replace(self.memory, shares=held)
        queued = [step for step in steps if step.state in (JobState.UNASSIGNED, JobState.ABANDONED)]
        self._forget_claims({step.name for step in queued})
        self._note_waits(queued)
        running = [step for step in steps if step.state is JobState.IN_PROGRESS]
        if self.snapshot.held_by:
            return self._none(queued, running, WaitReason.STORE_OVERLAPS, self.snapshot.held_by)
        if self.snapshot.hold is not None:
            return self._none(queued, running, WaitReason.HELD, self.snapshot.hold.said)
        if spec.suspend:
            return self._none(queued, running, WaitReason.SUSPENDED, "the policy is suspended")
        if self.clock.window.is_open:
            return self._assigned(steps, workers, queued, running)
        # A user may have asked for some of them now, whatever the windows say.
        run = self.memory.requests.run_now if self.memory.requests is not None else None
        at_once = [step for step in queued if needs_no_window(step, run)]
        others = [step for step in queued if not needs_no_window(step, run)]
        if not at_once:
            return self._none(queued, running, WaitReason.OUTSIDE_WINDOW, for_window(self.clock))
        result = self._assigned(steps, workers, at_once, running)
        if not others:
            return result
        wait = Wait(len(others), for_window(self.clock), others[0].name)
        return replace(result, waits={**result.waits, WaitReason.OUTSIDE_WINDOW: wait})

    def _assigned(
        self, steps: tuple[JobStep, ...], workers: fleet.Fleet, queued: list[JobStep], running: list[JobStep]
    ) -> AssignmentResult:
        """Assignments of the `queued` jobs, none of which waits for a time or for a user."""
        spec, now = self.policy.spec, self.now
        blocked = {name: p for name, p in self.memory.claims.items() if p.retry_at > now.monotonic}
        waiting = [self._queued(step) for step in queued if step.name not in blocked]
        busy = {step.target for step in running}
        rates = self._rates(running, waiting, busy)
        may_run = self._may_run(len(running), rates)
        schedule = assign(
            waiting,
            workers.slots,
            capacity=may_run - len(running),
            now=now.wall,
            busy_targets=busy,
            load=self._load(steps),
        )
        by_name = {step.name: step for step in queued}
        share = rates.each if rates is not None else None
        actions = tuple(
            self._assignment(by_name[assignment.job], assignment.worker, share) for assignment in schedule.assignments
        )
        likely = tuple(action for action in actions if action.job.name not in self.memory.claims)
        sound = self._sound(queued, running, by_name, schedule) if self.memory.claims else None
        # Jobs whose claim was refused lately ask for no worker: it would idle beside a log that is locked by another
        # process.
        launches = self._launches(
            schedule, workers, may_run=may_run, in_progress=len(running) + len(actions), sound=sound
        )
        doubtful = {action.job.name for action in actions} & self.memory.claims.keys()
        given = rates.after(len(actions)) if rates is not None else None
        bounded = given if may_run < spec.limits.max_concurrent_jobs else None
        ready = schedule.ready if sound is None else sound + len(actions)
        demand = self._demand(len(running), ready, rates, started=len(actions))
        waits = self._waits(schedule, workers, demand, bounded, refused=blocked.keys() | doubtful)
        return AssignmentResult(
            actions,
            likely,
            launches,
            waits,
            self.memory,
            self._assign_seconds(schedule, launches),
            rates.after(len(likely)).granted if rates is not None else None,
            demand,
            given,
            self._is_idle(schedule, running=len(running) + len(actions)),
        )

    def _none(
        self, queued: list[JobStep], running: list[JobStep], reason: WaitReason, message: str
    ) -> AssignmentResult:
        """Nothing is assigned and no worker started: everything waits for the same."""
        waits: Waits = {reason: Wait(len(queued), message, queued[0].name)} if queued else NO_WAITS
        granted = sum(shares.granted_to(step, self.memory.shares) or 0 for step in running)
        others = shares.lingering(self.memory.shares)
        rates = self._rates(running, [], set())
        demand = LimitDemand(self._workers_for(len(running)), self._holds(), granted, granted + others)
        limited = self.policy.spec.limits.bytes_per_second is not None
        said = granted if limited else None
        return AssignmentResult((), (), (), waits, self.memory, None, said, demand, rates, idle=True)

    def _is_idle(self, schedule: Schedule, *, running: int) -> bool:
        """Return whether no other job could start soon: none that is ready or in its backoff has a slot to come, and
        what follows from the output of the last job is planned, or was not for a minute.
        """
        spec, reading = self.policy.spec, self.snapshot.reading
        slots = self.snapshot.allowance.workers_within(spec.workers.max) * spec.workers.slots
        places = min(spec.limits.max_concurrent_jobs, slots) - running
        waiting = schedule.ready - len(schedule.assignments) + schedule.waiting.get(WaitReason.BACKOFF, 0)
        if min(places, waiting) > 0:
            return False
        scanned = reading.started if reading is not None else -math.inf
        known = max(scanned, self.now.monotonic - PLAN_TO_COME)
        return all(at < known for at in self.memory.finished.values())

    # -- the operator's limits ----------------------------------------------------------------------------------------

    def _holds(self) -> int:
        return fleet.holding(self.snapshot, self.memory.workers.launches)

    def _workers_for(self, jobs: int) -> int:
        workers = self.policy.spec.workers
        return min(workers.max, -(-jobs // workers.slots))

    def _demand(self, running: int, ready: int, rates: Rates | None, *, started: int) -> LimitDemand:
        """Return what the policy could use if it were alone. While launches are paused it wants no more workers than it
        has: others would wait for nothing.
        """
        limits, holds = self.policy.spec.limits, self._holds()
        own = None if limits.bytes_per_second is None else int(limits.bytes_per_second)
        may_start = limits.max_concurrent_jobs - running
        if rates is not None and own is not None:
            may_start = min(may_start, Rates(own, rates.granted, rates.share).room)
        jobs = running + max(0, min(ready, may_start))
        workers = self._workers_for(jobs)
        if self.now.monotonic < self.memory.workers.not_before:
            workers = min(workers, holds)
        granted = rates.after(started).beside(shares.lingering(self.memory.shares)).granted if rates is not None else 0
        return LimitDemand(workers, holds, own if jobs else 0, granted)

    # -- bytes per second ---------------------------------------------------------------------------------------------

    def _rates(self, running: list[JobStep], waiting: list[QueuedJob], busy: set[str]) -> Rates | None:
        """The shares now; None without a limit. A job from before the limit counts as one that has a share."""
        spec, allowance = self.policy.spec, self.snapshot.allowance
        own, grant = spec.limits.bytes_per_second, allowance.bytes
        known = [int(own)] if own is not None else []
        known += [grant.share] if grant is not None else []
        if not known:
            return None
        ready = assign(waiting, (), capacity=0, now=self.now.wall, busy_targets=busy).ready
        slots = allowance.workers_within(spec.workers.max) * spec.workers.slots
        limit = min(known)
        jobs = min(spec.limits.max_concurrent_jobs, slots, len(running) + ready)
        share = share_of(limit, jobs=jobs)
        granted = sum(
            share if (given := shares.granted_to(step, self.memory.shares)) is None else given for step in running
        )
        ceiling = grant.may_hold if grant is not None else None
        return Rates(limit, granted, share, coming=max(1, jobs - len(running)), ceiling=ceiling)

    def _may_run(self, running: int, rates: Rates | None) -> int:
        """Return the number of jobs that may run at once now."""
        limit = self.policy.spec.limits.max_concurrent_jobs
        return limit if rates is None else min(limit, running + rates.room)

    def _note_waits(self, queued: list[JobStep]) -> None:
        """Since when each job waits, whatever for. After a restart the status is all that is known of it."""
        said = self.policy.status.waiting
        known = self.memory.waits
        first = said.since if known is None and said is not None else self.now.time
        self.memory = replace(self.memory, waits=frozen({s.name: (known or {}).get(s.name, first) for s in queued}))

    def _sound(
        self, queued: list[JobStep], running: list[JobStep], by_name: dict[str, JobStep], schedule: Schedule
    ) -> int:
        """Return the number of jobs without a slot that are worth a new worker: not those that could not claim their
        target lately.
        """
        given = {assignment.job for assignment in schedule.assignments}
        since = self.now.monotonic - LAUNCH_DESPITE_CLAIM
        doubtful = {name for name, problem in self.memory.claims.items() if problem.retry_at > since}
        rest = [self._queued(step) for step in queued if step.name not in given | doubtful]
        busy = {step.target for step in running} | {by_name[name].target for name in given}
        return assign(rest, (), capacity=0, now=self.now.wall, busy_targets=busy).ready

    def _forget_claims(self, queued: set[str]) -> None:
        kept = {name: problem for name, problem in self.memory.claims.items() if name in queued}
        if len(kept) != len(self.memory.claims):
            self.memory = replace(self.memory, claims=frozen(kept))

    def _assign_seconds(self, schedule: Schedule, launches: tuple[LaunchWorker, ...]) -> float | None:
        now = self.now
        moments = [p.retry_at - now.monotonic for p in self.memory.claims.values() if p.retry_at > now.monotonic]
        if schedule.next_backoff_end is not None:
            moments.append(schedule.next_backoff_end - now.wall)
        if launches:
            moments.append(LAUNCH_LOOK)
        if self.memory.workers.not_before > now.monotonic:
            moments.append(self.memory.workers.not_before - now.monotonic)
        return soonest(*moments)

    def _queued(self, step: JobStep) -> QueuedJob:
        meta, status = step.view.job.metadata, step.status
        last = status.attempts[-1] if status.attempts else None
        return QueuedJob(
            name=step.name,
            target=step.target,
            tenant=self._tenant(step),
            level=step.view.job.spec.level,
            state=step.state,
            failures=status.failures,
            created_at=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
            ended_at=last.ended_at.timestamp() if last is not None and last.ended_at is not None else 0.0,
            not_before=not_before(status, self.now),
            last_worker=last.worker if last is not None else "",
        )

    def _tenant(self, step: JobStep) -> str:
        known = self._tenants.get(step.name)
        if known is None:
            spec = step.view.job.spec
            known = self._tenants[step.name] = kind_of_job(spec.kind).tenant(spec, self.policy.spec.store)
        return known

    def _load(self, steps: Iterable[JobStep]) -> dict[str, TenantLoad]:
        load: dict[str, TenantLoad] = {}
        for step in steps:
            tenant = self._tenant(step)
            running, served = load.get(tenant, TenantLoad())
            at = step.status.assigned_at.timestamp() if step.status.assigned_at is not None else 0.0
            load[tenant] = TenantLoad(running + (step.state is JobState.IN_PROGRESS), max(served, at))
        return load

    def _assignment(self, step: JobStep, worker: str, share: int | None) -> AssignJob:
        lease = step.view.lease
        return AssignJob(
            job=step.view.identity,
            worker=worker,
            spec=step.view.job.spec,
            status=step.status,
            generation=step.view.job.metadata.generation,
            lease=lease.identity if lease is not None else None,
            lease_token=lease.token if lease is not None else 0,
            duration=self.policy.spec.lease.duration_seconds,
            premise=step.premise,
            bytes_per_second=share,
        )

    def _launches(
        self, schedule: Schedule, workers: fleet.Fleet, *, may_run: int, in_progress: int, sound: int | None
    ) -> tuple[LaunchWorker, ...]:
        spec = self.policy.spec
        if self.now.monotonic < self.memory.workers.not_before:
            return ()
        ready = schedule.ready - len(schedule.assignments) if sound is None else sound
        most = self.snapshot.allowance.workers_within(spec.workers.max)
        count = workers_to_launch(
            WorkerLimits(most, spec.workers.slots, may_run),
            ready=ready,
            in_progress=in_progress,
            free=workers.free - len(schedule.assignments),
            live=workers.live,
            launching=workers.launching,
        )
        if self.snapshot.allowance.workers is not None:  # there also those count that are on their way out
            count = max(0, min(count, most - self._holds()))
        if not count:
            return ()
        taken = {w.name for w in self.snapshot.workers} | {p.name for p in self.snapshot.processes}
        names = fleet.worker_names(
            self.policy.metadata.name,
            self.policy.metadata.uid,
            settings=fleet.settings_of(spec),
            seed=self.now.wall,
            count=count,
            taken=taken,
        )
        launches = {**self.memory.workers.launches, **dict.fromkeys(names, self.now.monotonic)}
        self.memory = replace(self.memory, workers=replace(self.memory.workers, launches=frozen(launches)))
        driver = self.memory.workers.driver_memory or int(spec.workers.driver.memory)
        executor = self.memory.workers.executor_memory or int(spec.workers.executor.memory)
        return tuple(LaunchWorker(name, driver, executor) for name in names)

    # -- what the others wait for -------------------------------------------------------------------------------------

    def _waits(
        self,
        schedule: Schedule,
        workers: fleet.Fleet,
        demand: LimitDemand,
        rates: Rates | None,
        *,
        refused: AbstractSet[str],
    ) -> Waits:
        """Says what each free slot is missing for; `refused` are the jobs whose claim was, or may be again. `rates` are
        given when they allow fewer jobs than the limit of jobs does.
        """
        shortage = Shortage(self.policy, self.snapshot.allowance, self.memory, workers, demand, rates)
        waits: dict[str, Wait] = {}
        for reason, count in schedule.waiting.items():
            actual, message = shortage.worded(reason, schedule)
            waits[actual] = Wait(count, message)
        for name in sorted(refused):
            problem = self.memory.claims[name]
            known = waits.get(problem.reason, Wait(0, problem.message, name))
            waits[problem.reason] = replace(known, count=known.count + 1)
        return waits


def soonest(*seconds: float | None) -> float | None:
    """The smallest that is known."""
    return min((second for second in seconds if second is not None), default=None)


# Bytes per second that end with a job go to the jobs that run on, once no other job could start with them.
#
# Invariant (tests/core/reconcile/test_rates.py): what Leases of attempts that may still write (`shares.py`) name
# together is never raised above the limit.


def raised_rates(
    assigned: AssignmentResult, steps: Iterable[JobStep], memory: Memory, *, jobs_to_come: bool, now: float
) -> tuple[tuple[RaiseShare, ...], AssignmentResult, Memory]:
    """The shares to write, beside what was assigned, and what that and the memory are then. `jobs_to_come`: jobs are
    created now.
    """
    raises: tuple[RaiseShare, ...] = ()
    before = after = memory.shares
    if assigned.rates is not None:
        idle = assigned.idle and not jobs_to_come and not memory.planning.unmade.jobs
        raises, after = _raises(before, steps, assigned.rates, now=now, may_raise=idle)
    more = sum(after.held[key].bytes_per_second - share.bytes_per_second for key, share in before.held.items())
    assigned = replace(
        assigned,
        granted=assigned.granted + more if assigned.granted is not None else None,
        demand=replace(assigned.demand, granted=assigned.demand.granted + more),
        seconds=soonest(assigned.seconds, shares.next_free(after, now=now)),
    )
    return raises, assigned, replace(memory, shares=after)


def _raises(
    held: ShareMemory, steps: Iterable[JobStep], rates: Rates, *, now: float, may_raise: bool
) -> tuple[tuple[RaiseShare, ...], ShareMemory]:
    """Return the raises of shares to write, and the memory with them: what was decided before is written in any case,
    until the Lease shows it.
    """
    running = {key: lease for key, lease in shares.running(steps).items() if key in held.held}
    before = [held.held[key].bytes_per_second for key in running]
    known = held.known_at is not None and held.known_at <= now
    beside = rates.beside(shares.lingering(held))
    worth = may_raise and known and worth_raising(beside.left, beside.limit)
    after = dict(zip(running, topped_up(before, beside.left) if worth else before, strict=True))
    raises = (
        RaiseShare(item.identity, after[key]) for key, item in running.items() if item.bytes_per_second != after[key]
    )
    given = {
        key: replace(share, bytes_per_second=after.get(key, share.bytes_per_second)) for key, share in held.held.items()
    }
    return tuple(raises), replace(held, held=frozen(given))
