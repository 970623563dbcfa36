"""Jobs that end without their work: refused, futile, evicted, or left when their policy is gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import AttemptOutcome, JobReason, JobState, WaitReason
from compaction.api.job.job import CompactionJob
from compaction.api.names import POLICY_KIND
from compaction.api.policy.policy import CompactionPolicy, QuarantinedSource, parked_for
from compaction.api.policy.policy_status import CompactionPolicyStatus, EvictedJob, WaitStatus
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile.actions import Decision, DeleteJob, DeleteLease, EndAttempt, ForgetWorker, StopWorker
from compaction.core.reconcile.jobs.job import Ending, ended, evolve, is_finished, parts_of, state_of
from compaction.core.reconcile.jobs.steps import JobRefusal, JobStep
from compaction.core.reconcile.observations import (
    JobView,
    LimitDemand,
    Memory,
    Moment,
    PlanMemory,
    PolicySnapshot,
    WorkerMemory,
    frozen,
)
from compaction.core.reconcile.workers.fleet import STOP_GRACE, holding
from compaction.registry import kind_of, kind_of_job

# Remains of a policy that is gone: its workers stop, its jobs and Leases go; jobs made by hand stay and wait.
#
# There may be no garbage collector (the local control plane has none), so this is ours to do. Orphans are recognized
# by the UID of their owner, so the children of a policy's namesake are safe.

LOOK_AGAIN = 2.0
POLICY_DELETED = "the policy was deleted"


def owner_uid(job: CompactionJob) -> str:
    """The uid of the policy that made the job; "" for a job made by hand."""
    owner = job.metadata.controller
    return owner.uid if owner is not None and owner.kind == POLICY_KIND else ""


def orphaned(view: JobView, policy_uid: str) -> DeleteJob | None:
    """The deletion of a job whose owner is not the policy that exists now."""
    uid = owner_uid(view.job)
    if not uid or uid == policy_uid:
        return None
    lease = view.lease.identity if view.lease is not None else None
    return DeleteJob(view.identity, view.job.spec.target, POLICY_DELETED, lease)


def tear_down(snapshot: PolicySnapshot) -> Decision:
    """The decision for a policy that does not exist, or is being deleted."""
    leases = {worker.name: worker for worker in snapshot.workers}
    stops = [StopWorker(worker.name, worker.identity, STOP_GRACE, POLICY_DELETED) for worker in snapshot.workers]
    running = [process for process in snapshot.processes if not process.ended]
    # Workers on their way have no Lease yet; one that is being stopped is not stopped again.
    stops += [
        StopWorker(process.name, None, STOP_GRACE, POLICY_DELETED)
        for process in running
        if process.name not in leases and process.name not in snapshot.memory.workers.stopping
    ]
    deletions, handmade = [], []
    for view in snapshot.jobs:
        deletion = orphaned(view, "")
        if deletion is not None:
            deletions.append(deletion)
        elif (action := _set_aside(view, snapshot)) is not None:
            handmade.append(action)
    return Decision(
        memory=Memory(workers=WorkerMemory(stopping=frozenset(process.name for process in running))),
        policy_absent=snapshot.policy is None,
        end_attempts=tuple(handmade),
        stop_workers=tuple(stops),
        forget_workers=tuple(ForgetWorker(process.name) for process in snapshot.processes if process.ended),
        delete_leases=tuple(DeleteLease(lease.identity) for lease in snapshot.stray_leases),
        delete_jobs=tuple(deletions),
        requeue_after=LOOK_AGAIN if stops or deletions or snapshot.processes else None,
        # What still runs counts against the operator's limits until it has ended.
        demand=LimitDemand(holds=holding(snapshot, ())),
    )


def _set_aside(view: JobView, snapshot: PolicySnapshot) -> EndAttempt | None:
    """A job made by hand waits for its policy to come (back)."""
    status, now = view.job.status, snapshot.now
    lease = view.lease.identity if view.lease is not None else None
    if is_finished(status):
        return EndAttempt(view.identity, None, lease) if lease is not None else None
    if state_of(status) is JobState.IN_PROGRESS:
        ending = Ending(AttemptOutcome.REVOKED, JobReason.REVOKED, POLICY_DELETED, charged=False)
        status = ended(
            status, ending, max_attempts=status.failures + 1, now=now, generation=view.job.metadata.generation
        )
    if status.waiting is None or status.waiting.reason != WaitReason.POLICY_NOT_FOUND:
        policy = view.job.spec.policy_ref.name
        message = f"there is no CompactionPolicy {policy} in namespace {snapshot.namespace}: create it"
        status = evolve(status, waiting=WaitStatus(reason=WaitReason.POLICY_NOT_FOUND, message=message, since=now.time))
    if status == view.job.status and lease is None:
        return None
    return EndAttempt(view.identity, status if status != view.job.status else None, lease)


# Jobs that can never run: refused when made by hand, deleted when planned; and what waiting jobs say of it.


class RefusedJobs:
    """The jobs that make no sense for this policy and its store, by the last scan. `reading` is that scan, if it was a
    good one with this spec.
    """

    def __init__(self, snapshot: PolicySnapshot, policy: CompactionPolicy) -> None:
        self._claims = snapshot.memory.claims
        self._policy = policy
        self.reading = _known(snapshot.reading, policy)
        self._kind = kind_of(policy.spec.store)

    def refuse(self, job: CompactionJob) -> JobRefusal | None:
        """Return the reason why a job made by hand can never run; planned ones are deleted instead (`obsolete`)."""
        if owner_uid(job):
            return None
        elsewhere = self._elsewhere(job)
        if elsewhere is not None:
            return elsewhere
        problem = self._claims.get(job.metadata.name)
        if problem is None or not problem.terminal or self.reading is None or self.reading.started < problem.since:
            return None
        # Only a scan after the failure tells sources that are gone from a store that is not mounted just now.
        name, spec = job.metadata.name, job.spec
        if self._kind.gone(name, spec, self.reading):
            return JobRefusal(JobReason.SOURCES_GONE, problem.message)
        wrong = self._kind.unclaimable(name, spec, self.reading)
        return JobRefusal(JobReason.INVALID_JOB, problem.message) if wrong else None

    def obsolete(self, steps: Iterable[JobStep]) -> list[DeleteJob]:
        """Planned jobs that no worker runs, for sources that are no longer there, or no longer of the policy's
        store.
        """
        deletions = []
        for step in steps:
            if step.state not in (JobState.UNASSIGNED, JobState.ABANDONED) or not owner_uid(step.view.job):
                continue
            if self._elsewhere(step.view.job) is not None:
                deletions.append(step.deletion("the policy's store was changed"))
            elif self.reading is not None and step.target not in self.reading.targets:
                deletions.append(step.deletion("what it was planned for is not in the policy's store any more"))
            elif self.reading is not None and step.name in self.reading.outdated:
                deletions.append(step.deletion("some of its sources are not in the store any more"))
        return deletions

    def outlived(self, steps: Iterable[JobStep]) -> frozenset[str]:
        """Planned jobs that are parked, for sources of which none is there any more: nothing can come of them, and what
        they waited for was done by others. One whose culprit is in quarantine stays as the record of it.
        """
        if self.reading is None or not self.reading.outdated:
            return frozenset()
        left = {candidate.target: candidate.sources for candidate in self.reading.candidates}
        return frozenset(
            step.name
            for step in steps
            if step.state is JobState.FAULTY
            and step.name in self.reading.outdated
            and owner_uid(step.view.job)
            and not step.status.skipped
            and left.get(step.target, frozenset()).isdisjoint(*parts_of(step.view.job).groups)
        )

    def _elsewhere(self, job: CompactionJob) -> JobRefusal | None:
        """Return the reason for which the job is not one of the policy's store, None when it is."""
        store, name = self._policy.spec.store, self._policy.metadata.name
        if kind_of_job(job.spec.kind) is not self._kind:
            return JobRefusal(
                JobReason.OTHER_STORE, f"policy {name} compacts {store.name}, which has no {job.spec.kind}"
            )
        why = self._kind.stranger(job.spec, store, name)
        return JobRefusal(JobReason.OTHER_STORE, why) if why else None


