"""`compactor run --watch`: the coordinator's own decisions, carried out in this process, until a user stops it.

The reconciler of the operator (reconcile/policy.py) decides: when the store is scanned, what is planned, which plan
waits for approval, which job may start in which window and at what speed, what is parked, split or quarantined, when
replaced data is deleted. Here its decisions meet objects in memory instead of an API server, and threads over one Spark
application instead of workers. So everything a policy says holds here as it does in a cluster; what is lost with the
process is its memory (cooldowns, parked jobs, totals), never data: claims and deletions are recorded in the store.

Everything but the attempts happens in the thread that calls `run`.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import structlog

from compaction.api.enums import JobState
from compaction.api.names import LABEL_PLAN
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import plural
from compaction.exceptions import CompactionError, EngineLostError, JobStoppedError
from compaction.kinds.registry import kind_of
from compaction.kube.executor.claiming import claim
from compaction.kube.sensing.looking import look, request_of, sweep
from compaction.local.run.crew import Crew, Ended, Inbox, Progress
from compaction.local.run.news import News, of_event, of_status
from compaction.local.run.objects import LocalObjects, LocalWorker
from compaction.planning.reading import Reading
from compaction.reconcile.actions import AssignJob, Decision, EndAttempt, RunStoreTask, StoreTask
from compaction.reconcile.jobs.claims import Refused, learned
from compaction.reconcile.jobs.job import assigned
from compaction.reconcile.observations import Memory, Moment
from compaction.reconcile.policy import reconcile
from compaction.reconcile.status.announcing import RECOVERED
from compaction.reconcile.store_work import looked
from compaction.reconcile.workers.fleet import launch_failed
from compaction.rewrite.ports import Assignment, JobRunner
from compaction.stores.adapter import StoreAdapter

log = structlog.get_logger(__name__)

REREAD_SECONDS: Final = 1.0
"""How often the policy is asked for again."""
SWEEP_PAUSE: Final = 1.0


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
        self.objects = LocalObjects(policy, now=_now())
        self.deleted = 0
        self._open_store = open_store
        self._open_runner = open_runner
        self._reread = reread
        self._tell = tell
        self._progress = progress
        self._store = open_store(policy)
        self._reading: Reading | None = None
        self._readings = 0
        self._memory = Memory()
        self._stop = threading.Event()
        self._inbox: Inbox = queue.SimpleQueue()
        self._crew = Crew(self._inbox, self._stop)
        self._asked_at = 0.0
        self._told: set[News] = set()

    def stop(self) -> None:
        """End soon: running jobs stop before their next commit. May be called from a signal handler."""
        self._stop.set()
        self._inbox.put(None)

    def run(self) -> None:
        """Look, plan, compact, delete; returns after `stop`."""
        try:
            while not self._stop.is_set():
                self._take_next(self.step())
        finally:
            self._stop.set()
            self._dismiss()
        self._settle()
        self._give_up()
        self._store.close()

    def step(self) -> float:
        """One decision, carried out; seconds until the next one is due by itself."""
        self._ask_for_policy()
        decision = self._decide()
        self._end(decision)
        self._assign(decision)
        self._create(decision)
        for launch in decision.launches:
            self._launch(launch.name)
        for event in decision.events:
            self._say(of_event(event))
        self._put_status(decision)
        for task in decision.store_tasks:
            self._work_on_store(task)
        idle = self._idle_seconds_left()
        if decision.acts or decision.store_tasks:
            return 0.0
        waits = [seconds for seconds in (decision.requeue_after, idle, REREAD_SECONDS) if seconds is not None]
        return min(waits)

    def _decide(self) -> Decision:
        decision = reconcile(self.objects.picture(now=_now(), reading=self._reading, memory=self._memory))
        # A status costs nothing here, so it is always written at once.
        self._memory = replace(decision.memory, status_written_at=-math.inf)
        return decision

    def _settle(self) -> None:
        """After the last attempt: what the last reports change, and nothing new."""
        while self._take_next(0.0):
            pass
        decision = self._decide()
        self._end(decision)
        self._put_status(decision)

    def _give_up(self) -> None:
        """No process works on these jobs any more, and their sources are free for others."""
        for name, job in self.objects.jobs.items():
            if job.status.fencing_token and job.status.state not in (JobState.SUCCEEDED, JobState.FAULTY):
                self._retire(job.spec.target, name)

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

    def _put_status(self, decision: Decision) -> None:
        if decision.policy_status is None:
            return
        before, after = self.objects.policy.status, decision.policy_status.status
        self.objects.put_policy_status(after)
        self._told.clear()
        news = of_status(before, after)
        said = {one.reason for one in news} | {RECOVERED}  # another reason of Ready is news of its own
        for one in (*(of_event(event) for event in decision.policy_status.events if event.reason not in said), *news):
            self._say(one)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _end(self, decision: Decision) -> None:
        for ending in decision.end_attempts:
            self._end_attempt(ending)
        for deletion in decision.delete_jobs:
            self._retire(deletion.target, deletion.job.name)
            self.objects.delete_job(deletion.job.name)
        for one in decision.delete_leases:
            self.objects.leases.pop(one.lease.name, None)
        if decision.stop_workers or decision.forget_workers:
            self._dismiss()

    def _end_attempt(self, ending: EndAttempt) -> None:
        name = ending.job.name
        if ending.status is not None:
            self.objects.put_job_status(name, ending.status)
        if ending.lease is not None:
            self.objects.leases.pop(name, None)
        if ending.retire:
            self._retire(ending.target, name)
        if self.objects.jobs[name].status.state in (JobState.SUCCEEDED, JobState.FAULTY):
            self._show(name, 100)

    def _retire(self, target: str, job: str) -> None:
        try:
            self._store.retire(target, job)
        except CompactionError as error:
            log.warning("the job's claim could not be closed", job=job, error=str(error))

    def _create(self, decision: Decision) -> None:
        for creation in decision.create_jobs:
            self.objects.create_job(creation.name, creation.spec, labels={LABEL_PLAN: creation.plan}, now=_now())
            self._show(creation.name, 0)

    def _assign(self, decision: Decision) -> None:
        refused: dict[str, Refused] = {}
        claimed: set[str] = set()
        for action in decision.assignments:
            answer = claim(self._store, action)
            if isinstance(answer, Refused):
                refused[action.job.name] = answer
            elif answer is not None:
                claimed.add(action.job.name)
                self._start(action, answer)
        self._memory = learned(self._memory, refused=refused, claimed=claimed, now=time.monotonic())

    def _start(self, action: AssignJob, token: int) -> None:
        name, duration, share = action.job.name, float(action.duration), action.bytes_per_second
        self.objects.put_lease(name, worker=action.worker, token=token, duration=duration, bytes_per_second=share)
        status = assigned(
            action.status,
            token=token,
            worker=action.worker,
            now=_now(),
            generation=action.generation,
            bytes_per_second=share,
        )
        self.objects.put_job_status(name, status)
        assignment = Assignment(
            job_name=name,
            namespace="",
            token=token,
            lease_seconds=duration,
            spec=self.objects.jobs[name].spec,
            bytes_per_second=share,
        )
        self._crew.start(assignment, policy=self.objects.policy.metadata.name)

    def _show(self, name: str, percent: int) -> None:
        self._progress(name, self.objects.jobs[name].spec.estimated_bytes, percent)

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _launch(self, name: str) -> None:
        """Start the engine. A failure is reported, and retried after a growing pause."""
        policy = self.objects.policy
        slots = policy.spec.workers.slots
        try:
            self._crew.hire(lambda: self._open_runner(policy), slots=slots)
        except CompactionError as error:
            self._memory = launch_failed(self._memory, str(error), time.monotonic(), names=(name,))
            self._say(News("LaunchFailed", str(error), warning=True))
            return
        self.objects.worker = LocalWorker(name, slots, started=time.monotonic())
        self._say(News("WorkerLaunched", f"Spark is up, for {plural(slots, 'job')} at a time"))

    def _dismiss(self) -> None:
        self._crew.dismiss()
        self.objects.worker = None

    def _idle_seconds_left(self) -> float | None:
        """Seconds until the engine is closed because nothing needs it; closes it when they are over."""
        worker = self.objects.worker
        if worker is None or worker.ended:
            return None
        if any(job.status.state is JobState.IN_PROGRESS for job in self.objects.jobs.values()):
            self._crew.note_need()
            return None
        left = self.objects.policy.spec.workers.idle_seconds - self._crew.idle_seconds()
        if left > 0:
            return left
        self._dismiss()
        self._say(News("WorkerStopped", "Spark was stopped: no job for a while"))
        return None

    # -- the store ----------------------------------------------------------------------------------------------------

    def _work_on_store(self, task: RunStoreTask) -> None:
        root = self.objects.policy.spec.store.location
        if task.task is StoreTask.SWEEP:
            swept = sweep(self._store, root=root, active=task.active)
            self.deleted += swept.deleted
            due = None if swept.sweep_in is None else time.monotonic() + max(SWEEP_PAUSE, swept.sweep_in)
            self._memory = replace(self._memory, sweep_running=False, sweep_due=due)
            if swept.deleted:
                what = plural(swept.deleted, kind_of(self.objects.policy.spec.store).nouns.deleted)
                self._say(News("Swept", f"{what} deleted after the grace"))
            return
        self._readings += 1
        request = request_of(task, self._readings, self.objects.policy, asked=time.monotonic())
        sensed = look(self._store, request, root=root, before=self._reading, clock=time.monotonic)
        self._reading = sensed.reading
        memory = replace(self._memory, sense_running=False)
        self._memory = looked(memory, sweep_in=sensed.sweep_in, look_in=sensed.look_in, now=time.monotonic())

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _take_next(self, seconds: float) -> bool:
        """Take what comes within that time into the objects; False when nothing came."""
        try:
            message = self._inbox.get(timeout=seconds) if seconds else self._inbox.get_nowait()
        except queue.Empty:
            return False
        match message:
            case Ended():
                self._take(message)
            case Progress():
                self.objects.note_progress(message.job, message.token, message.percent)
                if message.job in self.objects.jobs:
                    self._show(message.job, message.percent)
        return True

    def _take(self, message: Ended) -> None:
        try:
            self.objects.note_report(message.job, message.outcome.result())
        except JobStoppedError:
            return  # we are asked to stop, and nothing was left half-done
        except EngineLostError as error:
            if self.objects.worker is not None:
                self.objects.worker = replace(self.objects.worker, ended=str(error) or "Spark went away")


def _now() -> Moment:
    return Moment(wall=time.time(), monotonic=time.monotonic())
