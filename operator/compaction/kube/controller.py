"""The controller of policies: takes the picture, lets `reconcile` decide, has the decision carried out, shares
limits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import structlog
from pydantic import ValidationError

from compaction.api.conditions import reason_since
from compaction.api.enums import PolicyReason
from compaction.api.events import EventSource, EventsStatus, PendingEvent
from compaction.api.job.job import CompactionJob
from compaction.api.names import POLICY_PLURAL
from compaction.api.policy.configuration import NO_DEFAULTS, PolicyDefaults, completed, flattened, taken
from compaction.api.policy.policy import CompactionPolicy, CompactionPolicyStatus
from compaction.api.policy.store import conditions_for
from compaction.core.reconcile import preview, store_work
from compaction.core.reconcile.actions import Decision
from compaction.core.reconcile.observations import (
    NO_ALLOWANCE,
    NO_LIMITS,
    Allowance,
    LimitDemand,
    Moment,
    OperatorLimits,
    PolicySnapshot,
    SinkView,
)
from compaction.core.reconcile.policy import reconcile
from compaction.core.reconcile.shared_limits import SharedLimits, waited_for_worker
from compaction.core.reconcile.status.announcing import of_standing
from compaction.core.reconcile.status.outbox import NO_EVENTS, standing
from compaction.errors import CompactionError
from compaction.kube.client.transport import COMPACTION_POLICIES, LEASES, Obj, Resource
from compaction.kube.executor.events import EventType
from compaction.kube.executor.executor import ExecutionResult, Executor
from compaction.kube.executor.policy_objects import ApiObjects, LaunchedWorkers
from compaction.kube.gather import (
    Overlaps,
    ParsedObjects,
    is_lease_of,
    is_worker,
    job_leases,
    job_views,
    observe_lease,
    worker_lease,
    worker_process,
)
from compaction.kube.informer.cache import CacheChange, CacheKey, Delta, key_of
from compaction.kube.informer.queue import AGAIN, stale_pause
from compaction.kube.launchers.base import WorkerObservation
from compaction.kube.metrics.measure import measure
from compaction.kube.replica.runtime import Runtime
from compaction.kube.sink import EventSink
from compaction.kube.store_tasks import PolicyState, Resting, Seen, StoreTasks, close
from compaction.leases.record import LeaseObserver
from compaction.storage.adapter import StoreAdapter, open_store

# The operator's limits at the edge: the ledger of a term, its first entries, and the task that shares out.

SHARE_OUT: Final = 0.2
"""Seconds between two sharings: what they cost does not grow with what happens in between."""
_PAUSES: Final = 200
"""So many times as long as a sharing took, when it takes long: for thousands of policies they come less often."""


class Sharing:
    """Owned by the controller. Without limits it does nothing and costs nothing."""

    def __init__(self, limits: OperatorLimits, *, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._commons: SharedLimits[CacheKey] | None = None

    def begin(self, runtime: Runtime, workers: Mapping[CacheKey, tuple[WorkerObservation, ...]]) -> None:
        """Enter the workers that there are, once a term: after everything was listed, before anything is decided."""
        if self._commons is not None or not self._limits.any:
            return
        holds: dict[CacheKey, int] = {}
        for key in {*runtime.cache.policies.keys(), *workers}:
            leases = {body["metadata"]["name"] for body in runtime.cache.leases_of(key) if is_worker(body)}
            holds[key] = len(leases | {worker.name for worker in workers.get(key, ()) if not worker.ended})
        self._commons = SharedLimits(self._limits, holds, now=self._monotonic())

    def allowance(self, key: CacheKey) -> Allowance:
        """Return the part of the operator's limits that a policy may have."""
        return NO_ALLOWANCE if self._commons is None else self._commons.allowance(key)

    def note(self, key: CacheKey, demand: LimitDemand, policy: CompactionPolicy | None, now: Moment) -> None:
        """A decision was made: before anything is awaited, so that no other depends on less than is known."""
        if self._commons is not None:
            waited = waited_for_worker(policy, now) if policy is not None else 0.0
            self._commons.note(key, demand, now=now.monotonic, waited=waited)

    def give_up(self, key: CacheKey) -> None:
        """The policy cannot be read any more."""
        if self._commons is not None:
            self._commons.give_up(key)

    async def run(self, runtime: Runtime) -> None:
        """Share out every now and then; policies that may do something new are queued. Returns without limits."""
        for name, value in asdict(self._limits).items():
            if value is not None:
                runtime.metrics.limits.labels(name).set(value)
        took = 0.0
        while self._limits.any:
            await asyncio.sleep(max(SHARE_OUT, _PAUSES * took))
            began = self._monotonic()
            if self._commons is not None:
                for key in self._commons.share_out(self._monotonic()):
                    runtime.queue.add(key)
                runtime.metrics.workers_held.set(self._commons.held)
            took = self._monotonic() - began


