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
from typing import Any, Final

import structlog

from compaction.api.enums import AttemptOutcome
from compaction.api.job.resource import CompactionJobStatus
from compaction.api.job.status import AttemptStatus
from compaction.core.reconcile.actions import (
    Announce,
    AssignJob,
    CreateJob,
    Decision,
    DeleteJob,
    DeleteLease,
    EndAttempt,
    LaunchWorker,
    RaiseShare,
    StopWorker,
    WritePolicyStatus,
)
from compaction.core.reconcile.observations import Moment
from compaction.errors import ApiError, CompactionError
from compaction.kube.errors import LaunchError, LaunchUncertainError
from compaction.kube.executor.assign import AssignmentSteps
from compaction.kube.executor.outcome import ExecutionResult
from compaction.kube.executor.ports import PolicyObjects, PolicyWorkers
from compaction.storage.adapter import StoreAdapter

log = structlog.get_logger(__name__)

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
