"""The workers of one policy, started and stopped by a launcher. Implements `ports.Workers`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from compaction.api.policy.resource import CompactionPolicy
from compaction.core.reconcile.actions import LaunchWorker, StopWorker
from compaction.kube.informer.cache import ObjectKey
from compaction.kube.launchers.base import PodRequest, PolicyKey, WorkerRef, WorkerRequest
from compaction.kube.replica.runtime import Runtime
from compaction.registry import kind_of

log = structlog.get_logger(__name__)


class LaunchedWorkers:
    """Implements `ports.Workers`. Nothing is started, stopped or forgotten without being the leader at that moment.
    `policy` is None when it does not exist (any more).
    """

    def __init__(
        self,
        runtime: Runtime,
        key: ObjectKey,
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
    """What the policy says about the pods of a worker whose driver gets `memory` bytes, and each executor its own."""
    return PodRequest(
        workers=policy.spec.workers,
        owner_uid=policy.metadata.uid,
        volume=kind_of(policy.spec.store).volume(policy.spec.store),
        memory=memory,
        executor_memory=executor_memory,
    )
