"""Scans of the store of a policy and sweeps of it: in threads, a few at a time, one of each per policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from compaction.api.names import POLICY_KIND
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import RunStoreTask, StoreTask
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.observations import ScanResult
from compaction.kube.client.secrets import NamespaceSecrets
from compaction.kube.informer.cache import ObjectKey
from compaction.kube.metrics.measure import CleanupState
from compaction.kube.replica.runtime import Runtime
from compaction.kube.sensing.resting import Resting
from compaction.kube.sensing.scanning import NOT_SWEPT, request_of, scan, sweep
from compaction.storage.adapter import Sensed, StoreAdapter, Swept

log = structlog.get_logger(__name__)

STORE_TASKS: Final = 4
"""Looks and sweeps at a time, of all policies: asyncio has a thread more on the smallest machine, which claims need."""


@dataclass(slots=True)
class PolicyState:
    """What is kept per policy while it exists."""

    memory: Memory = field(default_factory=Memory)
    reading: ScanResult | None = None
    readings: int = 0
    store: StoreAdapter | None = None
    store_for: tuple[str, int] = ("", -1)
    cleanup: CleanupState = field(default_factory=CleanupState)
    resting: Resting | None = None
    stale: int = 0
    """How many times in a row a decision met a world that had moved on."""


def close(state: PolicyState) -> None:
    """Release the policy's store, which is not used again."""
    if state.store is not None:
        state.store.close()


class StoreTasks:
    """Opens stores and works on them. The loop is never blocked."""

    def __init__(self, *, open_store: Callable[..., StoreAdapter], monotonic: Callable[[], float]) -> None:
        self._open_store = open_store
        self._monotonic = monotonic
        self._threads = asyncio.Semaphore(STORE_TASKS)

    def open(self, state: PolicyState, policy: CompactionPolicy, runtime: Runtime) -> None:
        """The store as the current spec says; kept while the spec stays, for what it remembers."""
        wanted = (policy.metadata.uid, policy.metadata.generation)
        if state.store is None or state.store_for != wanted:
            close(state)
            user = f"{POLICY_KIND}/{policy.metadata.name}"
            secrets = NamespaceSecrets(runtime.client, policy.metadata.namespace, user, monotonic=self._monotonic)
            state.store = self._open_store(policy.spec, holder=f"coordinator {runtime.identity}", secrets=secrets)
            state.store_for = wanted

    async def run(
        self,
        runtime: Runtime,
        key: ObjectKey,
        state: PolicyState,
        task: RunStoreTask,
        policy: CompactionPolicy,
        *,
        asked: float,
    ) -> None:
        """A scan or a sweep in a thread; whatever happens, the policy may start the next one when it is due."""
        store = state.store
        assert store is not None, "opened before any store task"
        root = policy.spec.store.location
        try:
            async with self._threads:
                if task.task is StoreTask.SENSE:
                    state.readings += 1
                    request = request_of(task, state.readings, policy, asked=asked)
                    before = state.reading
                    sensed = await asyncio.to_thread(
                        scan, store, request, root=root, before=before, clock=self._monotonic
                    )
                    self._sensed(state, sensed, before)
                elif runtime.is_leader():
                    swept = await asyncio.to_thread(sweep, store, root=root, active=task.active)
                    self._swept(key, state, swept)
                    runtime.metrics.cleanup_bytes.labels(*key).inc(swept.bytes)
                else:
                    self._swept(key, state, NOT_SWEPT)
        finally:
            state.memory = store_work.ended(state.memory, task.task)
            runtime.queue.add(key)

    def _sensed(self, state: PolicyState, sensed: Sensed, before: ScanResult | None) -> None:
        """Take the result of a scan. An idle policy stays idle when the result is known already."""
        state.cleanup = replace(state.cleanup, overdue=sensed.overdue)
        now = self._monotonic()
        state.memory = store_work.scanned(state.memory, sweep_in=sensed.sweep_in, look_in=sensed.look_in, now=now)
        resting, found = state.resting, sensed.reading
        if resting is None or before is None or not found.says_the_same(before):
            state.reading, state.resting = found, None
            return
        # The number says what a plan was made from.
        state.reading = replace(before, started=found.started, ended=found.ended, wall=found.wall)
        state.resting = resting.after_look(state.reading, state.memory)

    def _swept(self, key: ObjectKey, state: PolicyState, swept: Swept) -> None:
        if swept.deleted:
            log.info("replaced data deleted", policy=str(key), names=swept.deleted, bytes=swept.bytes)
        for problem in swept.problems:
            log.warning("a target could not be swept", policy=str(key), target=problem.target, error=problem.message)
        state.cleanup = replace(state.cleanup, problems=len(swept.problems))
        state.memory = store_work.swept(state.memory, sweep_in=swept.sweep_in, now=self._monotonic())
