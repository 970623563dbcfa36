"""Scans and sweeps of the store of a policy in threads, one of each per policy, and policies that rest meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from compaction.api.names import POLICY_KIND
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicySpec
from compaction.core.planning.debt import ScanResult
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import Rest, RunStoreTask, StoreTask
from compaction.core.reconcile.observations import Allowance, Hold, Memory, PreviewScans, SinkView
from compaction.core.reconcile.store_work import pause
from compaction.kube.client.secrets import NamespaceSecrets
from compaction.kube.client.transport import Obj
from compaction.kube.informer.cache import CacheKey, ObjectCache
from compaction.kube.launchers.base import WorkerObservation
from compaction.kube.metrics.measure import CleanupState
from compaction.kube.replica.runtime import Runtime
from compaction.kube.scanning import NOT_SWEPT, preview, request_of, scan, sweep
from compaction.storage.adapter import Sensed, StoreAdapter, Swept

# Idle policies: what a decision to do nothing depends on, and when the store is scanned meanwhile.
#
# A key comes out of the queue for many reasons, most of which change nothing. As long as everything that the last
# decision saw is the same object, the decision is the same, and it is not made again.


@dataclass(frozen=True, slots=True)
class Seen:
    """The inputs of a decision besides the store and the clock. Objects in the cache are never changed in place."""

    policy: Obj | None
    jobs: tuple[Obj, ...]
    leases: tuple[Obj, ...]
    workers: tuple[WorkerObservation, ...]
    allowance: Allowance
    held_by: str
    hold: Hold | None
    sink: SinkView | None

    @classmethod
    def of(
        cls,
        cache: ObjectCache,
        key: CacheKey,
        *,
        workers: tuple[WorkerObservation, ...],
        allowance: Allowance,
        held_by: str,
        hold: Hold | None = None,
        sink: SinkView | None = None,
    ) -> Seen:
        """As it is now."""
        jobs, leases = tuple(cache.jobs_of(key)), tuple(cache.leases_of(key))
        return cls(cache.policies.get(*key), jobs, leases, workers, allowance, held_by, hold, sink)

    def is_same(self, other: Seen) -> bool:
        """Return whether nothing has changed since; bodies are compared by identity, as the cache keeps each version
        once.
        """
        return (
            self.policy is other.policy
            and len(self.jobs) == len(other.jobs)
            and len(self.leases) == len(other.leases)
            and all(item is two for item, two in zip(self.jobs, other.jobs, strict=True))
            and all(item is two for item, two in zip(self.leases, other.leases, strict=True))
            and self.workers == other.workers
            and self.allowance == other.allowance
            and self.held_by == other.held_by
            and self.hold == other.hold
            and self.sink == other.sink
        )


@dataclass(frozen=True, slots=True)
class Resting:
    """An idle period, and what it depends on."""

    rest: Rest
    seen: Seen

    def after_look(self, reading: ScanResult, memory: Memory) -> Resting:
        """The idle period after a scan that found nothing new."""
        rest = self.rest
        due = reading.started + pause(rest.interval, started=reading.started, waits_since=rest.waits_since)
        ends = [at for at in (rest.until, memory.store.sweep_due, memory.store.look_due) if at is not None]
        return replace(self, rest=replace(rest, look_at=due, until=min(ends)))


# Scans of the store of a policy and sweeps of it: in threads, a few at a time, one of each per policy.

log = structlog.get_logger(__name__)

STORE_TASKS: Final = 4
"""Looks and sweeps at a time, of all policies: asyncio has a thread more on the smallest machine, which claims need."""


@dataclass(slots=True)
class PolicyState:
    """The state that is kept for a policy while it exists."""

    memory: Memory = field(default_factory=Memory)
    reading: ScanResult | None = None
    readings: int = 0
    store: StoreAdapter | None = None
    store_for: tuple[str, int] = ("", -1)
    cleanup: CleanupState = field(default_factory=CleanupState)
    resting: Resting | None = None
    preview: PreviewScans | None = None
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
        # Of all policies one at a time: however many are asked for, three threads are left to what keeps stores small.
        self._previews = asyncio.Semaphore(1)

    def open(self, state: PolicyState, policy: CompactionPolicy, runtime: Runtime) -> None:
        """The store as the current spec says; kept while the spec stays, for what it remembers."""
        wanted = (policy.metadata.uid, policy.metadata.generation)
        if state.store is None or state.store_for != wanted:
            close(state)
            state.store = self._opener(policy, runtime)(policy.spec)
            state.store_for = wanted

    def _opener(self, policy: CompactionPolicy, runtime: Runtime) -> Callable[[CompactionPolicySpec], StoreAdapter]:
        """Opens stores with the Secrets that are for the policy."""
        user = f"{POLICY_KIND}/{policy.metadata.name}"
        secrets = NamespaceSecrets(runtime.client, policy.metadata.namespace, user, monotonic=self._monotonic)
        return lambda spec: self._open_store(spec, holder=f"coordinator {runtime.identity}", secrets=secrets)

    async def run(
        self,
        runtime: Runtime,
        key: CacheKey,
        state: PolicyState,
        task: RunStoreTask,
        policy: CompactionPolicy,
        *,
        asked: float,
    ) -> None:
        """A scan, a sweep or a preview in a thread; whatever happens, the policy may start the next one when it is
        due.
        """
        try:
            if task.task is StoreTask.PREVIEW:
                # In this order: a preview that waits for another one holds no thread.
                async with self._previews, self._threads:
                    opener = self._opener(policy, runtime)
                    state.preview = await asyncio.to_thread(
                        preview, opener, policy, task, asked=asked, clock=self._monotonic
                    )
            else:
                async with self._threads:
                    await self._scan_or_sweep(runtime, key, state, task, policy, asked=asked)
        finally:
            state.memory = store_work.ended(state.memory, task.task)
            runtime.queue.add(key)

    async def _scan_or_sweep(
        self,
        runtime: Runtime,
        key: CacheKey,
        state: PolicyState,
        task: RunStoreTask,
        policy: CompactionPolicy,
        *,
        asked: float,
    ) -> None:
        store, root = state.store, policy.spec.store.location
        assert store is not None, "opened before any store task"
        if task.task is StoreTask.SENSE:
            state.readings += 1
            request = request_of(task, state.readings, policy, asked=asked)
            before = state.reading
            sensed = await asyncio.to_thread(scan, store, request, root=root, before=before, clock=self._monotonic)
            self._sensed(state, sensed, before)
        elif runtime.is_leader():
            swept = await asyncio.to_thread(sweep, store, root=root, active=task.active)
            self._swept(key, state, swept)
            runtime.metrics.cleanup_bytes.labels(*key).inc(swept.bytes)
        else:
            self._swept(key, state, NOT_SWEPT)

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

    def _swept(self, key: CacheKey, state: PolicyState, swept: Swept) -> None:
        if swept.deleted:
            log.info("replaced data deleted", policy=str(key), names=swept.deleted, bytes=swept.bytes)
        for problem in swept.problems:
            log.warning("a target could not be swept", policy=str(key), target=problem.target, error=problem.message)
        state.cleanup = replace(state.cleanup, problems=len(swept.problems))
        state.memory = store_work.swept(state.memory, sweep_in=swept.sweep_in, now=self._monotonic())
