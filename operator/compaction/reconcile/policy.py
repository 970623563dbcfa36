"""The reconcile of one policy: a picture in, a decision out. No I/O, no clock but the one passed in.

Order: what happened to the jobs; which workers live; which jobs go to whom; whether another worker is started; what is
planned anew; what may be forgotten; when the store is looked at; and the status that says all this. The decision is a
function of the picture alone, so a restart at any moment continues where the last coordinator was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePosixPath

from compaction.api.enums import JobReason, JobState, WaitReason
from compaction.api.formatting import format_bytes, plural
from compaction.api.job import CompactionJob
from compaction.api.policy import CompactionPolicy, CompactionPolicyStatus, QuarantinedSource
from compaction.api.policy_status import Waiting
from compaction.planning.planner import Plan
from compaction.reconcile import counting, fleet, quarantine, replan, status
from compaction.reconcile.actions import (
    Announce,
    AssignJob,
    Decision,
    DeleteJob,
    DeleteLease,
    EndAttempt,
    RunStoreTask,
    StoreTask,
    WritePolicyStatus,
)
from compaction.reconcile.assigning import Assigner, soonest
from compaction.reconcile.job import evolve, token_of
from compaction.reconcile.observations import Identity, JobView, Memory, Reading, Snapshot, frozen
from compaction.reconcile.steps import JobStep, Refusal, StepRules, take_step
from compaction.reconcile.teardown import orphaned, owner_uid, tear_down


def reconcile(snapshot: Snapshot) -> Decision:
    """Decide what to do for a policy and everything of it."""
    if snapshot.policy is None or snapshot.policy.metadata.is_deleting:
        return tear_down(snapshot)
    return _Reconcile(snapshot, snapshot.policy).decide()


class _Reconcile:
    """One run. Methods return parts of the decision and change nothing but `steps` and `memory` of the run."""

    def __init__(self, snapshot: Snapshot, policy: CompactionPolicy) -> None:
        self.snapshot = replace(snapshot, memory=fleet.corrected(snapshot.memory, policy.metadata.generation))
        self.policy = policy
        self.now = snapshot.now
        self.uid = policy.metadata.uid
        self.memory = self.snapshot.memory
        logs = policy.spec.store.segment_logs
        self.root = logs.root if logs is not None else ""

    def decide(self) -> Decision:
        """The whole decision."""
        orphans = [deletion for view in self.snapshot.jobs if (deletion := orphaned(view, self.uid)) is not None]
        gone = {deletion.job.uid for deletion in orphans}
        steps = self._steps(view for view in self.snapshot.jobs if view.job.metadata.uid not in gone)
        self._remember(steps)
        obsolete = self._obsolete(steps)
        steps = tuple(step for step in steps if step.name not in {deletion.job.name for deletion in obsolete})
        workers = fleet.survey(
            self.snapshot,
            owner_uid=self.uid,
            held=Counter(s.status.worker or "" for s in steps if s.state is JobState.IN_PROGRESS),
            max_slots=self.policy.spec.workers.slots,
        )
        self._merge(workers.memory)
        assigned = Assigner(self.snapshot, self.policy, self.memory, root=self.root).assign(steps, workers)
        self.memory = assigned.memory
        steps = self._with_waits(steps)
        planned, deletions = self._plan(steps)
        totals = counting.count(self._totals(), steps)
        history = self._history(steps, deletions)
        quarantined = self._quarantined(steps)
        store_tasks = self._store_tasks(steps, quarantined)
        after = status.assemble(
            status.Facts(
                policy=self.policy,
                steps=_as_assigned(steps, assigned.likely),
                reading=self.snapshot.reading,
                memory=self.memory,
                now=self.now,
                totals=totals,
                quarantined=quarantined,
                created=len(planned.jobs) if planned is not None else 0,
                workers=workers.live,
                waits=assigned.waits,
                wait_message=assigned.message,
            )
        )
        write, gap = self._status_write(after)
        taken = {action.job.name for action in assigned.actions}
        return Decision(
            memory=self.memory,
            end_attempts=tuple(_ends(steps, taken)),
            stop_workers=workers.stops,
            forget_workers=workers.forgets,
            delete_leases=workers.delete_leases
            + tuple(DeleteLease(lease.identity) for lease in self.snapshot.stray_leases),
            delete_jobs=(*orphans, *obsolete, *deletions, *history),
            assignments=assigned.actions,
            create_jobs=replan.creations(planned, self.policy),
            launches=assigned.launches,
            store_tasks=store_tasks,
            policy_status=write,
            events=(*_step_events(steps), *workers.events, *self._events(after, planned)),
            requeue_after=soonest(
                assigned.seconds, workers.next_look, gap, self._next_expiry(steps), self._next_task(steps)
            ),
        )

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _steps(self, views: Iterable[JobView]) -> tuple[JobStep, ...]:
        gone = fleet.gone_workers(self.snapshot)
        rules = StepRules(max_attempts=self.policy.spec.limits.max_attempts, gone=gone.get, refuse=self._refuse)
        return tuple(take_step(view, rules, self.now) for view in views if not view.job.metadata.is_deleting)

    def _is_outside(self, log: str) -> bool:
        return not PurePosixPath(log).is_relative_to(self.root)

    def _refuse(self, job: CompactionJob) -> Refusal | None:
        """Why a job made by hand can never run; planned ones are deleted instead (`_obsolete`)."""
        sources = job.spec.sources.segment_log
        if sources is None or owner_uid(job):
            return None
        if self._is_outside(sources.path):
            message = f"{sources.path} is not below {self.root}, the root of policy {self.policy.metadata.name}"
            return Refusal(JobReason.OUTSIDE_ROOT, message)
        problem, reading = self.memory.claims.get(job.metadata.name), self._known_reading()
        if problem is None or not problem.terminal or reading is None:
            return None
        # Only a look after the failure tells a log that is gone from a store that is not mounted just now.
        gone = sources.path not in reading.logs and reading.started >= problem.since
        return Refusal(JobReason.NOT_A_LOG, problem.message) if gone else None

    def _known_reading(self) -> Reading | None:
        """The last look, if it was made with this spec and the root could be read."""
        reading = self.snapshot.reading
        if reading is None or reading.problem is not None or reading.generation != self.policy.metadata.generation:
            return None
        return reading

    def _obsolete(self, steps: Iterable[JobStep]) -> list[DeleteJob]:
        """Planned jobs that nobody is working on, for a log that is no longer there, or no longer below the policy's
        root.
        """
        reading = self._known_reading()
        deletions = []
        for step in steps:
            if step.state not in (JobState.UNASSIGNED, JobState.ABANDONED) or not owner_uid(step.view.job):
                continue
            if self._is_outside(step.log):
                deletions.append(_delete(step, "the policy's root was changed"))
            elif reading is not None and step.log not in reading.logs:
                deletions.append(_delete(step, "its log is not among the policy's logs any more"))
        return deletions

    def _remember(self, steps: Iterable[JobStep]) -> None:
        """Logs whose job has just ended: what was read of them before is outdated."""
        ended = {step.log: self.now.monotonic for step in steps if step.finished_now}
        if ended:
            self.memory = replace(self.memory, finished=frozen({**self.memory.finished, **ended}))

    def _merge(self, memory: Memory) -> None:
        """Take what the survey of workers learned."""
        self.memory = replace(
            self.memory,
            launches=memory.launches,
            announced=memory.announced,
            stopping=memory.stopping,
            launch_failures=memory.launch_failures,
            launch_error=memory.launch_error,
            launch_not_before=memory.launch_not_before,
        )

    def _with_waits(self, steps: tuple[JobStep, ...]) -> tuple[JobStep, ...]:
        """Jobs whose claim the store refused say so themselves; other waits are in the policy's status."""
        result = []
        for step in steps:
            problem = self.memory.claims.get(step.name)
            waiting = step.status.waiting
            if problem is not None and step.state in (JobState.UNASSIGNED, JobState.ABANDONED):
                if waiting is None or waiting.reason != problem.reason:
                    said = Waiting(reason=problem.reason, message=problem.message, since=self.now.time)
                    step = replace(step, status=evolve(step.status, waiting=said))
            elif waiting is not None and waiting.reason == WaitReason.POLICY_NOT_FOUND:
                step = replace(step, status=evolve(step.status, waiting=None))
            result.append(step)
        return tuple(result)

    # -- planning and forgetting --------------------------------------------------------------------------------------

    def _plan(self, steps: tuple[JobStep, ...]) -> tuple[Plan | None, tuple[DeleteJob, ...]]:
        planned, self.memory = replan.plan_again(self.snapshot, self.policy, steps, self.memory)
        if planned is None:
            return None, ()
        by_name = {step.name: step for step in steps}
        deletions = [_delete(by_name[name], "evicted from a full queue") for name in planned.evict]
        self.memory = replan.evicted(self.memory, planned.evict, self.now)
        return planned, tuple(deletions)

    def _history(self, steps: tuple[JobStep, ...], deletions: tuple[DeleteJob, ...]) -> tuple[DeleteJob, ...]:
        spec = self.policy.spec
        deleted = {deletion.job.name for deletion in deletions}
        surplus = counting.beyond_history(
            steps,
            succeeded_limit=spec.successful_jobs_history_limit,
            failed_limit=spec.failed_jobs_history_limit,
            keep=replan.cooling(steps, float(spec.trigger.cooldown), now=self.now)
            | replan.split_records(steps, self.snapshot.reading),
        )
        persisted = self.policy.status.counted
        forgotten = [s for s in surplus if s.name not in deleted and counting.deletable(s, persisted) and not s.changed]
        self.memory = replan.evicted(self.memory, [s.name for s in forgotten if s.state is JobState.FAULTY], self.now)
        return tuple(_delete(step, "beyond the history limit") for step in forgotten)

    def _totals(self) -> counting.Totals:
        before = self.policy.status
        return counting.Totals(before.counted, before.succeeded, before.bytes_reclaimed)

    def _quarantined(self, steps: Iterable[JobStep]) -> tuple[QuarantinedSource, ...]:
        """Damage found by jobs that are not in the totals yet: so a crash between the two writes loses none."""
        known = {(entry.job, entry.uid) for entry in self.policy.status.counted}
        found = [
            (step.log, source)
            for step in counting.finished_order(steps)
            if (step.name, step.view.identity.uid) not in known
            for source in step.status.skipped
        ]
        return quarantine.updated(
            self.policy.status.quarantined, found=found, reading=self.snapshot.reading, now=self.now
        )

    # -- the store ----------------------------------------------------------------------------------------------------

    def _store_tasks(
        self, steps: Iterable[JobStep], quarantined: Iterable[QuarantinedSource]
    ) -> tuple[RunStoreTask, ...]:
        tasks = []
        running = [step for step in steps if step.state is JobState.IN_PROGRESS]
        if not self.memory.sense_running and self._sense_in() <= 0:
            busy = frozenset(step.log for step in running)
            tasks.append(RunStoreTask(StoreTask.SENSE, quarantined=quarantine.by_log(quarantined), busy=busy))
            self.memory = replace(self.memory, sense_running=True)
        due = self.memory.sweep_due
        if not self.memory.sweep_running and due is not None and due <= self.now.monotonic:
            active = frozenset((step.name, token_of(step.status)) for step in running)
            tasks.append(RunStoreTask(StoreTask.SWEEP, active=active))
            self.memory = replace(self.memory, sweep_running=True)
        return tuple(tasks)

    def _sense_in(self) -> float:
        """Seconds until the store is looked at again: the interval, or soon after a job has changed it."""
        reading, spec = self.snapshot.reading, self.policy.spec
        if reading is None or reading.generation != self.policy.metadata.generation:
            return 0.0
        due = reading.started + float(spec.trigger.interval)
        if any(at >= reading.started for at in self.memory.finished.values()):
            due = min(due, reading.ended + max(0.5, 3 * (reading.ended - reading.started)))
        return due - self.now.monotonic

    def _next_task(self, steps: Iterable[JobStep]) -> float | None:
        moments: list[float] = []
        if not self.memory.sense_running:
            moments.append(max(0.0, self._sense_in()))
        if not self.memory.sweep_running and self.memory.sweep_due is not None:
            moments.append(max(0.0, self.memory.sweep_due - self.now.monotonic))
        return min(moments, default=None)

    # -- status -------------------------------------------------------------------------------------------------------

    def _status_write(self, after: CompactionPolicyStatus) -> tuple[WritePolicyStatus | None, float | None]:
        gap = status.write_gap(self.policy.status, after)
        if gap is None:
            return None, None
        left = self.memory.status_written_at + gap - self.now.monotonic
        if left > 0:
            return None, left
        self.memory = replace(self.memory, status_written_at=self.now.monotonic)
        meta = self.policy.metadata
        return WritePolicyStatus(Identity(meta.name, meta.uid, meta.resource_version), after), None

    def _next_expiry(self, steps: Iterable[JobStep]) -> float | None:
        left = [
            max(0.05, step.lease.duration - step.lease.silence)
            for step in steps
            if step.state is JobState.IN_PROGRESS and step.lease is not None
        ]
        return min(left, default=None)

    def _events(self, after: CompactionPolicyStatus, planned: Plan | None) -> list[Announce]:
        events = []
        if planned is not None and planned.jobs:
            gain, cost = format_bytes(planned.gain_bytes), format_bytes(planned.cost_bytes)
            message = f"{plural(len(planned.jobs), 'job')} planned ({planned.hash}): copy {cost}, give back {gain}"
            events.append(Announce("Planned", message))
        known = {(entry.log, entry.segment) for entry in self.policy.status.quarantined}
        for entry in after.quarantined:
            if (entry.log, entry.segment) not in known:
                where = f"{entry.log}/{entry.segment}"
                events.append(Announce("Quarantined", f"{where} is set aside: {entry.message}", warning=True))
        return events


