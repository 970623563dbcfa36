"""`compactor run --watch`: the coordinator's own decisions, carried out in this process, until a user stops it.

The reconciler of the operator (reconcile/policy.py) decides: when the store is scanned, what is planned, which plan
waits for approval, which job may start in which window and at what speed, what is parked, split or quarantined, when
replaced data is deleted. Here its decisions meet objects in memory instead of an API server, and threads over one Spark
application instead of workers. So everything a policy says holds here as it does in a cluster; what is lost with the
process is its memory (cooldowns, parked jobs, totals), never data: claims and deletions are recorded in the store.

Everything but the attempts happens in the thread that calls `run`.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import structlog

from compaction.api.enums import JobState
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import plural
from compaction.exceptions import CompactionError, EngineLostError, JobStoppedError
from compaction.kinds.registry import kind_of
from compaction.kube.executor.executor import Executor
from compaction.kube.sensing.scanning import request_of, scan, sweep
from compaction.local.run.news import News, of_event, of_status
from compaction.local.run.objects import LocalObjects
from compaction.local.run.workers import AttemptEnded, AttemptProgress, Inbox, LocalWorkers
from compaction.planning.reading import ScanResult
from compaction.reconcile import store_work
from compaction.reconcile.actions import Announce, Decision, RunStoreTask, StoreTask
from compaction.reconcile.memory import Memory
from compaction.reconcile.observations import JobLease, Moment
from compaction.reconcile.policy import reconcile
from compaction.reconcile.status.announcing import RECOVERED
from compaction.rewrite.ports import Assignment, JobRunner
from compaction.stores.adapter import StoreAdapter

log = structlog.get_logger(__name__)

REREAD_SECONDS: Final = 1.0
"""How often the policy is asked for again."""
_ENDED: Final = (JobState.SUCCEEDED, JobState.FAULTY)


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
        self.objects = LocalObjects(policy, announce=self._announce)
        self.deleted = 0
        self._open_store = open_store
        self._reread = reread
        self._tell = tell
        self._progress = progress
        self._store = open_store(policy)
        self._reading: ScanResult | None = None
        self._readings = 0
        self._memory = Memory()
        self._stop = threading.Event()
        self._inbox: Inbox = queue.SimpleQueue()
        self._workers = LocalWorkers(
            self._inbox,
            self._stop,
            slots=lambda: self.objects.policy.spec.workers.slots,
            open_runner=lambda: open_runner(self.objects.policy),
        )
        self._loop = asyncio.Runner()
        self._started: Set[tuple[str, int]] = frozenset()
        self._repeated: frozenset[Announce] = frozenset()
        self._asked_at = 0.0
        self._told: set[News] = set()

    def stop(self) -> None:
        """End soon: running jobs stop before their next commit. May be called from a signal handler."""
        self._stop.set()
        self._inbox.put(None)

    def run(self) -> None:
        """Look, plan, compact, delete; returns after `stop`."""
        with self._loop:
            try:
                while not self._stop.is_set():
                    self._take_next(self.step())
            finally:
                self._stop.set()
                self._workers.close()
            self._settle()
            self._give_up()
        self._store.close()

    def step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        self._ask_for_policy()
        decision = self._decide()
        self._carry_out(decision)
        for task in decision.store_tasks:
            self._work_on_store(task)
        idle = self._idle_seconds_left()
        if decision.acts or decision.store_tasks:
            return 0.0
        waits = [seconds for seconds in (decision.requeue_after, idle, REREAD_SECONDS) if seconds is not None]
        return min(waits)

    def _decide(self) -> Decision:
        decision = reconcile(
            self.objects.snapshot(now=_now(), worker=self._workers.worker, reading=self._reading, memory=self._memory)
        )
        # A status costs nothing here, so it is always written at once.
        self._memory = replace(decision.memory, status_written_at=-math.inf)
        return decision

    def _settle(self) -> None:
        """After the last attempt: what the last reports change, and nothing new."""
        while self._take_next(0.0):
            pass
        decision = self._decide()
        self._carry_out(
            Decision(decision.memory, end_attempts=decision.end_attempts, policy_status=decision.policy_status)
        )

    def _carry_out(self, decision: Decision) -> None:
        """Execute a decision, begin the attempts that it assigned, and tell what changed."""
        status, jobs = self.objects.policy.status, dict(self.objects.jobs)
        news, self._repeated = [], frozenset()
        if decision.policy_status is not None:
            news = of_status(status, decision.policy_status.status)
            said = {one.reason for one in news} | {RECOVERED}  # another reason of Ready is news of its own
            self._repeated = frozenset(one for one in decision.policy_status.events if one.reason in said)
        executor = Executor(self.objects, self._workers, store_of=lambda: self._store, now=_now())
        self._loop.run(executor.execute(decision))
        self._memory = executor.outcome.remembered(self._memory, now=time.monotonic())
        for name, job in self.objects.jobs.items():
            before = jobs.get(name)
            if before is None:
                self._show(name, 0)
            elif job.status.state is not before.status.state and job.status.state in _ENDED:
                self._show(name, 100)
        leases = {(name, lease.token): lease for name, lease in self.objects.leases.items()}
        for (name, _), lease in ((one, leases[one]) for one in leases.keys() - self._started):
            self._start(name, lease)
        self._started = leases.keys()
        if decision.policy_status is not None:
            self._told.clear()
            for one in news:
                self._say(one)

    def _start(self, name: str, lease: JobLease) -> None:
        """Begin the attempt that a Lease stands for, as a worker does that finds it."""
        assignment = Assignment(
            job_name=name,
            namespace="",
            token=lease.token,
            lease_seconds=lease.duration,
            spec=self.objects.jobs[name].spec,
            bytes_per_second=lease.bytes_per_second,
        )
        self._workers.start(assignment, policy=self.objects.policy.metadata.name)

    def _give_up(self) -> None:
        """No process works on these jobs any more, and their sources are free for others."""
        for name, job in self.objects.jobs.items():
            if job.status.fencing_token and job.status.state not in _ENDED:
                try:
                    self._store.retire(job.spec.target, name)
                except CompactionError as error:
                    log.warning("the job's claim could not be closed", job=name, error=str(error))

    def _announce(self, event: Announce) -> None:
        if event not in self._repeated:
            self._say(of_event(event))

    def _say(self, news: News) -> None:
        """Tell it once: until the status is written, the reconciler announces the same again."""
        if news not in self._told:
            self._told.add(news)
            self._tell(news)

    # -- the policy ---------------------------------------------------------------------------------------------------

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
            self._store.close()
            self._store = self._open_store(wanted)
        self._say(News("PolicyChanged", "the changed policy is in force"))

    def _show(self, name: str, percent: int) -> None:
        self._progress(name, self.objects.jobs[name].spec.estimated_bytes, percent)

    def _idle_seconds_left(self) -> float | None:
        """Seconds until the engine is closed because nothing needs it; closes it when they are over."""
        worker = self._workers.worker
        if worker is None or worker.ended:
            return None
        if any(job.status.state is JobState.IN_PROGRESS for job in self.objects.jobs.values()):
            self._workers.note_need()
            return None
        left = self.objects.policy.spec.workers.idle_seconds - self._workers.idle_seconds()
        if left > 0:
            return left
        self._workers.close()
        self._say(News("WorkerStopped", "Spark was stopped: no job for a while"))
        return None

    # -- the store ----------------------------------------------------------------------------------------------------

    def _work_on_store(self, task: RunStoreTask) -> None:
        root = self.objects.policy.spec.store.location
        if task.task is StoreTask.SWEEP:
            swept = sweep(self._store, root=root, active=task.active)
            self.deleted += swept.deleted
            self._memory = store_work.swept(self._memory, sweep_in=swept.sweep_in, now=time.monotonic())
            self._memory = store_work.ended(self._memory, task.task)
            if swept.deleted:
                what = plural(swept.deleted, kind_of(self.objects.policy.spec.store).nouns.deleted)
                self._say(News("Swept", f"{what} deleted after the grace"))
            return
        self._readings += 1
        request = request_of(task, self._readings, self.objects.policy, asked=time.monotonic())
        sensed = scan(self._store, request, root=root, before=self._reading, clock=time.monotonic)
        self._reading = sensed.reading
        memory = store_work.ended(self._memory, task.task)
        now = time.monotonic()
        self._memory = store_work.scanned(memory, sweep_in=sensed.sweep_in, look_in=sensed.look_in, now=now)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _take_next(self, seconds: float) -> bool:
        """Take what comes within that time into the objects; False when nothing came."""
        try:
            message = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
        except queue.Empty:
            return False
        match message:
            case AttemptEnded():
                self._take(message)
            case AttemptProgress():
                self.objects.note_progress(message.job, message.token, message.percent)
                if message.job in self.objects.jobs:
                    self._show(message.job, message.percent)
        return True

    def _take(self, message: AttemptEnded) -> None:
        try:
            self.objects.note_report(message.job, message.outcome.result())
        except JobStoppedError:
            return  # we are asked to stop, and nothing was left half-done
        except EngineLostError as error:
            self._workers.note_end(str(error) or "Spark went away")


def _now() -> Moment:
    return Moment(wall=time.time(), monotonic=time.monotonic())
