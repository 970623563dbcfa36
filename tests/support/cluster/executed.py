"""The ports of the coordinator's executor over the plain data of a world, with a place to die after every write."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from compaction.api.base import format_timestamp, timestamp_from_epoch
from compaction.api.job.job import CompactionJob, CompactionJobSpec, CompactionJobStatus
from compaction.api.names import API_VERSION, LABEL_PLAN, POLICY_KIND
from compaction.api.policy.policy import CompactionPolicyStatus
from compaction.core.reconcile.actions import (
    Announce,
    AssignJob,
    CreateJob,
    Decision,
    LaunchWorker,
    Premise,
    RaiseShare,
    StopWorker,
)
from compaction.core.reconcile.observations import Memory, Moment, OperatorIdentity
from compaction.errors import ApiUnavailableError, StaleTokenError
from compaction.kube.errors import LaunchError
from compaction.kube.executor.executor import Executor
from compaction.storage.adapter import StoreAdapter

if TYPE_CHECKING:
    from support.cluster.world import PlainCluster

LOOP: Final = asyncio.new_event_loop()
"""One for all worlds: they reconcile thousands of times, and `asyncio.Runner` sets a handler of SIGINT each time."""
atexit.register(LOOP.close)


class Crash(Exception):
    """The coordinator died."""


def carry_out(world: PlainCluster, decision: Decision) -> Memory:
    """The decision, carried out in the world; what the coordinator remembers then. Raises Crash."""
    now = Moment(world.wall, world.wall)
    executor = Executor(
        WorldObjects(world),
        WorldWorkers(world),
        store_of=lambda: cast("StoreAdapter", WorldStore(world)),
        now=now,
        in_thread=_at_once,
    )
    crashed = False
    try:
        LOOP.run_until_complete(executor.execute(decision))
    except* Crash:
        # Raised here, it would be in a group of its own with Python 3.11.2.
        crashed = True
    except* ApiUnavailableError:
        pass  # the coordinator's queue tries again
    if crashed:
        raise Crash
    return executor.outcome.remembered(world.memory, now=world.wall)


async def _at_once(call: Callable[..., Any], *arguments: Any) -> Any:
    return call(*arguments)


class WorldStore:
    """The part of a store adapter that the executor calls."""

    def __init__(self, world: PlainCluster) -> None:
        self._world = world

    def high_water(self, target: str, job: str) -> int:
        return self._world.logs[target].claimed.get(job, 0)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        log = self._world.logs[spec.target]
        if token <= log.claimed.get(job, 0):
            raise StaleTokenError(spec.target, job, token, log.claimed[job])
        log.claimed[job] = token
        log.retired.discard(job)
        self._world.wrote()

    def retire(self, target: str, job: str) -> None:
        if target in self._world.logs:
            self._world.logs[target].retired.add(job)
            self._world.wrote()


class WorldObjects:
    """Implements `kube.executor.executor.Objects`."""

    def __init__(self, world: PlainCluster) -> None:
        self._world = world
        self.stale = False

    async def policy_is_absent(self) -> bool:
        return self._world.policy is None

    async def holds(self, premise: Premise, job: OperatorIdentity) -> bool:
        return True

    def serves(self, worker: str) -> bool:
        return worker in self._world.workers and self._world.workers[worker].has_lease

    async def create_job(self, action: CreateJob) -> bool:
        world = self._world
        if not world.creation_works:
            raise ApiUnavailableError("creating a job: no answer")
        if action.name not in world.jobs:
            assert world.policy is not None
            owner = {"apiVersion": API_VERSION, "kind": POLICY_KIND, "name": "logs", "controller": True}
            metadata = {
                "name": action.name,
                "namespace": "ns",
                "uid": f"j{world.bump()}",
                "resourceVersion": str(world.version),
                "generation": 1,
                "creationTimestamp": format_timestamp(timestamp_from_epoch(world.wall)),
                "labels": {LABEL_PLAN: action.plan},
                "ownerReferences": [{**owner, "uid": world.policy.metadata.uid}],
            }
            world.jobs[action.name] = CompactionJob.from_object({"metadata": metadata, "spec": action.spec.to_object()})
            self._wrote()
        return True

    async def put_lease(self, action: AssignJob, token: int, now: Moment) -> bool:
        world, name = self._world, action.job.name
        if name in world.leases if action.lease is None else not world.lease_is_current(action.lease):
            self.stale = True
            return False
        world.put_lease(name, holder=action.worker, token=token, duration=float(action.duration))
        world.leases[name].bytes_per_second = action.bytes_per_second
        self._wrote()
        return True

    async def raise_share(self, action: RaiseShare) -> bool:
        world, name = self._world, action.lease.name
        if not world.lease_is_current(action.lease):
            self.stale = True
            return False
        lease = world.leases[name]
        lease.bytes_per_second, lease.version = action.bytes_per_second, int(world.bump())
        self._wrote()
        return True

    async def write_job_status(self, job: OperatorIdentity, status: CompactionJobStatus) -> bool:
        if not self._world.is_current(job):
            self.stale = True
            return False
        self._world.store_job(job.name, status)
        self._wrote()
        return True

    async def write_policy_status(self, policy: OperatorIdentity, status: CompactionPolicyStatus) -> bool:
        world = self._world
        if world.policy is None or world.policy.metadata.resource_version != policy.resource_version:
            self.stale = True
            return False
        metadata = world.policy.metadata.model_copy(update={"resource_version": world.bump()})
        world.policy = world.policy.model_copy(update={"status": status, "metadata": metadata})
        world.status_writes += 1
        world.wrote()
        return True

    async def delete_job(self, job: OperatorIdentity) -> None:
        if self._world.is_current(job):
            del self._world.jobs[job.name]
            self._world.deleted.append(job.name)
            self._world.wrote()

    async def delete_lease(self, lease: OperatorIdentity, *, any_version: bool = False) -> None:
        world = self._world
        known = world.leases.get(lease.name)
        if known is not None and (world.lease_is_current(lease) or (any_version and known.uid == lease.uid)):
            del world.leases[lease.name]
            self._wrote()
        elif lease.name in world.workers:
            world.workers[lease.name].has_lease = False
            world.wrote()

    def announce(self, event: Announce) -> None:
        self._world.events.append((event.reason, event.message))

    def _wrote(self) -> None:
        self._world.writes += 1
        self._world.wrote()


class WorldWorkers:
    """Implements `kube.executor.executor.Workers`."""

    def __init__(self, world: PlainCluster) -> None:
        self._world = world

    async def launch(self, action: LaunchWorker) -> str:
        world = self._world
        if not world.launch_works:
            raise LaunchError("the launcher refuses")
        world.start_worker(action.name, memory=action.memory, executor_memory=action.executor_memory)
        world.wrote()
        return ""

    def stop(self, action: StopWorker) -> None:
        if action.name in self._world.workers:
            self._world.workers[action.name].process = "ended"
            self._world.wrote()

    async def forget(self, name: str) -> None:
        self._world.workers.pop(name, None)
        self._world.wrote()
