"""The objects and the workers of one policy on the API server, and the cache kept in step with its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import structlog

from compaction.api.enums import WaitReason
from compaction.api.job.job import CompactionJobStatus
from compaction.api.names import (
    ANNOTATION_BYTES_PER_SECOND,
    ANNOTATION_SLOTS,
    API_VERSION,
    COMPONENT_JOB,
    JOB_KIND,
    LABEL_PLAN,
    LABEL_WORKER,
    POLICY_KIND,
    child_labels,
)
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus
from compaction.core.reconcile.actions import (
    Announce,
    AssignJob,
    CreateJob,
    LaunchWorker,
    Premise,
    RaiseShare,
    StopWorker,
)
from compaction.core.reconcile.jobs.job import ClaimRefused
from compaction.core.reconcile.observations import Moment, OperatorIdentity
from compaction.errors import AlreadyExistsError, ApiUnavailableError, ConflictError, InvalidObjectError, NotFoundError
from compaction.kube.client.transport import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, Obj, Resource
from compaction.kube.executor.events import EventType
from compaction.kube.informer.cache import CacheKey, Delta, policy_of_lease
from compaction.kube.launchers.base import PodRequest, PolicyKey, WorkerRef, WorkerRequest
from compaction.kube.replica.runtime import Runtime
from compaction.leases.record import Lease, LeaseRecord
from compaction.registry import kind_of

# The objects of one policy on the API server, and the cache kept in step with what the API server answers.
#
# Implements `ports.Objects`. A write that meets another version takes that one into the cache. An object that is gone
# counts as deleted.

log = structlog.get_logger(__name__)


class ApiObjects:
    """Implements `ports.Objects`. `policy` is the object as it was seen, None when it does not exist. `observed` is
    called with every change that this brings into the cache.
    """

    def __init__(
        self, runtime: Runtime, key: CacheKey, policy: Obj | None, *, observed: Callable[[Resource, Delta], None]
    ) -> None:
        self._rt = runtime
        self._client = runtime.client
        self._key = key
        self._namespace = key.namespace
        self._policy = policy
        self._observed = observed
        self.stale = False

    # -- reads that confirm --------------------------------------------------------------------------------------------

    async def policy_is_absent(self) -> bool:
        """See `ports.Objects`."""
        return await self._refresh(COMPACTION_POLICIES, self._key.name) is None

    async def holds(self, premise: Premise, job: OperatorIdentity) -> bool:
        """See `ports.Objects`."""
        for seen in premise.unchanged:
            found = await self._refresh(LEASES, seen.name)
            if found is None or found["metadata"]["resourceVersion"] != seen.resource_version:
                self.stale = True
                return False
        # A job's Lease and its worker's are the job's, or the policy's.
        owners = (job.uid,) if self._policy is None else (job.uid, self._policy["metadata"]["uid"])
        return await self._leases_absent(premise.absent, owners=owners)

    def serves(self, worker: str) -> bool:
        """See `ports.Objects`: as the cache knows by now."""
        lease = self._rt.cache.leases.get(self._namespace, worker)
        return lease is not None and (lease["metadata"].get("annotations") or {}).get(ANNOTATION_SLOTS) != "0"

    async def _leases_absent(self, names: Iterable[str], *, owners: Collection[str]) -> bool:
        """Return whether a fresh read confirms that the Leases which a decision took for absent are so.

        A Lease that lost its labels never reaches the cache, however often it is read. One that `owners` (uids) created
        is deleted, so that its holder stops; one of another holder is not what the decision was about.
        """
        for name in names:
            found = await self._refresh(LEASES, name)
            if found is None:
                continue
            if self._is_visible(found):
                self.stale = True
                return False
            await self._delete_invisible(found, owners=owners)
        return True

    def _is_visible(self, lease: Obj) -> bool:
        """Return whether the cache knows a Lease as one of this policy's."""
        cached = self._rt.cache.leases.get(self._namespace, lease["metadata"]["name"])
        return cached is not None and self._key in policy_of_lease(cached)

    async def _delete_invisible(self, lease: Obj, *, owners: Collection[str]) -> bool:
        """Delete a Lease without our labels if one of `owners` (uids) created it; False when none did."""
        metadata = lease["metadata"]
        if not any(item.get("uid") in owners for item in metadata.get("ownerReferences") or ()):
            return False
        about = OperatorIdentity(metadata["name"], metadata["uid"], metadata["resourceVersion"])
        await self.delete_lease(about, any_version=True)
        return True

    # -- writes --------------------------------------------------------------------------------------------------------

    async def create_job(self, action: CreateJob) -> bool:
        """See `ports.Objects`."""
        if self._policy is None:
            return False
        body: Obj = {
            "metadata": {
                "name": action.name,
                "namespace": self._namespace,
                "labels": {**child_labels(policy=self._key.name, component=COMPONENT_JOB), LABEL_PLAN: action.plan},
                "ownerReferences": [_owner(POLICY_KIND, self._key.name, self._policy["metadata"]["uid"])],
            },
            "spec": action.spec.to_object(),
        }
        try:
            answer = await self._client.create(COMPACTION_JOBS, body)
        except AlreadyExistsError:
            # The name of a planned job is made of all that the job is: this is the same job, from an earlier try.
            await self._refresh(COMPACTION_JOBS, action.name)
            return True
        except InvalidObjectError as error:
            log.error("the API server refused a planned job", job=action.name, error=str(error))
            return False
        self._take(COMPACTION_JOBS, answer)
        return True

    async def put_lease(self, action: AssignJob, token: int, now: Moment) -> bool | ClaimRefused:
        """See `ports.Objects`."""
        known = action.lease
        body = self._lease_of(action, token, now).body()
        try:
            if known is None:
                answer = await self._client.create(LEASES, body)
            else:
                answer = await self._client.replace(LEASES, body)
        except AlreadyExistsError:
            return await self._name_taken(action)
        except (ConflictError, NotFoundError):
            await self._moved_on(LEASES, action.job.name)
            return False
        except ApiUnavailableError:
            # It may have happened. Unseen, the next decision would claim a larger token under a job that runs.
            await self._refresh(LEASES, action.job.name)
            raise
        self._take(LEASES, answer)
        return True

    def _lease_of(self, action: AssignJob, token: int, now: Moment) -> Lease:
        known, given = action.lease, action.bytes_per_second
        return Lease(
            name=action.job.name,
            namespace=self._namespace,
            record=LeaseRecord(action.worker, action.duration, token, acquire_time=now.time, renew_time=now.time),
            uid=known.uid if known is not None else None,
            resource_version=known.resource_version if known is not None else None,
            labels={**child_labels(policy=self._key.name, component=COMPONENT_JOB), LABEL_WORKER: action.worker},
            annotations={} if given is None else {ANNOTATION_BYTES_PER_SECOND: str(given)},
            owner_references=(_owner(JOB_KIND, action.job.name, action.job.uid),),
        )

    async def _name_taken(self, action: AssignJob) -> bool | ClaimRefused:
        """A Lease of the job's name that the snapshot did not have: the job's own, or another owner's for good."""
        name = action.job.name
        found = await self._refresh(LEASES, name)
        if found is None or self._is_visible(found):
            self.stale = True  # the cache had lagged
        elif await self._delete_invisible(found, owners=(action.job.uid,)):
            self.stale = True
        else:
            message = f"Lease {name} belongs to something else: delete it, or make the job under another name"
            return ClaimRefused(WaitReason.LEASE_NAME_TAKEN, message)
        return False

    async def raise_share(self, action: RaiseShare) -> bool:
        """See `ports.Objects`. A renewal of the worker's in between is a conflict: then it is decided again."""
        name = action.lease.name
        cached = self._rt.cache.leases.get(self._namespace, name)
        if cached is None or cached["metadata"]["resourceVersion"] != action.lease.resource_version:
            self.stale = True
            return False
        raised = Lease.parse(cached).annotate({ANNOTATION_BYTES_PER_SECOND: str(action.bytes_per_second)})
        try:
            answer = await self._client.replace(LEASES, raised.body())
        except (ConflictError, NotFoundError):
            await self._moved_on(LEASES, name)
            return False
        self._take(LEASES, answer)
        return True

    async def write_job_status(self, job: OperatorIdentity, status: CompactionJobStatus) -> bool:
        """See `ports.Objects`."""
        return await self._write_status(COMPACTION_JOBS, job, status.to_object())

    async def write_policy_status(self, policy: OperatorIdentity, status: CompactionPolicyStatus) -> bool:
        """See `ports.Objects`."""
        return await self._write_status(COMPACTION_POLICIES, policy, status.to_object())

    async def _write_status(self, resource: Resource, about: OperatorIdentity, status: Obj) -> bool:
        cached = self._rt.cache.store(resource).get(self._namespace, about.name)
        if cached is None or cached["metadata"]["resourceVersion"] != about.resource_version:
            self.stale = True
            return False
        try:
            answer = await self._client.replace_status(resource, {**cached, "status": status})
        except (ConflictError, NotFoundError):
            await self._moved_on(resource, about.name)
            return False
        self._take(resource, answer)
        return True

    async def delete_job(self, job: OperatorIdentity) -> None:
        """See `ports.Objects`."""
        await self._delete(COMPACTION_JOBS, job, any_version=False)

    async def delete_lease(self, lease: OperatorIdentity, *, any_version: bool = False) -> None:
        """See `ports.Objects`."""
        await self._delete(LEASES, lease, any_version=any_version)

    async def _delete(self, resource: Resource, about: OperatorIdentity, *, any_version: bool) -> None:
        version = None if any_version else about.resource_version
        try:
            await self._client.delete(
                resource, about.name, namespace=self._namespace, uid=about.uid, resource_version=version
            )
        except NotFoundError:
            # Deleted by an earlier try or by a user; the cache learns it below, before the watch says so.
            pass
        except ConflictError:
            # A later version, or a namesake: the reason for the deletion may not hold for it.
            await self._moved_on(resource, about.name)
            return
        cached = self._rt.cache.store(resource).get(self._namespace, about.name)
        if cached is not None and cached["metadata"]["uid"] == about.uid:
            self._drop(resource, cached)

    def announce(self, event: Announce) -> None:
        """See `ports.Objects`."""
        about = self._policy
        if event.job is not None:
            about = self._rt.cache.jobs.get(self._namespace, event.job.name)
        if about is not None:
            kind = EventType.WARNING if event.warning else EventType.NORMAL
            self._rt.events.event(about, reason=event.reason, message=event.message, type=kind)

    # -- the cache -----------------------------------------------------------------------------------------------------

    def _take(self, resource: Resource, body: Obj) -> None:
        """Put an answer of the API server into the cache: the watch will have nothing new to say about it."""
        delta = self._rt.cache.store(resource).upsert(body)
        if delta is not None:
            self._observed(resource, delta)

    def _drop(self, resource: Resource, body: Obj) -> None:
        """The object is gone."""
        delta = self._rt.cache.store(resource).remove(body)
        if delta is not None:
            self._observed(resource, delta)

    async def _refresh(self, resource: Resource, name: str) -> Obj | None:
        """Read an object into the cache; None when it does not exist."""
        try:
            body = await self._client.get(resource, name, namespace=self._namespace)
        except NotFoundError:
            cached = self._rt.cache.store(resource).get(self._namespace, name)
            if cached is not None:
                self._drop(resource, cached)
            return None
        self._take(resource, body)
        return body

    async def _moved_on(self, resource: Resource, name: str) -> None:
        """A write met another version: take that one in, and have it decided again."""
        self.stale = True
        await self._refresh(resource, name)


