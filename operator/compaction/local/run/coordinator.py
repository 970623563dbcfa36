"""One policy compacted in this process: the coordinator's own decisions, and the executor that carries them out.

The reconciler of the operator (core/reconcile/policy.py) decides: when the store is scanned, what is planned, which
plan waits for approval, which job may start and at what speed, what is parked, split or quarantined, when replaced data
is deleted. Here its decisions meet objects in memory instead of an API server, and threads over one engine instead of
workers. What is lost with the process is its memory (cooldowns, parked jobs, totals), never data: claims and deletions
are recorded in the store.

Everything but the attempts happens in one thread.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

import structlog

from compaction.api.policy.policy import CompactionPolicy
from compaction.api.text.printing import plural
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import Announce, Decision, RunStoreTask, StoreTask
from compaction.core.reconcile.jobs.job import is_finished
from compaction.core.reconcile.observations import JobLease, Memory, Moment
from compaction.core.reconcile.policy import reconcile
from compaction.core.reconcile.status.announcing import RECOVERED
from compaction.errors import CompactionError
from compaction.kube.executor.executor import Executor
from compaction.kube.scanning import request_of, scan, sweep
from compaction.local.run.job import News, of_event, of_status
from compaction.local.run.objects import LocalObjects
from compaction.local.run.workers import AttemptEnded, AttemptProgress, Inbox, LocalLease, LocalWorkers
from compaction.registry import kind_of
from compaction.storage.adapter import StoreAdapter, Swept
from compaction.worker.errors import EngineLostError, JobStoppedError
from compaction.worker.ports import Assignment, JobRunner

log = structlog.get_logger(__name__)

LONGEST_WAIT: Final = 60.0
"""Seconds between two decisions at most."""
SIGNALS: Final = 1.0
"""Seconds after which a signal is seen that came right before the thread began to wait."""


class LocalCoordinator:
    """Decides about one policy and carries it out, step by step. At the end of its context attempts stop before their
    next commit, and the claims of jobs that have not ended are given up.

    Args:
        store: the policy's store; may be replaced with the policy.
        open_runner: starts the engine for the policy as it stands; called when there is work.
        tell: called with each message, in the thread of the steps.
        progress: called with (job, bytes to copy, percent), in the thread of the steps.
    """

    def __init__(
        self,
        policy: CompactionPolicy,
        *,
        store: StoreAdapter,
        open_runner: Callable[[CompactionPolicy], AbstractContextManager[JobRunner]],
        tell: Callable[[News], None] = lambda news: None,
        progress: Callable[[str, int, int], None] = lambda job, cost, percent: None,
    ) -> None:
        self.objects = LocalObjects(policy, announce=self._announce)
        self.store = store
        self.reading: ScanResult | None = None
        self.memory = Memory()
        self.swept = Swept(0, 0, (), None)
        self._tell = tell
        self._progress = progress
        self._readings = 0
        self._stop = threading.Event()
        self._inbox: Inbox = queue.SimpleQueue()
        self.workers = LocalWorkers(
            self._inbox,
            self._stop,
            slots=lambda: self.objects.policy.spec.workers.slots,
            open_runner=lambda: open_runner(self.objects.policy),
        )
        self._loop = asyncio.Runner()
        self._started: dict[tuple[str, int], LocalLease] = {}
        self._repeated: frozenset[Announce] = frozenset()
        self._told: set[News] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        try:
            self.workers.close(error)
        finally:
            if error is None:
                self._settle()
            self._give_up()
            self._loop.close()

    @property
    def stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End soon: running jobs stop before their next commit. May be called from a signal handler."""
        self._stop.set()
        self._inbox.put(None)

    def step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        decision = self._decide()
        self._carry_out(decision)
        for task in decision.store_tasks:
            self._work_on_store(task)
        if decision.acts or decision.store_tasks:
            return 0.0
        return LONGEST_WAIT if decision.requeue_after is None else decision.requeue_after

    def _decide(self) -> Decision:
        decision = reconcile(
            self.objects.snapshot(now=_now(), worker=self.workers.worker, reading=self.reading, memory=self.memory)
        )
        # A status costs nothing here, so it is always written at once.
        self.memory = replace(decision.memory, status_written_at=-math.inf)
        return decision

    def _settle(self) -> None:
        """After the last attempt: what the last reports change, and nothing new."""
        self.wait(0.0)
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
            said = {item.reason for item in news} | {RECOVERED}  # another reason of Ready is news of its own
            self._repeated = frozenset(event for event in decision.policy_status.events if event.reason in said)
        executor = Executor(self.objects, self.workers, store_of=lambda: self.store, now=_now())
        self._loop.run(executor.execute(decision))
        self.memory = executor.outcome.remembered(self.memory, now=time.monotonic())
        for name, job in self.objects.jobs.items():
            before = jobs.get(name)
            if before is None:
                self._show(name, 0)
            elif job.status.state is not before.status.state and is_finished(job.status):
                self._show(name, 100)
        leases = {(name, lease.token): lease for name, lease in self.objects.leases.items()}
        started, self._started = self._started, {}
        for (name, token), lease in leases.items():
            held = self._started[name, token] = started.get((name, token)) or self._start(name, lease)
            held.bytes_per_second = lease.bytes_per_second
        if decision.policy_status is not None:
            self._told.clear()
            for item in news:
                self.say(item)

    def _start(self, name: str, lease: JobLease) -> LocalLease:
        """Begin the attempt that a Lease stands for, as a worker does that finds it."""
        assignment = Assignment(
            job_name=name,
            namespace="",
            token=lease.token,
            lease_seconds=lease.duration,
            spec=self.objects.jobs[name].spec,
            bytes_per_second=lease.bytes_per_second,
        )
        return self.workers.start(assignment, policy=self.objects.policy.metadata.name)

    def _give_up(self) -> None:
        """No process works on these jobs any more, and their sources are free for others."""
        for name, job in self.objects.jobs.items():
            if job.status.fencing_token and not is_finished(job.status):
                try:
                    self.store.retire(job.spec.target, name)
                except CompactionError as error:
                    log.warning("the job's claim could not be closed", job=name, error=str(error))

    def _announce(self, event: Announce) -> None:
        if event not in self._repeated:
            self.say(of_event(event))

    def say(self, news: News) -> None:
        """Tell it once: until the status is written, the reconciler announces the same again."""
        if news not in self._told:
            self._told.add(news)
            self._tell(news)

    def _show(self, name: str, percent: int) -> None:
        self._progress(name, self.objects.jobs[name].spec.estimated_bytes, percent)

    # -- the store ----------------------------------------------------------------------------------------------------

    def _work_on_store(self, task: RunStoreTask) -> None:
        root = self.objects.policy.spec.store.location
        if task.task is StoreTask.SWEEP:
            swept = sweep(self.store, root=root, active=task.active)
            self.swept = replace(
                swept, deleted=self.swept.deleted + swept.deleted, bytes=self.swept.bytes + swept.bytes
            )
            self.memory = store_work.swept(self.memory, sweep_in=swept.sweep_in, now=time.monotonic())
            self.memory = store_work.ended(self.memory, task.task)
            if swept.deleted:
                what = plural(swept.deleted, kind_of(self.objects.policy.spec.store).nouns.deleted)
                self.say(News("Swept", f"{what} deleted after the grace"))
            return
        self._readings += 1
        request = request_of(task, self._readings, self.objects.policy, asked=time.monotonic())
        sensed = scan(self.store, request, root=root, before=self.reading, clock=time.monotonic)
        self.reading = sensed.reading
        memory = store_work.ended(self.memory, task.task)
        now = time.monotonic()
        self.memory = store_work.scanned(memory, sweep_in=sensed.sweep_in, look_in=sensed.look_in, now=now)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Take what happens into the objects, until an attempt has ended or that time is over."""
        until = time.monotonic() + min(seconds, LONGEST_WAIT)
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                message = self._inbox.get(timeout=min(left, SIGNALS))
            except queue.Empty:
                if left > SIGNALS:
                    continue
                return
            match message:
                case AttemptProgress():
                    self.objects.note_progress(message.job, message.token, message.percent)
                    if message.job in self.objects.jobs:
                        self._show(message.job, message.percent)
                    continue
                case AttemptEnded():
                    self._take(message)
            until = 0.0  # what else has happened by now is part of the next decision

    def _take(self, message: AttemptEnded) -> None:
        try:
            self.objects.note_report(message.job, message.outcome.result())
        except JobStoppedError:
            return  # we are asked to stop, and nothing was left half-done
        except EngineLostError as error:
            self.workers.note_end(error)


def _now() -> Moment:
    return Moment(wall=time.time(), monotonic=time.monotonic())
