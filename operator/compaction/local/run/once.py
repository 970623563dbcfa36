"""`compactor run`: one policy on one machine, until nothing is left to do, or, with --watch, until a user stops it."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from compaction.api.enums import JobReason, JobState, PolicyReason
from compaction.api.job.job import CompactionJob, CompactionJobSpec
from compaction.api.job.job_status import JobReport
from compaction.api.policy.policy import CompactionPolicy, PlanStatus
from compaction.api.policy.policy_spec import TriggerSpec
from compaction.api.policy.policy_status import PolicyPreview
from compaction.api.text.quantities import Duration
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.planning.debt import HeldJob, ScanResult, TargetProblem, UnofferedDebt
from compaction.core.planning.planner import LeftOut, Plan
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import StoreTask
from compaction.core.reconcile.jobs.job import is_finished
from compaction.core.reconcile.observations import Memory, Moment
from compaction.core.reconcile.planning.replan import plan_of
from compaction.core.reconcile.preview import Comparison
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError
from compaction.kube.errors import PlanNotApprovedError
from compaction.local.errors import RootUnreadableError
from compaction.local.run.coordinator import LONGEST_WAIT, LocalCoordinator
from compaction.local.run.job import News, RunResult, ended
from compaction.local.run.objects import LocalObjects
from compaction.registry import kind_of
from compaction.storage.adapter import Sensed, SenseRequest, StoreAdapter, Swept
from compaction.worker.ports import Assignment, HeldLease, JobRunner

# The end of a run that is no watch: nothing is left to do. Pure: from the objects in memory and what the reconciler
# remembers.


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run. `repeated` are jobs that have ended in this run and were made again: whatever they are,
    they are no reason to go on. `changed_at`: when something became of a job last (monotonic).
    """

    jobs: Mapping[str, CompactionJob]
    memory: Memory
    reading: ScanResult | None = None
    repeated: Set[str] = frozenset()
    changed_at: float = -math.inf

    @property
    def open(self) -> frozenset[str]:
        """Jobs of which something becomes without waiting for others: those whose claim the store refused wait."""
        waiting = self.memory.claims.keys() | self.repeated
        return frozenset(name for name, job in self.jobs.items() if name not in waiting and not is_finished(job.status))

    @property
    def marks(self) -> frozenset[tuple[str, str]]:
        """The marks that a scan has to be newer than, when they change: the states of jobs, refused claims, and jobs
        that are gone. A job that goes after it has succeeded changes nothing.
        """
        jobs = [(name, job.status.state) for name, job in self.jobs.items() if name not in self.repeated]
        unfinished = [(name, str(state)) for name, state in jobs if state is not JobState.SUCCEEDED]
        return frozenset([*unfinished, *((name, problem.reason) for name, problem in self.memory.claims.items())])

    @property
    def settled(self) -> bool:
        """Return whether only others, time or a person can give the run something to do: no job is open, the last scan
        is newer than the end of the last job, and all that it offers was planned from.
        """
        reading, planning = self.reading, self.memory.planning
        if reading is None or self.open or reading.started < self.changed_at:
            return False
        return reading.problem is not None or (planning.reading == reading.number and not planning.unmade.jobs)

    def paced(self, now: float) -> Memory:
        """The memory with scans at the pace of a run that ends: none beside jobs that are open, as it would take the
        thread that gives them to the worker; and then at once, not after the interval.
        """
        if self.open:
            return store_work.sense_started(self.memory)
        memory = store_work.ended(self.memory, StoreTask.SENSE)
        if self.reading is None or self.reading.started >= self.changed_at:
            return memory
        return replace(memory, store=replace(memory.store, look_wanted=now))


# A store in which other processes claim jobs at the same moment: what they have is left to them.

Others = Callable[[], Mapping[str, HeldJob]]