def _owner(kind: str, name: str, uid: str) -> dict[str, Any]:
    """An ownerReference to the object of ours that manages another."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


# The workers of one policy, started and stopped by a launcher. Implements `ports.Workers`.


class LaunchedWorkers:
    """Implements `ports.Workers`. Nothing is started, stopped or forgotten without being the leader at that moment.
    `policy` is None when it does not exist (any more).
    """

    def __init__(
        self,
        runtime: Runtime,
        key: CacheKey,
        policy: CompactionPolicy | None,
        *,
        in_background: Callable[[Awaitable[None]], None],
    ) -> None:
        self._rt = runtime
        self._key = PolicyKey(*key)
        self._policy = policy
        self._in_background = in_background

    async def launch(self, action: LaunchWorker) -> str:
        """See `ports.Workers`."""
        policy = self._policy
        if policy is None or not self._rt.is_leader():
            return ""
        workers = policy.spec.workers
        request = WorkerRequest(
            name=action.name,
            policy=self._key,
            slots=workers.slots,
            idle_seconds=workers.idle_seconds,
            lease_seconds=policy.spec.lease.duration_seconds,
            master=workers.spark_master,
            conf=workers.spark_conf,
            pod=pod_request(policy, memory=action.memory, executor_memory=action.executor_memory),
            secrets=kind_of(policy.spec.store).secrets(policy.spec.store),
        )
        made = await self._rt.launcher.launch(request)
        what = f" ({made.detail})" if made.detail else ""
        return f"{action.name}{what} was started with {workers.slots} slots"

    def stop(self, action: StopWorker) -> None:
        """See `ports.Workers`."""
        if self._rt.is_leader():
            log.info("worker is stopped", worker=action.name, why=action.reason)
            self._in_background(self._rt.launcher.stop(WorkerRef(action.name, self._key), grace=action.grace))

    async def forget(self, name: str) -> None:
        """See `ports.Workers`."""
        if self._rt.is_leader():
            await self._rt.launcher.forget(WorkerRef(name, self._key))


def pod_request(policy: CompactionPolicy, *, memory: int, executor_memory: int) -> PodRequest:
    """Return what the policy says about the pods of a worker whose driver gets `memory` bytes, and each executor its
    own.
    """
    return PodRequest(
        workers=policy.spec.workers,
        owner_uid=policy.metadata.uid,
        volume=kind_of(policy.spec.store).volume(policy.spec.store),
        memory=memory,
        executor_memory=executor_memory,
    )
