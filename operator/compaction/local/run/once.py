"""`compactor run`: one policy on one machine, without any Kubernetes.

The same decisions and the same data plane as in a cluster: the store is sensed by the same adapter, planned by the same
planner, scheduled by the same scheduler; a job's life is the same state machine; rewrite, verification, fence and
receipts are the worker's own. What is missing is not needed here: leases (no other process can take a job while
this process lives; the fence still stops it should it be replaced) and objects to write to.

A run ends when nothing is due any more. A target that has been compacted once is not planned again in the same run,
unless one of its jobs failed: then it is planned again without what is damaged, so that one bad source never holds back
its siblings.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import structlog

from compaction.api.enums import Approval, JobReason, JobState
from compaction.api.job.report import JobReport, parse_report
from compaction.api.job.resource import AttemptStatus
from compaction.api.names import ANNOTATION_APPROVE
from compaction.api.policy.resource import CompactionPolicy, QuarantinedSource
from compaction.exceptions import (
    CompactionError,
    PlanNotApprovedError,
    RootUnreadableError,
)
from compaction.kinds.fate import Fate
from compaction.kinds.registry import fate_of, kind_of
from compaction.leases.tokens import next_token
from compaction.local.run.attempt import LocalLease, attempt
from compaction.local.run.job import LocalJob, RunResult
from compaction.planning.candidates import LeftOutReason
from compaction.planning.planner import JobInventory, LeftOut, Plan, PlannedJob
from compaction.planning.rates import share_of
from compaction.planning.reading import HeldJob, ScanResult
from compaction.planning.scheduler import QueuedJob, WorkerSlots, assign
from compaction.reconcile.jobs.job import assigned, not_before, reported
from compaction.reconcile.observations import Moment
from compaction.reconcile.planning import quarantine
from compaction.reconcile.planning.creating import planner_of, spec_of
from compaction.rewrite.ports import Assignment, JobRunner
from compaction.stores.adapter import SenseRequest, StoreAdapter

log = structlog.get_logger(__name__)

WORKER: Final = "local"
OWNER: Final = "compactor-run"
"""Stands where a policy's uid stands in a cluster: names of jobs are the same in every run."""
_GENERATION: Final = 1


@contextmanager
def no_runner() -> Iterator[JobRunner]:
    """For a run that only looks."""
    raise AssertionError("unreachable: who only looks runs nothing")
    yield