class SharedStore:
    """Implements `StoreAdapter` over one. Scans offer nothing that jobs of others have; a job that another process has
    claimed after this one is neither claimed again nor retired.

    Args:
        others: the jobs of others that are open now, by name, with a target of their own. Raises CompactionError.
    """

    def __init__(self, store: StoreAdapter, others: Others) -> None:
        self._store = store
        self._others = others
        self._claimed: dict[str, int] = {}

    def sense(self, request: SenseRequest) -> Sensed:
        """See `StoreAdapter`."""
        try:
            others = self._others()
        except CompactionError as error:
            return Sensed(_unreadable(request, str(error)), None)
        held = {name: job for name, job in others.items() if name not in request.jobs}
        sensed = self._store.sense(replace(request, jobs={**held, **request.jobs}))
        while gone := sensed.reading.outdated & held.keys():
            # Jobs some of whose sources were replaced or expired by others: what is left of them is free to plan.
            held = {name: job for name, job in held.items() if name not in gone}
            sensed = self._store.sense(replace(request, jobs={**held, **request.jobs}))
        return replace(sensed, reading=_without(sensed.reading, held))

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`."""
        return self._store.sweep(active=active)

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        known = self._store.high_water(target, job)
        if known > self._claimed.get(job, known):
            why = f"job {job}: another process has claimed it with token {known}, and works on it"
            raise ClaimRefusedError(ClaimRefusal.BUSY, why, JobReason.STALE_TOKEN)
        return known

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`."""
        self._store.claim(spec, job=job, token=token)
        self._claimed[job] = token

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`. Only what this process has claimed; raises when another has since."""
        if job in self._claimed and self.high_water(target, job):
            self._store.retire(target, job)

    def close(self) -> None:
        """See `StoreAdapter`."""
        self._store.close()


def _without(reading: ScanResult, held: Mapping[str, HeldJob]) -> ScanResult:
    """The scan without the targets of those jobs: what they have is behind, and in no plan."""
    targets = {job.target for job in held.values()}
    theirs = [candidate for candidate in reading.candidates if candidate.target in targets]
    rows = [LeftOut(LeftOutReason.JOB_UNFINISHED, len(job.sources), name) for name, job in sorted(held.items())]
    debt = [UnofferedDebt(item.level, item.tenant, item.debt_sources, item.debt_bytes) for item in theirs]
    return replace(
        reading,
        candidates=tuple(candidate for candidate in reading.candidates if candidate.target not in targets),
        beyond=(*reading.beyond, *debt),
        left_out=(*reading.left_out, *rows),
    )


def _unreadable(request: SenseRequest, message: str) -> ScanResult:
    return ScanResult(
        number=request.number,
        generation=request.generation,
        started=request.asked,
        ended=time.monotonic(),
        wall=time.time(),
        problem=TargetProblem("", PolicyReason.SENSE_FAILED, message),
    )


# `compactor run`: one policy on one machine, until nothing is left to do.
#
# The same reconciler and executor as in a cluster and in `run --watch`; what is different is said beside them. The
# run compacts at once, so it gives the reconciler a copy of the policy without schedule, windows and cooldown
# (`at_once`). It ends when nothing can come any more but by others, by time or by a person (`settled`). Jobs of other
# processes are left to them (`shared`).

WORKER: Final = "local"
_SELDOM: Final = Duration("24h")


def at_once(policy: CompactionPolicy) -> CompactionPolicy:
    """The policy as a run that ends means it: everything that is due now, whatever schedule, windows and cooldown say.
    A job that has succeeded goes, and with it its claim; one that is parked stays, or it would be tried for ever.
    """
    changes = {
        "trigger": TriggerSpec(interval=_SELDOM),
        "successful_jobs_history_limit": 0,
        "failed_jobs_history_limit": sys.maxsize,
    }
    return policy.model_copy(update={"spec": policy.spec.model_copy(update=changes)})


def look(policy: CompactionPolicy, store: StoreAdapter, *, others: Others = dict) -> tuple[ScanResult, Plan]:
    """A scan of the store, and the plan that a run would begin with. Changes nothing.

    Raises:
        RootUnreadableError: the root cannot be scanned.
    """
    reading = scan_of(store, others=others)
    return reading, plan_of(reading, LocalObjects(at_once(policy)).policy, _now())