def _ends(steps: Iterable[JobStep], taken: set[str]) -> Iterable[EndAttempt]:
    """The writes of all steps but those that an assignment carries along (one write instead of two)."""
    for step in steps:
        action = step.action()
        if action is not None and step.name not in taken:
            yield action


def _as_assigned(steps: tuple[JobStep, ...], actions: tuple[AssignJob, ...]) -> tuple[JobStep, ...]:
    """The steps as the status should count them once the assignments are carried out."""
    taken = {action.job.name for action in actions}
    return tuple(
        replace(step, status=step.status.model_copy(update={"state": JobState.IN_PROGRESS}))
        if step.name in taken
        else step
        for step in steps
    )


def _delete(step: JobStep, reason: str) -> DeleteJob:
    lease = step.view.lease.identity if step.view.lease is not None else None
    return DeleteJob(step.view.identity, step.log, reason, lease)


def _step_events(steps: Iterable[JobStep]) -> list[Announce]:
    """Events of the steps, each on its job. One for a job that goes well: writes per job are bounded (DESIGN §7.6)."""
    events = [event for step in steps for event in step.events]
    events += [_succeeded(step) for step in steps if step.finished_now and step.state is JobState.SUCCEEDED]
    return events


def _succeeded(step: JobStep) -> Announce:
    receipt = step.status.receipt
    what = "nothing was left to do"
    if receipt is not None:
        freed = format_bytes(receipt.bytes_reclaimed)
        what = f"{plural(receipt.groups_committed, 'group')} committed with token {receipt.token}, {freed} reclaimed"
    return Announce("Succeeded", what, job=step.view.identity)