# The coordinator's controller: takes the picture, lets `reconcile` decide, has the decision carried out.
#
# One key is one policy with everything of it, so there are no races between jobs of a policy. Scans of the store and
# sweeps run in threads, one of each per policy, and report back through the queue; the loop is never blocked. Nothing
# is kept that a restart could not find again: the memory of a policy only saves work.

log = structlog.get_logger(__name__)

WATCH_WORKERS: Final = 1.0
"""Seconds between checks of the launcher: a worker that dies is noticed so much sooner than by its lease."""


class PolicyController:
    """Implements `kube.replica.runtime.Controller`. Everything runs on the runtime's loop but the store tasks."""

    watches_catalogs = False

    def __init__(
        self,
        *,
        open_store: Callable[..., StoreAdapter] = open_store,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        limits: OperatorLimits = NO_LIMITS,
        defaults: PolicyDefaults = NO_DEFAULTS,
        sink: EventSink | None = None,
    ) -> None:
        self._defaults = defaults
        self._sink = sink
        self._monotonic = monotonic
        self._wall = wall
        self._sharing = Sharing(limits, monotonic=monotonic)
        self._overlaps = Overlaps()
        self._runtime: Runtime | None = None
        self._policies = ParsedObjects(self._effective)
        self._jobs = ParsedObjects(CompactionJob.from_object)
        self._leases: LeaseObserver[str] = LeaseObserver(clock=monotonic)
        self._states: dict[CacheKey, PolicyState] = {}
        self._workers: dict[CacheKey, tuple[WorkerObservation, ...]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stores = StoreTasks(open_store=open_store, monotonic=monotonic)

    def _effective(self, body: Obj) -> CompactionPolicy:
        """A policy with the spec in force: its own, and what the operator's configuration adds."""
        return CompactionPolicy.from_object(completed(body, self._taken(body)))

    def _taken(self, body: Obj | None) -> dict[str, Any]:
        return taken((body or {}).get("spec") or {}, self._defaults)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, runtime: Runtime) -> None:
        """See `kube.replica.runtime.Controller`. The workers that an earlier coordinator started are known before
        anything else.
        """
        self._runtime = runtime
        await self._look_at_workers(runtime)
        self._spawn(self._watch_workers(runtime))
        self._spawn(self._sharing.run(runtime))
        if self._sink is not None:
            self._spawn(self._sink.run(runtime.metrics, runtime.is_leader))

    async def stop(self) -> None:
        """See `kube.replica.runtime.Controller`. Store tasks are waited for: a thread cannot be cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for state in self._states.values():
            close(state)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work in the background failed", error=str(error), exc_info=error)

    def observed(self, resource: Resource, delta: Delta) -> None:
        """See `kube.replica.runtime.Controller`: the moment of this call is when a Lease was seen to change."""
        uid = delta.body["metadata"]["uid"]
        if delta.change is CacheChange.DELETED:
            self._leases.forget(uid)
            self._jobs.forget(uid)
            self._policies.forget(uid)
            if self._sink is not None:
                self._sink.forget(uid)
        elif resource == LEASES:
            observe_lease(self._leases, delta.body)
        if resource == COMPACTION_POLICIES:
            self._note_store(delta)

    def _note_store(self, delta: Delta) -> None:
        """A policy is new, changed or gone: those that share its store may go on now, or have to stop."""
        policy = None
        if delta.change is not CacheChange.DELETED:
            with suppress(ValidationError):
                policy = self._policies.get(delta.body)
        for other in self._overlaps.note(key_of(delta.body), policy):
            if self._runtime is not None:
                self._runtime.queue.add(other)

    async def _watch_workers(self, runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(WATCH_WORKERS)
            try:
                await self._look_at_workers(runtime)
            except (CompactionError, OSError) as error:
                # What was seen last stands until the next look: silence does not mean that the workers are gone.
                log.warning("the launcher cannot say how its workers are", error=str(error))

    async def _look_at_workers(self, runtime: Runtime) -> None:
        """Take the launcher's view; policies whose workers changed are reconciled."""
        found: dict[CacheKey, list[WorkerObservation]] = {}
        for worker in await runtime.launcher.observe():
            found.setdefault(CacheKey(*worker.policy), []).append(worker)
        before, self._workers = self._workers, {key: tuple(workers) for key, workers in found.items()}
        for key in before.keys() | self._workers.keys():
            if before.get(key) != self._workers.get(key):
                runtime.queue.add(key)

    # -- one policy --------------------------------------------------------------------------------------------------

    async def reconcile(self, key: CacheKey) -> float | None:
        """See `kube.replica.runtime.Controller`."""
        runtime = self._runtime
        assert runtime is not None, "start() comes first"
        self._sharing.begin(runtime, self._workers)
        state = self._states.setdefault(key, PolicyState())
        seen = Seen.of(
            runtime.cache,
            key,
            workers=self._workers.get(key, ()),
            allowance=self._sharing.allowance(key),
            held_by=self._overlaps.held_by(key),
            hold=runtime.hold(),
            sink=self._sink_view(runtime.cache.policies.get(*key)),
        )
        if (left := self._rests(runtime, key, state, seen)) is not None:
            return left
        body = runtime.cache.policies.get(*key)
        try:
            policy = self._policies.get(body) if body is not None else None
        except ValidationError as error:
            assert body is not None, "only an object can be invalid"
            return await self._refuse(runtime, body, error)
        snapshot = self._snapshot(runtime, key, policy, state)
        decision = reconcile(snapshot)
        self._sharing.note(key, decision.demand, policy, snapshot.now)
        decided = self._monotonic()  # before anything is awaited: no other decision of this policy comes in between
        state.memory = decision.memory
        if policy is not None:
            self._stores.open(state, policy, runtime)
        for task in decision.store_tasks:
            assert policy is not None, "only an existing policy has store tasks"
            self._spawn(self._stores.run(runtime, key, state, task, policy, asked=decided))
        measure(runtime.metrics, key, snapshot, decision, state.cleanup)
        executor = Executor(
            ApiObjects(runtime, key, body, observed=self.observed),
            LaunchedWorkers(runtime, key, policy, in_background=self._in_background),
            store_of=lambda: state.store,
            now=snapshot.now,
        )
        try:
            outcome = await executor.execute(decision)
        finally:
            self._offer(runtime, key)
            state.memory = executor.outcome.remembered(state.memory, now=self._monotonic())
        state.stale = state.stale + 1 if outcome.stale else 0
        if decision.rest is not None:
            state.resting = Resting(decision.rest, seen)
        return stale_pause(state.stale) if outcome.stale else self._next(runtime, key, snapshot, decision, outcome)

    def _sink_view(self, body: Obj | None) -> SinkView | None:
        return None if self._sink is None or body is None else self._sink.view(body["metadata"]["uid"])

    def _offer(self, runtime: Runtime, key: CacheKey) -> None:
        """Hand the sink what stands in the status on the API server; a job is read when its event is sent."""
        body = runtime.cache.policies.get(*key)
        if self._sink is None or body is None or not (told := (body.get("status") or {}).get("events")):
            return

        def receipt(event: PendingEvent) -> dict[str, Any]:
            job = runtime.cache.jobs.get(key.namespace, str(event.data.get("job"))) if "job" in event.data else None
            # Another job of the same name is not the one that ended.
            if job is None or job["metadata"]["uid"] != event.data.get("uid"):
                return {}
            status = job.get("status") or {}
            return {name: status[name] for name in ("receipt", "attempts", "skipped") if name in status}

        source = EventSource(plural=POLICY_PLURAL, namespace=key.namespace, name=key.name, uid=body["metadata"]["uid"])
        events = EventsStatus.from_object(told)
        self._sink.offer(source, events, render=receipt, notify=lambda: runtime.queue.add(key))

    def _rests(self, runtime: Runtime, key: CacheKey, state: PolicyState, seen: Seen) -> float | None:
        """Seconds until the policy has to be thought of again; None when it does not rest (any more). Its store is
        scanned meanwhile.
        """
        resting, now = state.resting, self._monotonic()
        if resting is None:
            return None
        if now >= resting.rest.until or not resting.seen.is_same(seen):
            state.resting = None
            return None
        if now < resting.rest.look_at:
            return min(resting.rest.look_at, resting.rest.until) - now
        if not state.memory.store.sense_running:
            assert seen.policy is not None, "only an existing policy is idle"
            state.memory = store_work.sense_started(state.memory)
            policy = self._policies.get(seen.policy)
            self._spawn(self._stores.run(runtime, key, state, resting.rest.look, policy, asked=now))
        return resting.rest.until - now

    def _in_background(self, work: Awaitable[None]) -> None:
        async def wait() -> None:
            await work

        self._spawn(wait())

    def _snapshot(
        self, runtime: Runtime, key: CacheKey, policy: CompactionPolicy | None, state: PolicyState
    ) -> PolicySnapshot:
        now = Moment(self._wall(), self._monotonic())
        leases, bodies = runtime.cache.leases_of(key), runtime.cache.jobs_of(key)
        # By name as well: a job's Lease is the job's whatever somebody made of its labels.
        named = (runtime.cache.leases.get(key.namespace, body["metadata"]["name"]) for body in bodies)
        owned = [lease for lease, body in zip(named, bodies, strict=True) if lease and is_lease_of(lease, body)]
        jobs = job_leases([*leases, *owned], self._leases, now.monotonic)
        views = job_views(bodies, jobs, self._jobs)
        return PolicySnapshot(
            namespace=key.namespace,
            name=key.name,
            now=now,
            policy=policy,
            jobs=views,
            stray_leases=tuple(jobs.values()),
            workers=tuple(worker_lease(body, self._leases, now.monotonic) for body in leases if is_worker(body)),
            processes=tuple(worker_process(worker, now.wall) for worker in self._workers.get(key, ())),
            reading=state.reading,
            memory=state.memory,
            version=runtime.version,
            allowance=self._sharing.allowance(key),
            held_by=self._overlaps.held_by(key),
            hold=runtime.hold(),
            sink=self._sink_view(runtime.cache.policies.get(*key)),
            defaults=self._defaults,
            defaulted=self._taken(runtime.cache.policies.get(*key)),
            preview=state.preview,
            proposed_held_by=self._proposed_held_by(key, policy, state),
        )

    def _proposed_held_by(self, key: CacheKey, policy: CompactionPolicy | None, state: PolicyState) -> str:
        """Return what keeps the policy from its store with the spec of a preview that has no answer yet."""
        value = preview.asked(policy, state.memory) if policy is not None else ""
        if policy is None or not value:
            state.preview = None  # as large as a scan, and answered
            return ""
        changed = preview.proposed(policy, value, self._defaults)
        return self._overlaps.would_hold(key, changed) if changed is not None else ""

    def _next(
        self, runtime: Runtime, key: CacheKey, snapshot: PolicySnapshot, decision: Decision, outcome: ExecutionResult
    ) -> float | None:
        if snapshot.policy is None and decision.requeue_after is None:
            if (state := self._states.pop(key, None)) is not None:
                close(state)
            runtime.metrics.forget_policy(key)
        if outcome.launch_errors or outcome.plan_failed or decision.acts:
            # Our own writes are in the cache already, so no watch event will ask for the next step.
            return AGAIN
        return decision.requeue_after

    async def _refuse(self, runtime: Runtime, body: Obj, error: ValidationError) -> float | None:
        """A stored policy that this version cannot read says so itself."""
        self._sharing.give_up(key_of(body))
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        added = flattened(self._taken(body))
        beside = f" (with {', '.join(added)} of the operator's configuration)" if added else ""
        try:
            before = CompactionPolicyStatus.from_object(body.get("status") or {})
        except ValidationError:
            # The status is of another version, too: its conditions are written as if there had been none.
            before = CompactionPolicyStatus()
        generation = body["metadata"].get("generation", 0)
        now = Moment(self._wall(), 0.0).time
        conditions = conditions_for(
            before.conditions,
            reason=PolicyReason.INVALID_SPEC,
            message=f"{where}: {problem['msg']}{beside}",
            observed_generation=generation,
            now=now,
        )
        since = reason_since(before.conditions, conditions, known=before.reason_since, now=now)
        after = before.model_copy(
            update={"conditions": conditions, "reason_since": since, "observed_generation": generation}
        )
        if (view := self._sink_view(body)) is not None:
            new = tuple(standing(before.conditions, conditions, now))
            events = (before.events or NO_EVENTS).after(new, delivered=view.delivered)
            after = after.model_copy(update={"events": before.events if events == NO_EVENTS else events})
        runtime.metrics.conditions.set(key_of(body), after.conditions)
        # Only a change is written: the watch brings each write back, and the policy is refused again.
        if after != before:
            answer = await runtime.client.replace_status(COMPACTION_POLICIES, {**body, "status": after.to_object()})
            runtime.cache.policies.upsert(answer)
            self._offer(runtime, key_of(body))
            log.error("policy cannot be read", policy=str(key_of(body)), error=f"{where}: {problem['msg']}")
            for event in of_standing(before.conditions, after.conditions):
                runtime.events.event(body, reason=event.reason, message=event.message, type=EventType.WARNING)
        return None
