"""What is left when a policy is gone: its workers stop, its jobs and Leases go; jobs made by hand stay and wait.

There may be no garbage collector (the local control plane has none), so this is ours to do. Orphans are recognized by
the UID of their owner, so the children of a policy's namesake are safe.
"""

from __future__ import annotations

from compaction.api.enums import AttemptOutcome, JobReason, JobState, WaitReason
from compaction.api.job.resource import CompactionJob
from compaction.api.names import POLICY_KIND
from compaction.api.policy.plan_status import WaitStatus
from compaction.core.reconcile.actions import Decision, DeleteJob, DeleteLease, EndAttempt, ForgetWorker, StopWorker
from compaction.core.reconcile.allowance import LimitDemand
from compaction.core.reconcile.jobs.job import Ending, ended, evolve, is_finished, state_of
from compaction.core.reconcile.memory import Memory, WorkerMemory
from compaction.core.reconcile.observations import JobView, PolicySnapshot
from compaction.core.reconcile.workers.fleet import holding
from compaction.core.reconcile.workers.launching import STOP_GRACE

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