class LocalRun:
    """Runs one policy to its end.

    Args:
        open_runner: starts the engine; called once, and only when there is something to do.
        watch: called with every change of a job, from several threads.
        others: the jobs of others that are open now, by name, with a target of their own; their sources are left alone.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        store: StoreAdapter,
        open_runner: Callable[[], AbstractContextManager[JobRunner]],
        watch: Callable[[LocalJob], None] = lambda job: None,
        others: Callable[[], Mapping[str, HeldJob]] = dict,
    ) -> None:
        self._policy = policy
        self._spec = policy.spec
        self._kind = kind_of(policy.spec.store)
        self._store = store
        self._open_runner = open_runner
        self._watch = watch
        self._open_jobs = others
        self._others: Mapping[str, HeldJob] = {}
        self._gone: frozenset[str] = frozenset()
        self._jobs: dict[str, LocalJob] = {}
        self._rounds: Counter[str] = Counter()
        self._quarantined: tuple[QuarantinedSource, ...] = ()
        self._stop = threading.Event()
        self._looks = 0

    def look(self, *, recover: bool = True) -> tuple[ScanResult, Plan]:
        """Scan the store and plan. With `recover=False` nothing is changed.

        Raises:
            RootUnreadableError: the root cannot be scanned.
        """
        reading = self._sense(recover=recover)
        while new := reading.outdated - self._gone:
            # Jobs some of whose sources were replaced or expired by others: what is left of them is free to plan.
            self._gone |= new
            reading = self._sense(recover=recover)
        if reading.problem is not None:
            raise RootUnreadableError(reading.problem.message)
        candidates = [candidate for candidate in reading.candidates if self._may_plan(candidate.target)]
        planner = planner_of(self._policy, owner_uid=OWNER)
        left_out = (*reading.left_out, *self._left_to_others())
        return reading, planner.plan(candidates, {}, self._inventory(), now=time.time(), left_out=left_out)

    def _sense(self, *, recover: bool) -> ScanResult:
        self._looks += 1
        self._others = {name: job for name, job in self._open_jobs().items() if name not in self._jobs}
        held = quarantine.by_target(self._quarantined)
        request = SenseRequest(
            self._looks, _GENERATION, time.monotonic(), quarantined=held, recover=recover, jobs=self._held()
        )
        return self._store.sense(request).reading

    def _held(self) -> dict[str, HeldJob]:
        """What the jobs of others, and those of this run that have not succeeded, are made of."""
        mine = {
            job.name: HeldJob(job.target, job.planned.level, job.sources)
            for job in self._jobs.values()
            if job.state is not JobState.SUCCEEDED
        }
        return {name: job for name, job in {**self._others, **mine}.items() if name not in self._gone}

    def _left_to_others(self) -> Iterator[LeftOut]:
        for name, job in sorted(self._others.items()):
            if name not in self._gone:
                yield LeftOut(LeftOutReason.JOB_UNFINISHED, len(job.sources), name)

    def run(self) -> RunResult:
        """Compact everything that is due, then delete what was replaced longer than the grace ago.

        Raises:
            PlanNotApprovedError: the policy's plans need approval, and its annotation names another one than this.
        """
        _, first = plan = self.look()
        if first.jobs:
            self._check_approval(first)
            try:
                with self._open_runner() as runner:
                    while plan[1].jobs:
                        self._work(runner, plan[1].jobs)
                        plan = self.look()
            finally:
                self._give_up()
        swept = self._store.sweep(active=frozenset())
        return RunResult(
            plan=first,
            jobs=tuple(self._jobs.values()),
            reading=plan[0],
            quarantined=self._quarantined,
            swept=swept,
            races=self._kind.immutable_sources,
        )

    def _check_approval(self, plan: Plan) -> None:
        approved = self._policy.metadata.annotations.get(ANNOTATION_APPROVE, "")
        if self._spec.approval is Approval.MANUAL and approved != plan.hash:
            raise PlanNotApprovedError(
                f"plan {plan.hash} is not approved (spec.approval: Manual): review it with --dry-run, then run with "
                f"--approve {plan.hash}"
            )

    # --- planning ---

    def _may_plan(self, target: str) -> bool:
        """Each target once; again after a failure, as often as a job may be tried."""
        if any(job.target == target for job in self._others.values()):
            return False
        mine = [job for job in self._jobs.values() if job.target == target]
        failed = any(job.state is not JobState.SUCCEEDED for job in mine)
        # Of sources that never change no job is planned twice, and halving ends by itself.
        more = self._kind.immutable_sources or self._rounds[target] < self._spec.limits.max_attempts
        return not mine or (failed and more)

    def _inventory(self) -> JobInventory:
        faulty = {job.name for job in self._jobs.values() if job.state is JobState.FAULTY}
        splittable = {name for name in faulty if all(map(_may_split, self._jobs[name].status.attempts))}
        return JobInventory(names=frozenset(self._jobs), faulty=frozenset(faulty), splittable=frozenset(splittable))

    # --- running ---

    def _work(self, runner: JobRunner, planned: Iterable[PlannedJob]) -> None:
        """Run jobs until each has succeeded or is Faulty."""
        jobs = [LocalJob(job, spec_of(job, self._policy), time.time()) for job in planned]
        self._jobs |= {job.name: job for job in jobs}
        self._rounds.update({job.target for job in jobs})
        for job in jobs:
            self._watch(job)
        slots = min(self._spec.workers.slots, self._spec.limits.max_concurrent_jobs)
        done: queue.SimpleQueue[tuple[LocalJob, Future[JobReport]]] = queue.SimpleQueue()
        running: set[str] = set()

        def submit(job: LocalJob) -> None:
            pool.submit(self._attempt, runner, job).add_done_callback(lambda future: done.put((job, future)))

        with ThreadPoolExecutor(max_workers=slots, thread_name_prefix="job") as pool:
            try:
                while running or any(job.is_waiting for job in jobs):
                    pause = self._start(jobs, running, slots, submit)
                    try:
                        job, attempt = done.get(timeout=pause)
                    except queue.Empty:
                        continue
                    running.discard(job.name)
                    self._take(job, attempt.result())
            except BaseException:
                # Also an interrupt: whatever runs stops before its next commit, and the pool waits for it.
                self._stop.set()
                raise

    def _start(
        self, jobs: list[LocalJob], running: set[str], slots: int, submit: Callable[[LocalJob], object]
    ) -> float | None:
        """Start what may start now; seconds until a scan is due although no job ended."""
        now = _now()
        schedule = assign(
            [_queued(job) for job in jobs if job.is_waiting],
            [WorkerSlots(WORKER, slots - len(running))],
            capacity=slots - len(running),
            now=now.wall,
            busy_targets={self._jobs[name].target for name in running},
        )
        for one in schedule.assignments:
            job = self._jobs[one.job]
            running.add(job.name)
            token = self._next_token(job)
            job.status = assigned(
                job.status,
                token=token,
                worker=WORKER,
                now=now,
                generation=_GENERATION,
                bytes_per_second=self._share(slots),
            )
            self._watch(job)
            submit(job)
        if running:
            return None
        return max(0.05, (schedule.next_backoff_end or now.wall) - now.wall)

    def _share(self, slots: int) -> int | None:
        """Bytes per second of one job: all slots may be taken before it ends."""
        limit = self._spec.limits.bytes_per_second
        return None if limit is None else share_of(int(limit), jobs=slots)

    def _next_token(self, job: LocalJob) -> int:
        try:
            high_water = self._store.high_water(job.target, job.name)
        except CompactionError:
            high_water = None  # the claim will meet the same error, and the attempt will say so
        return next_token(None, job.status.fencing_token, high_water)

    def _attempt(self, runner: JobRunner, job: LocalJob) -> JobReport:
        """One attempt, in a thread of its own. JobStoppedError and EngineLostError end the run."""
        token = job.status.fencing_token

        def progress(percent: int) -> None:
            job.percent = percent
            self._watch(job)

        assignment = Assignment(
            job_name=job.name,
            namespace="",
            token=token,
            lease_seconds=float("inf"),
            spec=job.spec,
            bytes_per_second=job.status.attempts[-1].bytes_per_second,
        )
        return attempt(
            runner,
            assignment,
            LocalLease(job.name, token, self._stop, progress),
            policy=self._policy.metadata.name,
            claim=lambda: self._store.claim(job.spec, job=job.name, token=token),
        )

    def _take(self, job: LocalJob, outcome: JobReport) -> None:
        """Enter an attempt's report: the same state machine as in a cluster."""
        report = parse_report(outcome.to_json())
        # Fenced off means that another process works on this very job: leave it to that one. And whatever it was, a run
        # that somebody waits for comes to an end.
        attempts = 1 if report.reason == JobReason.STALE_TOKEN else self._spec.limits.max_attempts
        report = report.model_copy(update={"charged": True})
        now = _now()
        job.status = reported(job.status, report, max_attempts=attempts, now=now, generation=_GENERATION)
        if job.state in (JobState.SUCCEEDED, JobState.FAULTY):
            job.percent = 100
            if report.reason != JobReason.STALE_TOKEN:
                self._retire(job)
        # A store that keeps a quarantine of its own decides what is in it, for whatever reason.
        own = self._kind.keeps_quarantine
        damaged = [source for source in report.skipped if own or source.reason == JobReason.SOURCE_CORRUPT]
        self._quarantined = quarantine.updated(
            self._quarantined, found=[(job.target, source) for source in damaged], reading=None, now=now
        )
        self._watch(job)

    def _give_up(self) -> None:
        """After an interrupt: no process works on these jobs any more, and their sources are free for others."""
        for job in self._jobs.values():
            if job.status.fencing_token and job.state not in (JobState.SUCCEEDED, JobState.FAULTY):
                self._retire(job)

    def _retire(self, job: LocalJob) -> None:
        try:
            self._store.retire(job.target, job.name)
        except CompactionError as error:
            log.warning("the job's claim could not be closed", job=job.name, error=str(error))


def _may_split(attempt: AttemptStatus) -> bool:
    """Whether a part of the job may be to blame for how an attempt ended."""
    return fate_of(attempt.reason) is Fate.SPLIT and attempt.reason != JobReason.STALE_TOKEN


def _now() -> Moment:
    return Moment(wall=time.time(), monotonic=time.monotonic())


def _queued(job: LocalJob) -> QueuedJob:
    ended = job.status.attempts[-1].ended_at if job.status.attempts else None
    return QueuedJob(
        name=job.name,
        target=job.target,
        tenant=job.planned.tenant,
        level=job.planned.level,
        state=job.state,
        failures=job.status.failures,
        created_at=job.created_at,
        ended_at=ended.timestamp() if ended is not None else 0.0,
        not_before=not_before(job.status, _now()),
    )
