"""Carries decisions out: the only place where the coordinator writes.

Invariants:

* every write names the version it was decided on; a conflict makes the policy's objects be read again, and nothing
  that depended on the failed write is done;
* an assignment is made in the order token, claim in the store, Lease, status: a crash after the claim costs a token,
  one after the Lease is adopted by the next reconcile, and no order of events lets two tokens commit;
* what the API server answers goes into the cache at once, so the next decision sees our own writes;
* nothing outside the API server is touched without being the leader at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import structlog

from compaction.api.enums import AttemptOutcome
from compaction.api.job.resource import CompactionJobStatus
from compaction.api.job.status import Attempt
from compaction.api.names import (
    COMPONENT_JOB,
    LABEL_PLAN,
    POLICY_KIND,
    child_labels,
)
from compaction.api.policy.resource import CompactionPolicy
from compaction.exceptions import (
    AlreadyExistsError,
    ApiError,
    CompactionError,
    InvalidObjectError,
    LaunchError,
    LaunchUncertainError,
)
from compaction.kinds.registry import kind_of
from compaction.kube.client.resources import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, Obj, Resource
from compaction.kube.executor.assign import AssignmentSteps, Outcome, owner
from compaction.kube.executor.events import EventType
from compaction.kube.executor.writes import GuardedWrites
from compaction.kube.informer.cache import Delta, ObjectKey
from compaction.kube.launchers.base import PodRequest, PolicyKey, WorkerRef, WorkerRequest
from compaction.kube.replica.runtime import Runtime
from compaction.reconcile.actions import (
    Announce,
    AssignJob,
    CreateJob,
    Decision,
    DeleteJob,
    EndAttempt,
    LaunchWorker,
    StopWorker,
    WritePolicyStatus,
)
from compaction.reconcile.observations import Identity, Moment
from compaction.stores.adapter import StoreAdapter

log = structlog.get_logger(__name__)

PARALLEL_WRITES: Final = 16


class Executor:
    """Executes the decisions about one policy. Created for every reconcile; holds nothing beyond it."""

    def __init__(
        self,
        runtime: Runtime,
        key: ObjectKey,
        *,
        policy: Obj | None,
        store_of: Callable[[], StoreAdapter | None],
        now: Moment,
        in_background: Callable[[Awaitable[None]], None],
        observed: Callable[[Resource, Delta], None],
    ) -> None:
        self._rt = runtime
        self._key = key
        self._api = GuardedWrites(runtime, key, observed=observed)
        self._policy = policy
        self._store_of = store_of
        self._now = now
        self._in_background = in_background
        self._parallel = asyncio.Semaphore(PARALLEL_WRITES)
        self.outcome = Outcome()
        self._assignments = AssignmentSteps(
            self._api, key, store_of=store_of, now=now, outcome=self.outcome, owners=self._owners
        )

    async def execute(self, decision: Decision, policy: CompactionPolicy | None) -> Outcome:
        """Do everything, in the order of `Decision`. API errors other than conflicts come out at the end."""
        if decision.policy_absent and not await self._api.is_absent(COMPACTION_POLICIES, self._key.name):
            self.outcome.stale = True
            return self.outcome
        errors: list[ApiError] = []
        # Ends before beginnings, so that slots and places in the queue are free; in the order of the fields of
        # `Decision`.
        await self._each(decision.end_attempts, self._end_attempt, errors)
        await self._each(decision.stop_workers, self._stop_worker, errors)
        for forgotten in decision.forget_workers:
            if self._rt.is_leader():
                await self._rt.launcher.forget(self._ref(forgotten.name))
        await self._each([one.lease for one in decision.delete_leases], self._delete_lease, errors)
        await self._each(decision.delete_jobs, self._delete_job, errors)
        await self._each(decision.assignments, self._assign, errors)
        await self._each(decision.create_jobs, self._create_job, errors)
        for launch in decision.launches:
            await self._launch(launch, policy)
        if decision.policy_status is not None:
            await self._each([decision.policy_status], self._write_policy_status, errors)
        for event in decision.events:
            self._announce(event)
        self.outcome.stale |= self._api.stale
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

    # -- API server --------------------------------------------------------------------------------------------------

    async def _delete_lease(self, lease: Identity) -> None:
        await self._api.delete(LEASES, lease)

    def _owners(self, job: Identity) -> tuple[str, ...]:
        """The uids of which a job's Lease and its worker's Lease may be."""
        return (job.uid,) if self._policy is None else (job.uid, self._policy["metadata"]["uid"])

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def _end_attempt(self, action: EndAttempt) -> None:
        if not await self._api.holds(action.premise, owners=self._owners(action.job)):
            self.outcome.failed_jobs.add(action.job.name)
            return
        if action.status is not None and not await self._assignments.write_status(action.job, action.status):
            return
        if action.ended is not None and action.status is not None:
            _log_end(action.job.name, action.status, action.ended)
        if action.lease is not None:
            await self._delete_lease(action.lease)
        if action.retire:
            await self._retire(action.target, action.job.name)

    async def _retire(self, target: str, job: str) -> None:
        """Close the job in its target's fence. Failing is no harm: its commits still need the token it was assigned."""
        store = self._store_of()
        if store is None or not target:
            return
        try:
            await asyncio.to_thread(store.retire, target, job)
        except CompactionError as error:
            log.warning("a job could not be closed in its target's fence", job=job, error=str(error))

    async def _delete_job(self, action: DeleteJob) -> None:
        # The fence first: once the job object is gone, nothing else would remember that its worker may still try to
        # commit.
        await self._retire(action.target, action.job.name)
        await self._api.delete(COMPACTION_JOBS, action.job)
        if action.lease is not None:
            await self._api.delete(LEASES, action.lease, any_version=True)
        log.info("job deleted", job=action.job.name, why=action.reason)

    async def _assign(self, action: AssignJob) -> None:
        await self._assignments.assign(action)

    async def _create_job(self, action: CreateJob) -> None:
        if self._policy is None:
            return
        body: Obj = {
            "metadata": {
                "name": action.name,
                "namespace": self._key.namespace,
                "labels": {**child_labels(policy=self._key.name, component=COMPONENT_JOB), LABEL_PLAN: action.plan},
                "ownerReferences": [owner(POLICY_KIND, self._key.name, self._policy["metadata"]["uid"])],
            },
            "spec": action.spec.to_object(),
        }
        try:
            answer = await self._rt.client.create(COMPACTION_JOBS, body)
        except AlreadyExistsError:
            await self._api.refresh(COMPACTION_JOBS, action.name)
            return
        except InvalidObjectError as error:
            # Not raised: a repetition of the reconcile would be refused in the same way.
            self.outcome.plan_failed = True
            log.error("the API server refused a planned job", job=action.name, error=str(error))
            return
        self._api.take(COMPACTION_JOBS, answer)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _ref(self, name: str) -> WorkerRef:
        return WorkerRef(name, PolicyKey(*self._key))

    async def _stop_worker(self, action: StopWorker) -> None:
        if action.lease is not None:
            # Whatever version it has: a worker that renews must stop as well.
            await self._api.delete(LEASES, action.lease, any_version=True)
        if self._rt.is_leader():
            log.info("worker is stopped", worker=action.name, why=action.reason)
            self._in_background(self._rt.launcher.stop(self._ref(action.name), grace=action.grace))

    async def _launch(self, action: LaunchWorker, policy: CompactionPolicy | None) -> None:
        if policy is None or not self._rt.is_leader():
            return
        workers = policy.spec.workers
        request = WorkerRequest(
            name=action.name,
            policy=PolicyKey(*self._key),
            slots=workers.slots,
            idle_seconds=workers.idle_seconds,
            lease_seconds=policy.spec.lease.duration_seconds,
            master=workers.spark_master,
            conf=workers.spark_conf,
            pod=pod_request(policy, memory=action.memory, executor_memory=action.executor_memory),
            secrets=kind_of(policy.spec.store).secrets(policy.spec.store),
        )
        try:
            made = await self._rt.launcher.launch(request)
        except LaunchError as error:
            self.outcome.launch_errors.append(str(error))
            # A launch without an answer may have happened: such a worker stays counted until the launcher has looked
            # for it.
            if not isinstance(error, LaunchUncertainError):
                self.outcome.not_launched.add(action.name)
            self._announce(Announce("LaunchFailed", str(error), warning=True))
            return
        what = f" ({made.detail})" if made.detail else ""
        self._announce(Announce("WorkerLaunched", f"{action.name}{what} was started with {workers.slots} slots"))

    # -- policy ------------------------------------------------------------------------------------------------------

    async def _write_policy_status(self, action: WritePolicyStatus) -> None:
        if not await self._api.write_status(COMPACTION_POLICIES, action.policy, action.status.to_object()):
            self.outcome.status_failed = True
            return
        for event in action.events:
            said = log.warning if event.warning else log.info
            said("the policy's status has changed", policy=str(self._key), reason=event.reason, message=event.message)
            self._announce(event)

    def _announce(self, event: Announce) -> None:
        about = self._policy
        if event.job is not None:
            if event.job.name in self.outcome.failed_jobs:
                return  # it did not happen
            about = self._rt.cache.jobs.get(self._key.namespace, event.job.name)
        if about is not None:
            kind = EventType.WARNING if event.warning else EventType.NORMAL
            self._rt.events.event(about, reason=event.reason, message=event.message, type=kind)


def pod_request(policy: CompactionPolicy, *, memory: int, executor_memory: int) -> PodRequest:
    """What the policy says about the pods of a worker whose driver gets `memory` bytes, and each executor its own."""
    return PodRequest(
        workers=policy.spec.workers,
        owner_uid=policy.metadata.uid,
        volume=kind_of(policy.spec.store).volume(policy.spec.store),
        memory=memory,
        executor_memory=executor_memory,
    )


def _log_end(job: str, status: CompactionJobStatus, attempt: Attempt) -> None:
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
