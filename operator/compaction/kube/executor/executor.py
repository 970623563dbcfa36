"""Carries out decisions: the only place where the coordinator writes, in a cluster and in one process alike.

Invariants:

* every write names the version it was decided on; after a conflict the policy's snapshot is taken again, and nothing
  that depended on the failed write is done;
* an assignment is made in the order token, claim in the store, Lease, status: a crash after the claim costs a token,
  one after the Lease is adopted by the next reconcile, and no order of events lets two tokens commit;
* a job is fenced off in its store before its object is deleted: nothing else would remember its attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import structlog

from compaction.api.enums import AttemptOutcome, WaitReason
from compaction.api.job.job import CompactionJobStatus
from compaction.api.job.job_status import AttemptStatus
from compaction.api.policy.policy import CompactionPolicyStatus
from compaction.core.reconcile.actions import (
    Announce,
    AssignJob,
    CreateJob,
    Decision,
    DeleteJob,
    DeleteLease,
    EndAttempt,
    LaunchWorker,
    Premise,
    RaiseShare,
    StopWorker,
    WritePolicyStatus,
)
from compaction.core.reconcile.jobs.job import ClaimRefused, assigned, learned, token_of
from compaction.core.reconcile.observations import Memory, Moment, OperatorIdentity
from compaction.core.reconcile.workers.fleet import launch_failed
from compaction.errors import ApiError, ClaimRefusal, ClaimRefusedError, CompactionError, StaleTokenError
from compaction.kube.errors import LaunchError, LaunchUncertainError
from compaction.leases.record import next_token
from compaction.storage.adapter import StoreAdapter

# The result of carrying out a decision, and the coordinator's memory of it.


@dataclass(slots=True)
class ExecutionResult:
    """The result of carrying out a decision. `stale`: something had changed, decide again at once.

    `claims` are jobs whose claim was refused, `claimed` those whose claim the store accepted; `failed_jobs` are jobs
    whose write did not happen. `launch_errors` are messages; `not_launched` are the workers that were certainly not
    started.
    """

    stale: bool = False
    plan_failed: bool = False
    status_failed: bool = False
    claims: dict[str, ClaimRefused] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    launch_errors: list[str] = field(default_factory=list)
    not_launched: set[str] = field(default_factory=set)
    failed_jobs: set[str] = field(default_factory=set)

    def remembered(self, memory: Memory, *, now: float) -> Memory:
        """The memory with refused claims, failed launches, and writes that have to be made again. `now`: monotonic."""
        memory = learned(memory, refused=self.claims, claimed=self.claimed, now=now)
        for message in self.launch_errors:
            workers = launch_failed(memory.workers, message, now, names=self.not_launched)
            memory = replace(memory, workers=workers)
        if self.plan_failed:
            memory = replace(memory, planning=replace(memory.planning, reading=-1))
        if self.status_failed:
            memory = replace(memory, status_written_at=-1e9)
        return memory


# Ports through which the executor writes: the objects of one policy, and its workers.
#
# Two implementations each: the API server and a launcher (`api.py`, `workers.py`), and the memory of one process
# (`local/run`). The order of the steps, and with it what a crash between two of them can do, is the executor's alone.
#
# Every write names the version that it was decided on. A write that finds another version is not made and sets
# `stale`: the decision has to be made again from a fresh snapshot. A write either took effect or raised;
# `ApiUnavailableError` means that it may have.


class PolicyObjects(Protocol):
    """The policy, its jobs and their Leases."""

    @property
    def stale(self) -> bool:
        """Return whether a read or a write met another version than the decision was made from."""
        ...

    async def policy_is_absent(self) -> bool:
        """Return whether a fresh read finds no such policy."""
        ...

    async def holds(self, premise: Premise, job: OperatorIdentity) -> bool:
        """Return whether fresh reads confirm what a decision about a job depends on."""
        ...

    def serves(self, worker: str) -> bool:
        """Return whether a worker still takes jobs."""
        ...

    async def create_job(self, action: CreateJob) -> bool:
        """Create a job; one of that name stays as it is. False: the object was refused, and would be again."""
        ...

    async def put_lease(self, action: AssignJob, token: int, now: Moment) -> bool | ClaimRefused:
        """Create the job's Lease, or take over the one that the decision knows. False: it is another one by now."""
        ...

    async def raise_share(self, action: RaiseShare) -> bool:
        """Write the share of a running attempt on its Lease. False: the Lease has another version, or is gone."""
        ...

    async def write_job_status(self, job: OperatorIdentity, status: CompactionJobStatus) -> bool:
        """False: the job has another version, or is gone."""
        ...

    async def write_policy_status(self, policy: OperatorIdentity, status: CompactionPolicyStatus) -> bool:
        """False: the policy has another version, or is gone."""
        ...

    async def delete_job(self, job: OperatorIdentity) -> None:
        """Delete a job of that version."""
        ...

    async def delete_lease(self, lease: OperatorIdentity, *, any_version: bool = False) -> None:
        """Delete the Lease of a job or a worker, if it is still that one."""
        ...

    def announce(self, event: Announce) -> None:
        """Publish an Event. Never fails."""
        ...


