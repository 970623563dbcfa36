"""The reconcile of one policy: a picture in, a decision out, or rest until something changes. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from compaction.api.enums import JobState
from compaction.api.job.job import CompactionJob
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus, QuarantinedSource, WaitCount
from compaction.api.text.printing import mark_of
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.planning.debt import debt_of
from compaction.core.planning.planner import Plan
from compaction.core.reconcile import preview, requests, store_work
from compaction.core.reconcile.actions import (
    Announce,
    AssignJob,
    Decision,
    DeleteJob,
    DeleteLease,
    EndAttempt,
    Rest,
    RunStoreTask,
    WritePolicyStatus,
)
from compaction.core.reconcile.jobs import counting, ending
from compaction.core.reconcile.jobs.ending import RefusedJobs, futile, orphaned, tear_down, with_waits
from compaction.core.reconcile.jobs.job import is_finished, token_of
from compaction.core.reconcile.jobs.steps import JobStep, StepRules, take_step
from compaction.core.reconcile.observations import Memory, OperatorIdentity, PolicySnapshot, frozen
from compaction.core.reconcile.planning import approval, replan
from compaction.core.reconcile.planning.approval import Release, is_pending
from compaction.core.reconcile.status import announcing, outbox, summary
from compaction.core.reconcile.status.summary import LAZY_GAP
from compaction.core.reconcile.timing import approved_hash, is_of_now, noted, pending_release, release_look, timing
from compaction.core.reconcile.workers import assigning, fleet
from compaction.core.reconcile.workers.assigning import Assigner, AssignmentResult, soonest
from compaction.core.reconcile.workers.fleet import skew_of
from compaction.registry import kind_of

# The idle state of a policy: nothing has to be decided again until something that it depends on changes.
#
# An idle policy costs its scans of the store and nothing else: no plan is created again from what was planned from,
# no status is put together to find out that it is the same. The rule is conservative. A policy that has a worker, a
# job in progress, a task in the store, or anything that ends by itself and that no plan has been made after, does not
# rest; and no policy is idle for longer than `LAZY_GAP`, after which the status gets the time of the last scan.

_END_BY_THEMSELVES: Final = frozenset({LeftOutReason.COOLDOWN.value, LeftOutReason.RECENTLY_EVICTED.value})
"""What was left out of a plan for these reasons is in a later one, though the store is the same."""


def rest_of(
    snapshot: PolicySnapshot,
    policy: CompactionPolicy,
    decision: Decision,
    *,
    steps: Sequence[JobStep],
    look: RunStoreTask,
    seconds: Sequence[float | None],
) -> Rest | None:
    """The rest after a decision; None when there is none. `seconds` until something changes by itself, looks and sweeps
    aside; `look` is how the store is scanned meanwhile.
    """
    memory, now, reading = decision.memory, snapshot.now, snapshot.reading
    if decision.acts or decision.store_tasks or decision.events or reading is None or snapshot.held_by:
        return None
    if requests.is_open(policy, memory) or preview.asked(policy, memory):
        return None
    if not (_is_idle(snapshot, memory, steps) and _is_planned_out(snapshot, policy, memory)):
        return None
    interval = float(policy.spec.trigger.interval)
    due = soonest(*seconds, store_work.next_sweep(snapshot, memory), LAZY_GAP)
    return Rest(
        look,
        look_at=now.monotonic + store_work.sense_in(snapshot, policy, memory),
        until=now.monotonic + (due if due is not None else LAZY_GAP),
        interval=interval,
        waits_since=store_work.waits_since(snapshot, policy, memory),
    )


def _is_idle(snapshot: PolicySnapshot, memory: Memory, steps: Sequence[JobStep]) -> bool:
    """No worker or task is at work for the policy, or about to be."""
    coming = memory.workers.launches or memory.planning.unmade.jobs
    busy = snapshot.workers or snapshot.processes or snapshot.stray_leases or coming
    running = any(step.state is JobState.IN_PROGRESS or step.lease is not None for step in steps)
    return not (busy or running or memory.store.sense_running or memory.store.sweep_running)


def _is_planned_out(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: Memory) -> bool:
    """Another plan from a scan that finds the same is the same: it was created from these very jobs, and what it left
    out does not become due by the clock.
    """
    reading = snapshot.reading
    if not is_of_now(reading, policy, memory) or reading.problem is not None:
        return False
    if memory.finished or memory.planning.evicted:
        return False
    plan = memory.planning.plan or policy.status.plan
    if plan is not None and is_pending(plan) and plan.hash == approved_hash(policy):
        return False
    if memory.planning.on_hold != (snapshot.hold is not None):
        return False
    planned = memory.planning.reading == reading.number
    if policy.spec.trigger.schedule is not None and not planned:
        return True  # a plan is made at its times, whatever looks find in between
    if plan is not None and any(row.reason in _END_BY_THEMSELVES for row in plan.left_out):
        return False
    return planned and memory.planning.jobs == snapshot.job_versions


# The reconcile of one policy: a picture in, a decision out. No I/O, no clock but the one passed in.
#
# Order: what happened to the jobs; which workers live; which jobs go to whom; whether another worker is started; what
# is planned again; what may be forgotten; when the store is scanned; and the status that says all this. The decision
# is a function of the picture alone, so a restart at any moment continues where the last coordinator was.


def reconcile(snapshot: PolicySnapshot) -> Decision:
    """Decide what to do for a policy and everything of it."""
    if snapshot.policy is None or snapshot.policy.metadata.is_deleting:
        return tear_down(snapshot)
    policy = snapshot.policy
    if snapshot.hold is not None:
        # On hold every policy is as if it were suspended; the words for it are others.
        policy = policy.model_copy(update={"spec": policy.spec.model_copy(update={"suspend": True})})
    return _Reconcile(snapshot, policy).decide()


class _Reconcile:
    """One run. Methods return parts of the decision and change nothing but `steps` and `memory` of the run."""

    def __init__(self, snapshot: PolicySnapshot, policy: CompactionPolicy) -> None:
        workers = fleet.corrected(snapshot.memory.workers, policy.metadata.generation)
        self.snapshot = replace(snapshot, memory=replace(snapshot.memory, workers=workers))
        self.policy = policy
        self.now = snapshot.now
        self.uid = policy.metadata.uid
        self.clock = timing(policy, self.snapshot.memory, self.now)
        planning = ending.evictions_known(self.snapshot.memory.planning, policy.status, self.now)
        memory = replace(self.snapshot.memory, planning=planning)
        memory = requests.refused(self.snapshot, policy, memory, self.clock)
        requested = requests.scans_asked_for(policy, memory)
        self.memory = noted(policy, memory, self.clock, self.now, requested=requested)
        self.kind = kind_of(policy.spec.store)
        self.release = Release(pending_release(policy), alone=self.kind.immutable_sources)
        self.refusals = RefusedJobs(self.snapshot, policy)

    def decide(self) -> Decision:
        """The whole decision."""
        steps, useless = self._steps()
        workers = self._workers(steps)
        assigned = Assigner(self.snapshot, self.policy, self.memory, clock=self.clock).assign(steps, workers)
        self.memory = assigned.memory
        steps = with_waits(steps, self.memory, self.now)
        quarantined = self._quarantined(steps)
        scheduled = self.memory
        planned, deletions = self._plan(steps, quarantined)
        totals = counting.count(self._totals(), steps)
        history = self._history(steps, deletions)
        existing = {step.name for step in steps}
        before, planning = self.snapshot.memory.planning, self.memory.planning
        created, planning = replan.creations(planned, self.policy, existing=existing, before=before, memory=planning)
        self.memory = replace(self.memory, planning=planning)
        self.memory = requests.answered(self.snapshot, self.policy, steps, self.memory, before=scheduled)
        raises, assigned, self.memory = assigning.raised_rates(
            assigned, steps, self.memory, jobs_to_come=bool(created), now=self.now.monotonic
        )
        # After the plan: a scan has to know the jobs that are about to be made, whose sources no other job may have.
        store_tasks, self.memory = store_work.start(
            self.snapshot,
            self.policy,
            self.memory,
            steps=steps,
            quarantined=quarantined,
            created=created,
            release=self.release,
        )
        previews, self.memory = preview.look_ahead(
            self.snapshot, self.memory, steps=steps, quarantined=quarantined, created=created
        )
        waiting = self._waits(
            {**assigned.waits, **announcing.waits_of_new_jobs(self.memory.planning.unmade.jobs)}, steps
        )
        # Last, because it says what all of the above has decided.
        after = self._status(steps, assigned, workers, totals, quarantined, waiting)
        if (sink := self.snapshot.sink) is not None:
            done = counting.finished_order(steps)
            after = outbox.recorded(self.policy.status, after, done, delivered=sink.delivered, now=self.now.time)
        write, gap = self._status_write(after)
        taken = {action.job.name for action in assigned.actions}
        # Jobs were assigned before a request was answered that lets some of them start: they are assigned next.
        now = 0.0 if requests.starts_jobs(scheduled, self.memory) else None
        clock = self.clock.next_change(self.now.wall)
        seconds = (now, assigned.seconds, workers.next_look, gap, _next_expiry(steps), clock)
        decision = Decision(
            memory=self.memory,
            end_attempts=tuple(_ends(steps, taken)),
            stop_workers=workers.stops,
            forget_workers=workers.forgets,
            delete_leases=workers.delete_leases
            + tuple(DeleteLease(lease.identity) for lease in self.snapshot.stray_leases),
            delete_jobs=(*useless, *deletions, *history),
            assignments=assigned.actions,
            raises=raises,
            create_jobs=created,
            launches=assigned.launches,
            store_tasks=(*store_tasks, *previews),
            policy_status=write,
            events=(*workers.events, *self._events(steps, planned)),
            demand=assigned.demand,
            requeue_after=soonest(*seconds, store_work.next_task(self.snapshot, self.policy, self.memory)),
        )
        look = store_work.look_of(self.policy, self.memory, steps=steps, quarantined=quarantined)
        return replace(
            decision,
            rest=rest_of(self.snapshot, self.policy, decision, steps=steps, look=look, seconds=seconds),
        )

    def _workers(self, steps: tuple[JobStep, ...]) -> fleet.Fleet:
        """The state of the fleet, and what it teaches."""
        workers = fleet.survey(
            self.snapshot,
            owner_uid=self.uid,
            held=Counter(s.status.worker or "" for s in steps if s.state is JobState.IN_PROGRESS),
            max_slots=self.policy.spec.workers.slots,
            settings=fleet.settings_of(self.policy.spec),
        )
        learned = fleet.memory_learned(self.snapshot, self.policy, workers.memory)
        raised = fleet.memory_announced(self.policy, workers.memory, learned)
        self.memory = replace(self.memory, workers=learned)
        return replace(workers, events=(*workers.events, *raised))

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _steps(self) -> tuple[tuple[JobStep, ...], tuple[DeleteJob, ...]]:
        """The jobs after their steps, without those that go: of a former policy, or of sources that are gone."""
        orphans = [deletion for view in self.snapshot.jobs if (deletion := orphaned(view, self.uid)) is not None]
        gone = {deletion.job.uid for deletion in orphans}
        rules = StepRules(
            max_attempts=self.policy.spec.limits.max_attempts,
            gone=fleet.gone_workers(self.snapshot).get,
            refuse=self.refusals.refuse,
            released=self._is_released,
            futile=self._futile,
        )
        views = [view for view in self.snapshot.jobs if view.job.metadata.uid not in gone]
        steps = tuple(take_step(view, rules, self.now) for view in views if not view.job.metadata.is_deleting)
        self._remember(steps)
        obsolete = self.refusals.obsolete(steps)
        names = {deletion.job.name for deletion in obsolete}
        return tuple(step for step in steps if step.name not in names), (*orphans, *obsolete)

    def _futile(self, job: CompactionJob) -> str | None:
        """Return the reason for which a retry of a parked job would change nothing; None until a scan tells."""
        refusal = self.refusals.refuse(job)
        if refusal is not None:
            return refusal.message
        reading, ended = self.refusals.reading, self.memory.finished.get(job.spec.target)
        if reading is not None and ended is not None and reading.started <= ended:
            reading = None
        return futile(job, self.policy.status.quarantined, reading)

    def _remember(self, steps: Iterable[JobStep]) -> None:
        """Targets whose job has just ended: what was read of them before is outdated."""
        ended = {step.target: self.now.monotonic for step in steps if step.finished_now}
        if ended:
            self.memory = replace(self.memory, finished=frozen({**self.memory.finished, **ended}))

    # -- planning and forgetting --------------------------------------------------------------------------------------

    def _plan(
        self, steps: tuple[JobStep, ...], quarantined: Sequence[QuarantinedSource]
    ) -> tuple[Plan | None, tuple[DeleteJob, ...]]:
        if self.snapshot.held_by:
            return None, ()
        owed = counting.owed(steps, quarantined, since=self.clock.anchor)
        planned, self.memory = replan.plan_again(self.snapshot, self.policy, steps, self.memory, self.clock, owed=owed)
        if planned is None:
            return None, ()
        by_name = {step.name: step for step in steps}
        deletions = [by_name[name].deletion("evicted from a full queue") for name in planned.evict]
        self._evicted(planned.evict)
        return planned, tuple(deletions)

    def _evicted(self, names: Iterable[str]) -> None:
        """Jobs that are given up now."""
        self.memory = replace(self.memory, planning=ending.evictions_added(self.memory.planning, names, self.now))

    def _waits(self, of_jobs: announcing.Waits, steps: tuple[JobStep, ...]) -> tuple[WaitCount, ...]:
        plan = self.memory.planning.plan or self.policy.status.plan
        unplanned = replan.unplanned(self.snapshot.reading, self.policy, steps)
        of_plans = announcing.waits_of_plans(self.policy, plan, self.clock, unplanned=unplanned)
        rows, self.memory = announcing.aged_waits(of_jobs, of_plans, self.policy, self.memory, self.now)
        return rows

    def _history(self, steps: tuple[JobStep, ...], deletions: tuple[DeleteJob, ...]) -> tuple[DeleteJob, ...]:
        spec = self.policy.spec
        deleted = {deletion.job.name for deletion in deletions}
        sink, unsent = self.snapshot.sink, frozenset[str]()
        if sink is not None:
            unsent = outbox.awaited(
                self.policy.status, steps, delivered=sink.delivered, patience=sink.patience, now=self.now.time
            )
        surplus = counting.beyond_history(
            steps,
            succeeded_limit=spec.successful_jobs_history_limit,
            failed_limit=spec.failed_jobs_history_limit,
            keep=replan.cooling(steps, float(spec.trigger.cooldown), now=self.now)
            | replan.split_records(steps, self.snapshot.reading)
            | unsent,
        )
        persisted = counting.by_job(self.policy.status.counted)
        forgotten = [s for s in surplus if s.name not in deleted and counting.deletable(s, persisted) and not s.changed]
        self._evicted([s.name for s in forgotten if s.state is JobState.FAULTY])
        outlived = self.refusals.outlived(steps) - deleted - {step.name for step in forgotten} - unsent
        done = [s for s in steps if s.name in outlived and counting.deletable(s, persisted) and not s.changed]
        return (
            *(step.deletion("beyond the history limit") for step in forgotten),
            *(step.deletion("its sources are not in the store any more") for step in done),
        )

    def _totals(self) -> counting.Totals:
        before = self.policy.status
        return counting.Totals(before.counted, before.succeeded, before.bytes_reclaimed, before.cost)

    def _quarantined(self, steps: Iterable[JobStep]) -> tuple[QuarantinedSource, ...]:
        """Damage found by jobs that are not in the totals yet: so a crash between the two writes loses none."""
        known = {(entry.job, entry.uid, entry.token) for entry in self.policy.status.counted}
        found = [
            (step.target, source)
            for step in counting.finished_order(steps)
            if (step.name, step.view.identity.uid, token_of(step.status)) not in known
            for source in step.status.skipped
        ]
        # A release is about what is listed: a job it has reopened may have found the same damage again by now.
        kept = [item for item in self.policy.status.quarantined if not self.release.names(item.target, item.source)]
        return approval.quarantine_updated(kept, found=found, reading=self.snapshot.reading, now=self.now)

    def _is_released(self, job: CompactionJob) -> bool:
        """Return whether the quarantine of one of the job's sources ends now. Where a source keeps its name when it is
        repaired, a plan would give the same name to the same job, so the parked one is tried again.
        """
        places = {(job.spec.target, skipped.source) for skipped in job.status.skipped}
        if any(self.release.names(*place) for place in places):
            return True
        status, reading = self.policy.status, self.snapshot.reading
        return self.kind.immutable_sources and not places.isdisjoint(
            approval.repaired_sources(status.quarantined, reading)
        )

    def _released(self, steps: Iterable[JobStep]) -> str:
        """The release that is done: not before the last of the jobs concerned was seen to be tried again."""
        waiting = any(is_finished(step.view.job.status) and self._is_released(step.view.job) for step in steps)
        before = self.policy.status.released
        value = self.release.value
        return mark_of(value) if value and not waiting else before

    def _events(self, steps: Iterable[JobStep], planned: Plan | None) -> list[Announce]:
        """Return the Events of the jobs and of the policy. A release is judged when it is first seen: what it lifts is
        gone from the status before it is done.
        """
        found = announcing.of_jobs(steps) + announcing.of_plan(planned)
        if (
            self.release.value
            and release_look(self.release.value) in self.memory.store.looks - self.snapshot.memory.store.looks
        ):
            found += announcing.of_release(self.release, self.policy.status, steps)
        return found

    # -- status -------------------------------------------------------------------------------------------------------

    def _status(
        self,
        steps: tuple[JobStep, ...],
        assigned: AssignmentResult,
        workers: fleet.Fleet,
        totals: counting.Totals,
        quarantined: tuple[QuarantinedSource, ...],
        waiting: tuple[WaitCount, ...],
    ) -> CompactionPolicyStatus:
        """The status as it should stand when all this is carried out."""
        return summary.assemble(
            summary.Facts(
                policy=self.policy,
                steps=_as_assigned(steps, assigned.likely),
                reading=self.snapshot.reading,
                memory=self.memory,
                now=self.now,
                totals=totals,
                quarantined=quarantined,
                created=len(self.memory.planning.unmade.jobs),
                workers=workers.live,
                worker_statuses=fleet.worker_statuses(self.snapshot),
                stuck=fleet.stuck_launches(workers.trouble),
                raised=fleet.memory_raised(self.policy, self.memory.workers),
                waits=waiting,
                clock=self.clock,
                granted=assigned.granted,
                released=self._released(steps),
                skew=skew_of(self.snapshot),
                held_by=self.snapshot.held_by,
                hold=self.snapshot.hold,
                defaulted=self.snapshot.defaulted,
                requests=requests.known(self.policy, self.memory),
                runs=counting.recorded(
                    self.policy.status.history,
                    (self._totals(), totals),
                    steps,
                    plan=self.memory.planning.plan or self.policy.status.plan,
                    unmade=self.memory.planning.unmade,
                    debt_bytes=self._debt_bytes(),
                    now=self.now,
                ),
            )
        )

    def _debt_bytes(self) -> int | None:
        # A scan that failed has no debt, which is not a debt of 0.
        reading = self.snapshot.reading
        return None if reading is None or reading.problem is not None else debt_of(reading).bytes

    def _status_write(self, after: CompactionPolicyStatus) -> tuple[WritePolicyStatus | None, float | None]:
        gap = summary.write_gap(self.policy.status, after)
        if gap is None:
            return None, None
        left = self.memory.status_written_at + gap - self.now.monotonic
        if left > 0:
            return None, left
        self.memory = replace(self.memory, status_written_at=self.now.monotonic)
        meta = self.policy.metadata
        events = (*announcing.of_policy(self.policy.status, after), *announcing.of_requests(self.policy.status, after))
        return WritePolicyStatus(OperatorIdentity(meta.name, meta.uid, meta.resource_version), after, events), None


def _next_expiry(steps: Iterable[JobStep]) -> float | None:
    left = [
        max(0.05, step.lease.duration - step.lease.silence)
        for step in steps
        if step.state is JobState.IN_PROGRESS and step.lease is not None
    ]
    return min(left, default=None)


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