def _known(reading: ScanResult | None, policy: CompactionPolicy) -> ScanResult | None:
    """The last scan, if it was made with this spec and the store could be read."""
    if reading is None or reading.problem is not None or reading.generation != policy.metadata.generation:
        return None
    return reading


def with_waits(steps: tuple[JobStep, ...], memory: Memory, now: Moment) -> tuple[JobStep, ...]:
    """Jobs whose claim the store refused say so themselves; other waits are in the policy's status."""
    result = []
    for step in steps:
        problem = memory.claims.get(step.name)
        waiting = step.status.waiting
        if problem is not None and step.state in (JobState.UNASSIGNED, JobState.ABANDONED):
            if waiting is None or waiting.reason != problem.reason:
                said = WaitStatus(reason=problem.reason, message=problem.message, since=now.time)
                step = replace(step, status=evolve(step.status, waiting=said))
        elif waiting is not None and waiting.reason == WaitReason.POLICY_NOT_FOUND:
            step = replace(step, status=evolve(step.status, waiting=None))
        result.append(step)
    return tuple(result)


# Retries that cannot change anything: they are refused before anything starts, and leave the job's record alone.


def futile(
    job: CompactionJob, quarantined: Iterable[QuarantinedSource], reading: ScanResult | None = None
) -> str | None:
    """Return the reason for which another attempt of a parked job would end as the last one did, and what to do
    instead; "" when it may not. None when only a scan tells, and there is none.

    `quarantined`: sources of the job's policy. `reading`: a good scan of its store since the job ended.
    """
    reason, target = parked_for(job.status), job.spec.target
    if reason == JobReason.SOURCES_CHANGED:
        return "its sources are no longer what it was planned from, and what is left of them was planned again"
    damaged = {item.source for item in job.status.skipped}
    aside = [item for item in quarantined if item.target == target and item.source in damaged]
    if aside:
        return (
            f"{target}/{aside[0].source} is damaged and in quarantine: restore it, and its quarantine ends by itself; "
            "`kubectl compaction quarantine --release` has it tried again as it is"
        )
    if not owner_uid(job):
        return ""  # what a user created by hand need not be what a plan would have made of it
    if reading is None:
        return None
    if _is_gone(job, reading):
        return "the store does not offer its sources any more, and what is left of them is planned again"
    return ""