class PolicyWorkers(Protocol):
    """The workers of the policy."""

    async def launch(self, action: LaunchWorker) -> str:
        """Start a worker; what to announce about it, "" when this process may start none (any more).

        Raises:
            LaunchUncertainError: it may have been started.
            LaunchError: it was not.
        """
        ...

    def stop(self, action: StopWorker) -> None:
        """Begin to stop a worker, whose Lease is deleted already."""
        ...

    async def forget(self, name: str) -> None:
        """Drop the records of a worker that has ended."""
        ...


# The steps that assign a job to a worker, in the order that makes every crash harmless.
#
# Token, claim in the store, Lease, status. A crash after the claim costs a token; one after the Lease is adopted by
# the next reconcile, because the Lease's token is larger than the status knows; and the store takes commits of the
# last claim only.

log = structlog.get_logger(__name__)

_WAITS = {
    ClaimRefusal.BUSY: WaitReason.TARGET_BUSY,
    ClaimRefusal.GONE: WaitReason.STORE_ERROR,
    ClaimRefusal.ERROR: WaitReason.STORE_ERROR,
}


class AssignmentSteps:
    """Assigns the jobs of one policy."""

    def __init__(
        self,
        objects: PolicyObjects,
        *,
        store_of: Callable[[], StoreAdapter | None],
        now: Moment,
        outcome: ExecutionResult,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._objects = objects
        self._store_of = store_of
        self._now = now
        self._in_thread = in_thread
        self._outcome = outcome

    async def assign(self, action: AssignJob) -> None:
        """Token, claim, Lease, status; stops where the world has moved on, with the reason in the outcome."""
        if not await self._steps(action):
            self._outcome.failed_jobs.add(action.job.name)

    async def _steps(self, action: AssignJob) -> bool:
        if not await self._objects.holds(action.premise, action.job):
            return False
        if not self._objects.serves(action.worker):
            # It has left since the snapshot was taken, as idle workers do: another one gets the job, with this token.
            self._outcome.stale = True
            return False
        token = await self._claim(action)
        if token is None or not await self._put_lease(action, token):
            return False
        status = assigned(
            action.status,
            token=token,
            worker=action.worker,
            now=self._now,
            generation=action.generation,
            bytes_per_second=action.bytes_per_second,
        )
        # Should this write fail, the Lease's larger token tells the next reconcile that the job is assigned.
        if not await self._objects.write_job_status(action.job, status):
            return False
        log.info("job assigned", job=action.job.name, token=token, worker=action.worker)
        return True

    async def _claim(self, action: AssignJob) -> int | None:
        """The new token, accepted by the store; None when the store refused, with the reason in the outcome."""
        store, name = self._store_of(), action.job.name
        if store is None:
            return None
        answer = await self._in_thread(claim, store, action)
        if isinstance(answer, ClaimRefused):
            self._outcome.claims[name] = answer
            return None
        if answer is None:
            self._outcome.stale = True  # another coordinator was here between the two calls
            return None
        self._outcome.claimed.add(name)
        return int(answer)

    async def _put_lease(self, action: AssignJob, token: int) -> bool:
        answer = await self._objects.put_lease(action, token, self._now)
        if isinstance(answer, ClaimRefused):
            self._outcome.claimed.discard(action.job.name)
            self._outcome.claims[action.job.name] = answer
            return False
        return answer


def claim(store: StoreAdapter, action: AssignJob) -> int | ClaimRefused | None:
    """The new token, accepted by the store; why the store refused; or None when another replica claimed in between.
    Blocks.
    """
    name = action.job.name
    try:
        known = store.high_water(action.spec.target, name)
        token = next_token(action.lease_token, token_of(action.status), known)
        store.claim(action.spec, job=name, token=token)
    except StaleTokenError:
        # The caller has the decision made again, from what the other replica has written.
        return None
    except ClaimRefusedError as error:
        gone = error.refusal is ClaimRefusal.GONE
        return ClaimRefused(error.wait or _WAITS[error.refusal], error.message, terminal=gone)
    except CompactionError as error:
        # An answer that did not come is no refusal: never terminal, so the job waits and is tried again.
        return ClaimRefused(WaitReason.STORE_ERROR, str(error))
    return token


PARALLEL_WRITES: Final = 16


class Executor:
    """Carries out one decision about one policy.

    Args:
        store_of: the policy's store; None when it cannot be opened. Calls of it run `in_thread`.
        now: the moment of the decision.
    """

    def __init__(
        self,
        objects: PolicyObjects,
        workers: PolicyWorkers,
        *,
        store_of: Callable[[], StoreAdapter | None],
        now: Moment,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._objects = objects
        self._workers = workers
        self._store_of = store_of
        self._in_thread = in_thread
        self._parallel = asyncio.Semaphore(PARALLEL_WRITES)
        self.outcome = ExecutionResult()
        self._assignments = AssignmentSteps(
            objects, store_of=store_of, now=now, outcome=self.outcome, in_thread=in_thread
        )

    async def execute(self, decision: Decision) -> ExecutionResult:
        """Do everything, in the order of `Decision`. API errors other than conflicts come out at the end."""
        if decision.policy_absent and not await self._objects.policy_is_absent():
            self.outcome.stale = True
            return self.outcome
        errors: list[ApiError] = []
        # Ends before beginnings, so that slots and places in the queue are free; in the order of the fields of
        # `Decision`.
        await self._each(decision.end_attempts, self._end_attempt, errors)
        await self._each(decision.stop_workers, self._stop_worker, errors)
        for forgotten in decision.forget_workers:
            await self._workers.forget(forgotten.name)
        await self._each(decision.delete_leases, self._delete_lease, errors)
        await self._each(decision.delete_jobs, self._delete_job, errors)
        await self._each(decision.assignments, self._assignments.assign, errors)
        await self._each(decision.raises, self._raise_share, errors)
        await self._each(decision.create_jobs, self._create_job, errors)
        for launch in decision.launches:
            await self._launch(launch)
        if decision.policy_status is not None:
            await self._each([decision.policy_status], self._write_policy_status, errors)
        for event in decision.events:
            self._announce(event)
        self.outcome.stale |= self._objects.stale
        if errors:
            raise errors[0]
        return self.outcome

    async def _each(
        self, actions: Iterable[Any], act: Callable[[Any], Awaitable[None]], errors: list[ApiError]
    ) -> None:
        async def one(action: Any) -> None:
            async with self._parallel:
                try:
                    await act(action)
                except ApiError as error:
                    # Raised at the end of the decision: one write that fails does not keep the others from being made.
                    errors.append(error)
                    self._note_failure(action)

        async with asyncio.TaskGroup() as group:
            for action in actions:
                group.create_task(one(action))

    def _note_failure(self, action: Any) -> None:
        match action:
            case CreateJob():
                self.outcome.plan_failed = True
            case WritePolicyStatus():
                self.outcome.status_failed = True
            case EndAttempt() | DeleteJob() | AssignJob():
                self.outcome.failed_jobs.add(action.job.name)
            case _:
                pass

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def _end_attempt(self, action: EndAttempt) -> None:
        if not await self._objects.holds(action.premise, action.job):
            self.outcome.failed_jobs.add(action.job.name)
            return
        if action.status is not None:
            if not await self._objects.write_job_status(action.job, action.status):
                self.outcome.failed_jobs.add(action.job.name)
                return
            if action.ended is not None:
                _log_end(action.job.name, action.status, action.ended)
        if action.lease is not None:
            await self._objects.delete_lease(action.lease)
        if action.retire:
            await self._retire(action.target, action.job.name)

    async def _retire(self, target: str, job: str) -> None:
        """Close the job in its target's fence. Failing is no harm: its commits still need the token it was assigned."""
        store = self._store_of()
        if store is None or not target:
            return
        try:
            await self._in_thread(store.retire, target, job)
        except CompactionError as error:
            log.warning("a job could not be closed in its target's fence", job=job, error=str(error))

    async def _delete_job(self, action: DeleteJob) -> None:
        await self._retire(action.target, action.job.name)
        await self._objects.delete_job(action.job)
        if action.lease is not None:
            await self._objects.delete_lease(action.lease, any_version=True)
        log.info("job deleted", job=action.job.name, why=action.reason)

    async def _delete_lease(self, action: DeleteLease) -> None:
        await self._objects.delete_lease(action.lease)

    async def _raise_share(self, action: RaiseShare) -> None:
        if await self._objects.raise_share(action):
            log.info("a job's share was raised", job=action.lease.name, bytes_per_second=action.bytes_per_second)

    async def _create_job(self, action: CreateJob) -> None:
        if not await self._objects.create_job(action):
            # Not raised: a repetition of the reconcile would be refused in the same way.
            self.outcome.plan_failed = True

    # -- workers -------------------------------------------------------------------------------------------------------

    async def _stop_worker(self, action: StopWorker) -> None:
        if action.lease is not None:
            # Whatever version it has: a worker that renews must stop as well.
            await self._objects.delete_lease(action.lease, any_version=True)
        self._workers.stop(action)

    async def _launch(self, action: LaunchWorker) -> None:
        try:
            message = await self._workers.launch(action)
        except LaunchError as error:
            self.outcome.launch_errors.append(str(error))
            # A launch without an answer may have happened: such a worker stays counted until the launcher has looked
            # for it.
            if not isinstance(error, LaunchUncertainError):
                self.outcome.not_launched.add(action.name)
            self._announce(Announce("LaunchFailed", str(error), warning=True))
            return
        if message:
            self._announce(Announce("WorkerLaunched", message))

    # -- policy --------------------------------------------------------------------------------------------------------

    async def _write_policy_status(self, action: WritePolicyStatus) -> None:
        if not await self._objects.write_policy_status(action.policy, action.status):
            self.outcome.status_failed = True
            return
        for event in action.events:
            said = log.warning if event.warning else log.info
            said("the policy's status has changed", reason=event.reason, message=event.message)
            self._announce(event)

    def _announce(self, event: Announce) -> None:
        if event.job is None or event.job.name not in self.outcome.failed_jobs:  # else it did not happen
            self._objects.announce(event)


def _log_end(job: str, status: CompactionJobStatus, attempt: AttemptStatus) -> None:
    """One line for the end of each attempt, beside that of its assignment; a warning unless the job succeeded."""
    write = log.info if attempt.outcome is AttemptOutcome.SUCCEEDED else log.warning
    write(
        "job attempt ended",
        job=job,
        token=attempt.token,
        worker=attempt.worker,
        outcome=attempt.outcome.value,
        reason=attempt.reason,
        message=attempt.message,
        state=status.state.value,
        bytes_reclaimed=status.receipt.bytes_reclaimed if status.receipt is not None else 0,
    )