def scan_of(store: StoreAdapter, *, others: Others = dict) -> ScanResult:
    """A scan of the store that changes nothing. Raises RootUnreadableError."""
    request = SenseRequest(1, 1, time.monotonic(), recover=False)
    reading = SharedStore(store, others).sense(request).reading
    if reading.problem is not None:
        raise RootUnreadableError(reading.problem.message)
    return reading


def compared(before: CompactionPolicy, after: CompactionPolicy, scans: tuple[ScanResult, ScanResult]) -> PolicyPreview:
    """Compare what two versions of a policy would do now by these scans, as a preview in a cluster does. Jobs that an
    operator knows are not known here.
    """
    policies = LocalObjects(before).policy, LocalObjects(after).policy
    return Comparison((), Memory(), _now()).answer(policies, scans)


class LocalRun:
    """Runs one policy to its end.

    Args:
        open_runner: starts the engine; called once, and only when there is something to do.
        progress: called with (job, bytes to copy, percent), in the thread of `run`.
        others: the jobs of others that are open now, by name, with a target of their own; their sources are left alone.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        store: StoreAdapter,
        open_runner: Callable[[], AbstractContextManager[JobRunner]],
        progress: Callable[[str, int, int], None] = lambda job, cost, percent: None,
        others: Others = dict,
    ) -> None:
        self._store = store
        self._coordinator = LocalCoordinator(
            at_once(policy),
            store=SharedStore(store, others),
            open_runner=lambda _: _charging(open_runner()),
            progress=progress,
        )
        self._jobs: dict[str, CompactionJob] = {}
        self._state = RunState({}, self._coordinator.memory)

    def run(self) -> RunResult:
        """Compact everything that is due, then delete what was replaced longer than the grace ago.

        Raises:
            RootUnreadableError: the root cannot be scanned.
            PlanNotApprovedError: the policy's plans need approval, and its annotation names another one than this.
            EngineStartError, EngineLostError
        """
        with self._coordinator as coordinator:
            while True:
                pause = self._step()
                if pause > 0 and self._state.settled:
                    break
                coordinator.wait(pause)
        return self._result()

    def _step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        coordinator = self._coordinator
        coordinator.memory = self._state.paced(time.monotonic())
        pause = coordinator.step()
        if coordinator.workers.failure is not None:
            raise coordinator.workers.failure
        repeated = set(self._state.repeated)
        for name, job in coordinator.objects.jobs.items():
            known = self._jobs.get(name, job)
            if known.metadata.uid != job.metadata.uid and is_finished(known.status):
                repeated.add(name)
            if name not in repeated or is_finished(job.status):
                self._jobs[name] = job
        state = RunState(
            dict(coordinator.objects.jobs), coordinator.memory, coordinator.reading, repeated, self._state.changed_at
        )
        if state.marks != self._state.marks:
            state = replace(state, changed_at=time.monotonic())
        self._state = state
        # While nothing can be given to the worker before an attempt ends, nothing is decided.
        spec = coordinator.objects.policy.spec
        running = sum(job.status.state is JobState.IN_PROGRESS for job in state.jobs.values())
        return LONGEST_WAIT if running >= min(spec.workers.slots, spec.limits.max_concurrent_jobs) else pause

    def _result(self) -> RunResult:
        coordinator, reading, now = self._coordinator, self._state.reading, _now()
        assert reading is not None, "without a scan nothing is settled"
        if reading.problem is not None:
            raise RootUnreadableError(reading.problem.message)
        policy, before = coordinator.objects.policy, coordinator.swept
        swept = self._store.sweep(active=frozenset())
        result = RunResult(
            plan=policy.status.plan or PlanStatus(),
            jobs=tuple(ended(job, coordinator.memory.claims, now=now) for job in self._jobs.values()),
            reading=reading,
            quarantined=policy.status.quarantined,
            swept=replace(swept, deleted=before.deleted + swept.deleted, bytes=before.bytes + swept.bytes),
            races=kind_of(policy.spec.store).immutable_sources,
        )
        if result.unapproved and not result.jobs:
            raise PlanNotApprovedError(not_approved(result.unapproved))
        return result


def not_approved(plan: str) -> str:
    """Say what is to be done about a plan of this hash."""
    return (
        f"plan {plan} is not approved (spec.approval: Manual): review it with --dry-run, then run with --approve {plan}"
    )


@dataclass(frozen=True, slots=True)
class _Charging:
    """A runner whose failures all count against the job: no run goes on for ever."""

    runner: JobRunner

    def run(self, assignment: Assignment, lease: HeldLease) -> JobReport:
        """See `JobRunner`."""
        return self.runner.run(assignment, lease).model_copy(update={"charged": True})


@contextmanager
def _charging(opening: AbstractContextManager[JobRunner]) -> Iterator[JobRunner]:
    with opening as runner:
        yield _Charging(runner)


def _now() -> Moment:
    return Moment(wall=time.time(), monotonic=time.monotonic())


# `compactor run --watch`: a policy is kept compacted, as it says, until a user stops it.

REREAD_SECONDS: Final = 1.0
"""How often the policy is asked for again."""


class LocalWatch:
    """Keeps one store compacted until `stop` is called.

    Args:
        open_store: the store as a policy describes it; called again when the spec changes.
        open_runner: starts the engine; called when there is work, closed when it was idle for `workers.idleSeconds`.
        reread: the policy as it stands now, or None when it has not changed; called about once a second.
        tell: called with each message, in the thread of `run`.
        progress: called with (job, bytes to copy, percent), in the thread of `run`.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        open_store: Callable[[CompactionPolicy], StoreAdapter],
        open_runner: Callable[[CompactionPolicy], AbstractContextManager[JobRunner]],
        reread: Callable[[], CompactionPolicy | None] = lambda: None,
        tell: Callable[[News], None] = lambda news: None,
        progress: Callable[[str, int, int], None] = lambda job, cost, percent: None,
    ) -> None:
        self._open_store = open_store
        self._reread = reread
        self._asked_at = 0.0
        self._coordinator = LocalCoordinator(
            policy, store=open_store(policy), open_runner=open_runner, tell=tell, progress=progress
        )

    @property
    def objects(self) -> LocalObjects:
        """The policy and its jobs as they stand."""
        return self._coordinator.objects

    @property
    def deleted(self) -> int:
        """The number of replaced sources that were deleted."""
        return self._coordinator.swept.deleted

    def stop(self) -> None:
        """End soon: running jobs stop before their next commit. May be called from a signal handler."""
        self._coordinator.stop()

    def run(self) -> None:
        """Scan, plan, compact, delete; returns after `stop`."""
        with self._coordinator as coordinator:
            while not coordinator.stopped:
                coordinator.wait(self.step())
        coordinator.store.close()

    def step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        self._ask_for_policy()
        due = self._coordinator.step()
        idle = self._idle_seconds_left()
        return min(seconds for seconds in (due, idle, REREAD_SECONDS) if seconds is not None)

    def _ask_for_policy(self) -> None:
        now = time.monotonic()
        if now - self._asked_at < REREAD_SECONDS:
            return
        self._asked_at = now
        wanted = self._reread()
        if wanted is None:
            return
        generation = self.objects.policy.metadata.generation
        self.objects.replace_policy(wanted)
        if self.objects.policy.metadata.generation != generation:
            self._coordinator.store.close()
            self._coordinator.store = self._open_store(wanted)
        self._coordinator.say(News("PolicyChanged", "the changed policy is in force"))

    def _idle_seconds_left(self) -> float | None:
        """Seconds until the engine is closed because nothing needs it; closes it when they are over."""
        workers = self._coordinator.workers
        if workers.worker is None or workers.worker.ended:
            return None
        if any(job.status.state is JobState.IN_PROGRESS for job in self.objects.jobs.values()):
            workers.note_need()
            return None
        left = self.objects.policy.spec.workers.idle_seconds - workers.idle_seconds()
        if left > 0:
            return left
        workers.close()
        self._coordinator.say(News("WorkerStopped", "Spark was stopped: no job for a while"))
        return None