def _is_gone(job: CompactionJob, reading: ScanResult) -> bool:
    """Return whether no plan could make the job again from what the scan has found."""
    if job.metadata.name in reading.outdated:
        return True
    parts, target = parts_of(job), job.spec.target
    if parts.divisible or target in {problem.target for problem in reading.problems}:
        return False
    candidate = next((candidate for candidate in reading.candidates if candidate.target == target), None)
    return target not in reading.targets or (candidate is not None and not parts.is_offered(candidate))


# Jobs that were given up although their work is not done: for a while others go first.
#
# Remembered in status, too: were it forgotten with each restart, a queue smaller than the number of failing jobs
# would try the same few again and again, and the others never.

EVICTED_FOR: Final = 600.0
"""Seconds before what was evicted, or forgotten while Faulty, is planned again."""


def evictions_known(memory: PlanMemory, status: CompactionPolicyStatus, now: Moment) -> PlanMemory:
    """The memory with the evictions that still hold. None for longer than EVICTED_FOR, whatever clock wrote it."""
    found = memory.evicted
    if found is None:
        found = {item.job: item.until.timestamp() for item in status.evicted}
    latest = now.wall + EVICTED_FOR
    return replace(
        memory, evicted=frozen({name: min(until, latest) for name, until in found.items() if until > now.wall})
    )


def evictions_added(memory: PlanMemory, names: Iterable[str], now: Moment) -> PlanMemory:
    """The memory of jobs that are given up now."""
    new = dict.fromkeys(names, now.wall + EVICTED_FOR)
    return replace(memory, evicted=frozen({**(memory.evicted or {}), **new})) if new else memory


def eviction_rows(memory: PlanMemory) -> tuple[EvictedJob, ...]:
    """The evictions for the status, the newest last."""
    ordered = sorted((memory.evicted or {}).items(), key=lambda item: (item[1], item[0]))
    return tuple(EvictedJob(job=name, until=timestamp_from_epoch(until)) for name, until in ordered)
