"""Which waiting jobs go to which workers, whether another worker is started, and what the others wait for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import JobState, WaitReason
from compaction.api.policy import CompactionPolicy
from compaction.planning.candidates import tenant_of
from compaction.planning.scheduler import QueuedJob, Schedule, TenantLoad, WorkerLimits, assign, workers_to_launch
from compaction.reconcile import fleet
from compaction.reconcile.actions import AssignJob, LaunchWorker
from compaction.reconcile.job import not_before
from compaction.reconcile.observations import Memory, Snapshot, frozen
from compaction.reconcile.steps import JobStep

LAUNCH_LOOK: Final = 2.0
LAUNCH_DESPITE_CLAIM: Final = 300.0
"""A claim is only tried again with a worker at hand, so a refused one gets a worker of its own in the end: so many
seconds after it could have been tried again. Not earlier: Spark would be started over and over for nothing.
"""


@dataclass(frozen=True, slots=True)
class Assigned:
    """What scheduling came to. `waits` counts waiting jobs by reason; `seconds` until it may change by itself.

    `likely` are the actions whose claim was not refused before: the others still wait, until theirs succeeds.
    """

    actions: tuple[AssignJob, ...]
    likely: tuple[AssignJob, ...]
    launches: tuple[LaunchWorker, ...]
    waits: Counter[WaitReason]
    message: str
    memory: Memory
    seconds: float | None


class Assigner:
    """One run of scheduling for a policy."""

    def __init__(self, snapshot: Snapshot, policy: CompactionPolicy, memory: Memory, *, root: str) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.now = snapshot.now
        self.memory = memory
        self.root = root

    def assign(self, steps: tuple[JobStep, ...], workers: fleet.Fleet) -> Assigned:
        """Assignments and launches for the jobs as they stand after their steps."""
        spec, now = self.policy.spec, self.now
        queued = [step for step in steps if step.state in (JobState.UNASSIGNED, JobState.ABANDONED)]
        self._forget_claims({step.name for step in queued})
        self._note_waits(queued)
        if spec.suspend:
            waits = Counter({WaitReason.SUSPENDED: len(queued)}) if queued else Counter()
            return Assigned((), (), (), waits, "the policy is suspended", self.memory, None)
        blocked = {name: p for name, p in self.memory.claims.items() if p.retry_at > now.monotonic}
        running = [step for step in steps if step.state is JobState.IN_PROGRESS]
        schedule = assign(
            [self._queued(step) for step in queued if step.name not in blocked],
            workers.slots,
            capacity=spec.limits.max_concurrent_jobs - len(running),
            now=now.wall,
            busy_lanes={step.log for step in running},
            load=self._load(steps),
        )
        by_name = {step.name: step for step in queued}
        actions = tuple(self._assignment(by_name[one.job], one.worker) for one in schedule.assignments)
        waits = Counter(schedule.waiting)
        for problem in blocked.values():
            waits[WaitReason(problem.reason)] += 1
        doubtful = [self.memory.claims[one.job.name] for one in actions if one.job.name in self.memory.claims]
        waits.update(WaitReason(problem.reason) for problem in doubtful)
        likely = tuple(one for one in actions if one.job.name not in self.memory.claims)
        sound = self._sound(queued, running, by_name, schedule) if self.memory.claims else None
        launches = self._launches(schedule, workers, in_progress=len(running) + len(actions), sound=sound)
        message = self._wait_message(
            waits, workers, bool(launches), [p.message for p in (*blocked.values(), *doubtful)]
        )
        return Assigned(
            actions,
            likely,
            launches,
            waits,
            message,
            self.memory,
            self._assign_seconds(schedule, launches, bool(blocked)),
        )

    def _note_waits(self, queued: list[JobStep]) -> None:
        """Since when each job waits, whatever for. After a restart the status is all that is known of it."""
        said = self.policy.status.waiting
        known = self.memory.waits
        first = said.since if known is None and said is not None else self.now.time
        self.memory = replace(self.memory, waits=frozen({s.name: (known or {}).get(s.name, first) for s in queued}))

    def _sound(
        self, queued: list[JobStep], running: list[JobStep], by_name: dict[str, JobStep], schedule: Schedule
    ) -> int:
        """How many jobs that got no slot are worth a new worker: not those that could not claim their log lately."""
        given = {one.job for one in schedule.assignments}
        since = self.now.monotonic - LAUNCH_DESPITE_CLAIM
        doubtful = {name for name, problem in self.memory.claims.items() if problem.retry_at > since}
        rest = [self._queued(step) for step in queued if step.name not in given | doubtful]
        busy = {step.log for step in running} | {by_name[name].log for name in given}
        return assign(rest, (), capacity=0, now=self.now.wall, busy_lanes=busy).ready

    def _forget_claims(self, queued: set[str]) -> None:
        kept = {name: problem for name, problem in self.memory.claims.items() if name in queued}
        if len(kept) != len(self.memory.claims):
            self.memory = replace(self.memory, claims=frozen(kept))

    def _assign_seconds(self, schedule: Schedule, launches: tuple[LaunchWorker, ...], blocked: bool) -> float | None:
        now = self.now
        moments = [p.retry_at - now.monotonic for p in self.memory.claims.values() if p.retry_at > now.monotonic]
        if schedule.next_backoff_end is not None:
            moments.append(schedule.next_backoff_end - now.wall)
        if launches:
            moments.append(LAUNCH_LOOK)
        if self.memory.launch_not_before > now.monotonic:
            moments.append(self.memory.launch_not_before - now.monotonic)
        return soonest(*moments)

    def _queued(self, step: JobStep) -> QueuedJob:
        meta, status = step.view.job.metadata, step.status
        last = status.attempts[-1] if status.attempts else None
        return QueuedJob(
            name=step.name,
            lane=step.log,
            tenant=tenant_of(self.root, step.log),
            level=step.view.job.spec.level,
            state=step.state,
            failures=status.failures,
            created_at=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
            ended_at=last.ended_at.timestamp() if last is not None and last.ended_at is not None else 0.0,
            not_before=not_before(status, self.now),
            last_worker=last.worker if last is not None else "",
        )

    def _load(self, steps: Iterable[JobStep]) -> dict[str, TenantLoad]:
        load: dict[str, TenantLoad] = {}
        for step in steps:
            tenant = tenant_of(self.root, step.log)
            running, served = load.get(tenant, TenantLoad())
            at = step.status.assigned_at.timestamp() if step.status.assigned_at is not None else 0.0
            load[tenant] = TenantLoad(running + (step.state is JobState.IN_PROGRESS), max(served, at))
        return load

    def _assignment(self, step: JobStep, worker: str) -> AssignJob:
        lease = step.view.lease
        return AssignJob(
            job=step.view.identity,
            worker=worker,
            log=step.log,
            status=step.status,
            generation=step.view.job.metadata.generation,
            lease=lease.identity if lease is not None else None,
            lease_token=lease.token if lease is not None else 0,
            duration=self.policy.spec.lease.duration_seconds,
            absent_leases=step.absent,
        )

    def _launches(
        self, schedule: Schedule, workers: fleet.Fleet, *, in_progress: int, sound: int | None
    ) -> tuple[LaunchWorker, ...]:
        spec = self.policy.spec
        if self.now.monotonic < self.memory.launch_not_before:
            return ()
        ready = schedule.ready - len(schedule.assignments) if sound is None else sound
        count = workers_to_launch(
            WorkerLimits(spec.workers.max, spec.workers.slots, spec.limits.max_concurrent_jobs),
            ready=ready,
            in_progress=in_progress,
            free=workers.free - len(schedule.assignments),
            live=workers.live,
            launching=workers.launching,
        )
        taken = {w.name for w in self.snapshot.workers} | {p.name for p in self.snapshot.processes}
        names = fleet.worker_names(
            self.policy.metadata.name, self.policy.metadata.uid, seed=self.now.wall, count=count, taken=taken
        )
        if names:
            launches = {**self.memory.launches, **dict.fromkeys(names, self.now.monotonic)}
            self.memory = replace(self.memory, launches=frozen(launches))
        return tuple(LaunchWorker(name) for name in names)

    def _wait_message(
        self, waits: Counter[WaitReason], workers: fleet.Fleet, launching: bool, problems: list[str]
    ) -> str:
        """Says what the free slot is missing for; turns NoFreeSlot into a worker that starts, or fails to."""
        count = waits.get(WaitReason.NO_FREE_SLOT, 0)
        limits = self.policy.spec.workers
        if count and self.memory.launch_failures and not workers.live:
            waits[WaitReason.WORKERS_FAILING] = waits.pop(WaitReason.NO_FREE_SLOT)
            return f"workers end before they announce themselves: {self.memory.launch_error}"
        if count and (launching or workers.launching):
            waits[WaitReason.WORKER_STARTING] = waits.pop(WaitReason.NO_FREE_SLOT)
            return "a worker was started and has not announced itself yet"
        if problems:
            return problems[0]
        return f"{sum(waits.values())} jobs wait; {workers.live} of {limits.max} workers run, {limits.slots} slots each"


def soonest(*seconds: float | None) -> float | None:
    """The smallest that is known."""
    return min((one for one in seconds if one is not None), default=None)
