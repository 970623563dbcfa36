"""The controller of catalogs: takes the picture, lets `reconcile` decide, has the decision carried out.

One key is one catalog; its rounds run in the background and report back through the queue. Nothing is kept that a
restart could not find again: a round that was lost is begun again by the new term.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from pydantic import ValidationError

from compaction.api.base import first_problem
from compaction.api.catalog.catalog import CatalogCompaction, CatalogCompactionStatus, CatalogReason, standing_of
from compaction.api.catalog.reasons import Reason
from compaction.api.conditions import reason_since
from compaction.api.events import CloudEventType, EventSource, EventsStatus, PendingEvent, pending
from compaction.api.names import CATALOG_PLURAL
from compaction.api.policy.store import conditions_for
from compaction.catalogs.compaction.observations import (
    Broken,
    CatalogMemory,
    CatalogSnapshot,
    Result,
    Task,
    WriteCatalogStatus,
)
from compaction.catalogs.compaction.reconcile import reconcile
from compaction.catalogs.model.descriptors import hybrid
from compaction.catalogs.operator.finding import ClusterPlaces
from compaction.catalogs.operator.working import CatalogWork, Logs, Participants, RoundState, work_of
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.observations import Moment, OperatorIdentity
from compaction.core.reconcile.status.announcing import of_standing
from compaction.core.reconcile.status.outbox import standing
from compaction.errors import ConflictError, NotFoundError
from compaction.kube.client.tokens import AccountName, OwnTokens
from compaction.kube.client.transport import CATALOG_COMPACTIONS, Obj, Resource
from compaction.kube.controller import PolicyController
from compaction.kube.executor.events import EventType
from compaction.kube.gather import ParsedObjects, identity
from compaction.kube.informer.cache import CacheChange, CacheKey, CatalogKey, Delta, key_of
from compaction.kube.informer.queue import AGAIN
from compaction.kube.replica.runtime import Runtime
from compaction.kube.sink import EventSink

log = structlog.get_logger(__name__)

_UNEXPECTED = "an unexpected failure; the log of the operator has the details"


@dataclass(slots=True)
class CatalogState:
    """The state that is kept for a catalog while it exists. `uid`: of the object that it is about."""

    uid: str = ""
    memory: CatalogMemory = field(default_factory=CatalogMemory)
    round: RoundState = field(default_factory=RoundState)
    results: list[Result] = field(default_factory=list)


class CatalogController:
    """Everything runs on the runtime's loop but the work on logs."""

    def __init__(
        self,
        *,
        logs: Logs,
        participants: Callable[[Callable[[], int]], Participants],
        account: AccountName | None = None,
        sink: EventSink | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`participants`: makes the port from the coordinator's clock, hybrid timestamps. `account`: the operator's
        own, whose tokens participants may ask for.
        """
        self._logs = logs
        self._account = account
        self._sink = sink
        self._make_participants = participants
        self._monotonic = monotonic
        self._wall = wall
        self._runtime: Runtime | None = None
        self._work: CatalogWork | None = None
        self._catalogs = ParsedObjects(CatalogCompaction.from_object)
        self._states: dict[CatalogKey, CatalogState] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, runtime: Runtime) -> None:
        """See `kube.replica.runtime.Controller`."""
        self._runtime = runtime
        self._work = CatalogWork(
            ClusterPlaces(runtime.client, OwnTokens(runtime.client, self._account, monotonic=self._monotonic)),
            logs=self._logs,
            participants=self._make_participants(self._clock),
            clock=self._clock,
            is_leader=runtime.is_leader,
        )

    async def stop(self) -> None:
        """See `kube.replica.runtime.Controller`. Threads are waited for: they cannot be cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def observed(self, resource: Resource, delta: Delta) -> None:
        """See `kube.replica.runtime.Controller`."""
        if resource == CATALOG_COMPACTIONS and delta.change is CacheChange.DELETED:
            self._catalogs.forget(delta.body["metadata"]["uid"])
            if self._sink is not None:
                self._sink.forget(delta.body["metadata"]["uid"])

    async def reconcile(self, key: CatalogKey) -> float | None:
        """See `kube.replica.runtime.Controller`."""
        runtime = self._runtime
        assert runtime is not None, "start() comes first"
        body = runtime.cache.catalogs.get(key.namespace, key.name)
        try:
            catalog = self._catalogs.get(body) if body is not None else None
        except ValidationError as error:
            assert body is not None, "only an object can be invalid"
            return await self._refuse(runtime, key, body, first_problem(error))
        state = self._state(key, catalog)
        results, state.results = tuple(state.results), []
        moment = Moment(self._wall(), self._monotonic())
        before = state.memory.status or (catalog.status if catalog is not None else CatalogCompactionStatus())
        decision = reconcile(
            CatalogSnapshot(
                key.namespace,
                key.name,
                moment,
                catalog,
                runtime.identity,
                runtime.epoch,
                results,
                state.memory,
                runtime.hold(),
            )
        )
        state.memory = decision.memory
        runtime.metrics.catalogs.measure(key, before, decision)
        if decision.forget:
            self._states.pop(key, None)
            return None
        for task in decision.tasks:
            self._spawn(self._carry_out(runtime, key, state, task))
        write = decision.status or self._delivered(catalog)
        if write is not None and not await self._write(runtime, key, write):
            return AGAIN
        self._offer(runtime, key)
        return decision.requeue_after

    def _state(self, key: CatalogKey, catalog: CatalogCompaction | None) -> CatalogState:
        """Another object of the same name has a state of its own: what the first one's work finds is not about it."""
        uid = catalog.metadata.uid if catalog is not None else ""
        state = self._states.get(key)
        if state is None or state.uid != uid:
            state = self._states[key] = CatalogState(uid)
        return state

    def _clock(self) -> int:
        return hybrid(max(1, int(self._wall() * 1000)))

    # -- work ----------------------------------------------------------------------------------------------------------

    async def _carry_out(self, runtime: Runtime, key: CatalogKey, state: CatalogState, task: Task) -> None:
        """Whatever happens, the process that waits for the task ends, so that the next round can begin."""
        work = self._work
        assert work is not None, "start() comes first"
        result: Result = Broken(work_of(task), Reason.INTERNAL_ERROR, _UNEXPECTED)
        try:
            result = await work.do(key, state.round, task)
        finally:
            state.results.append(result)
            runtime.queue.add(key)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on a catalog failed", error=str(error), exc_info=error)

    # -- status --------------------------------------------------------------------------------------------------------

    async def _write(self, runtime: Runtime, key: CatalogKey, write: WriteCatalogStatus) -> bool:
        """False: the object has another version, or is gone; what was to be written is remembered."""
        cached = runtime.cache.catalogs.get(key.namespace, key.name)
        if cached is None or cached["metadata"]["resourceVersion"] != write.about.resource_version:
            return False
        try:
            body = {**cached, "status": self._with_events(cached, write.status).to_object()}
            answer = await runtime.client.replace_status(CATALOG_COMPACTIONS, body)
        except (ConflictError, NotFoundError):
            await self._refresh(runtime, key)
            return False
        runtime.cache.catalogs.upsert(answer)
        self._offer(runtime, key)
        self._announce(runtime, cached, write.events)
        return True

    def _with_events(self, cached: Obj, after: CatalogCompactionStatus) -> CatalogCompactionStatus:
        """The status with the events of what changes by it, for the sink. It replaces what is cached, or nothing."""
        try:
            before = CatalogCompactionStatus.from_object(cached.get("status") or {})
        except ValidationError:
            before = CatalogCompactionStatus()
        # Events of a time with a sink stay for the next one.
        if self._sink is None:
            return after.model_copy(update={"events": before.events})
        known = before.events or EventsStatus()
        now = Moment(self._wall(), 0.0).time
        delivered = self._sink.view(cached["metadata"]["uid"]).delivered
        events = known.after(changes(before, after, now), delivered=delivered)
        return after.model_copy(update={"events": events if events.last else None})

    def _delivered(self, catalog: CatalogCompaction | None) -> WriteCatalogStatus | None:
        """The write that takes delivered events out of the status, where nothing else is to be written."""
        events = catalog.status.events if catalog is not None else None
        if self._sink is None or catalog is None or events is None or not events.waiting:
            return None
        if events.waiting[0].sequence > self._sink.view(catalog.metadata.uid).delivered:
            return None
        meta = catalog.metadata
        return WriteCatalogStatus(OperatorIdentity(meta.name, meta.uid, meta.resource_version), catalog.status, ())

    def _offer(self, runtime: Runtime, key: CatalogKey) -> None:
        """Hand the sink what stands in the status on the API server."""
        body = runtime.cache.catalogs.get(key.namespace, key.name)
        if self._sink is None or body is None or not (told := (body.get("status") or {}).get("events")):
            return
        uid = body["metadata"]["uid"]
        source = EventSource(plural=CATALOG_PLURAL, namespace=key.namespace, name=key.name, uid=uid)
        events = EventsStatus.from_object(told)
        self._sink.offer(source, events, render=lambda _: {}, notify=lambda: runtime.queue.add(key))

    async def _refresh(self, runtime: Runtime, key: CatalogKey) -> None:
        try:
            body = await runtime.client.get(CATALOG_COMPACTIONS, key.name, namespace=key.namespace)
        except NotFoundError:
            cached = runtime.cache.catalogs.get(key.namespace, key.name)
            if cached is not None:
                runtime.cache.catalogs.remove(cached)
            return
        runtime.cache.catalogs.upsert(body)

    def _announce(self, runtime: Runtime, about: Obj, events: tuple[Announce, ...]) -> None:
        for event in events:
            kind = EventType.WARNING if event.warning else EventType.NORMAL
            said = log.warning if event.warning else log.info
            said("the catalog's status has changed", catalog=str(key_of(about)), reason=event.reason)
            runtime.events.event(about, reason=event.reason, message=event.message, type=kind)

    async def _refuse(self, runtime: Runtime, key: CatalogKey, body: Obj, problem: str) -> float | None:
        """A stored object that this version cannot read says so itself."""
        try:
            before = CatalogCompactionStatus.from_object(body.get("status") or {})
        except ValidationError:
            before = CatalogCompactionStatus()
        generation = body["metadata"].get("generation", 0)
        reason = CatalogReason.INVALID_SPEC.value
        now = Moment(self._wall(), 0.0).time
        conditions = conditions_for(
            before.conditions,
            reason=reason,
            message=problem,
            observed_generation=generation,
            now=now,
            standing=standing_of(reason, lasts=True),
        )
        since = reason_since(before.conditions, conditions, known=before.reason_since, now=now)
        after = before.model_copy(
            update={"conditions": conditions, "reason_since": since, "observed_generation": generation}
        )
        runtime.metrics.catalogs.conditions.set(key, conditions)
        if after == before:
            return None
        log.error("a CatalogCompaction cannot be read", catalog=str(key), error=problem)
        events = tuple(of_standing(before.conditions, conditions))
        return None if await self._write(runtime, key, WriteCatalogStatus(identity(body), after, events)) else AGAIN


def changes(before: CatalogCompactionStatus, after: CatalogCompactionStatus, now: datetime) -> tuple[PendingEvent, ...]:
    """Events of what differs between two statuses of a catalog, in order, without numbers."""
    # Rounds are added at the end and go at the front. Two of one second look alike, so places tell, not times.
    old = before.history
    kept = next(len(old) - gone for gone in range(len(old) + 1) if after.history[: len(old) - gone] == old[gone:])
    ended = after.history[kept:]
    rounds = (pending(CloudEventType.RUN_ENDED, record.ended_at, "", run=record.to_object()) for record in ended)
    return (*rounds, *standing(before.conditions, after.conditions, now))


# One controller of policies and of catalogs: each key goes to the one that its kind belongs to.


class Controllers:
    """Implements `kube.replica.runtime.Controller`."""

    watches_catalogs = True

    def __init__(self, policies: PolicyController, catalogs: CatalogController) -> None:
        self._policies = policies
        self._catalogs = catalogs

    async def start(self, runtime: Runtime) -> None:
        """See `kube.replica.runtime.Controller`."""
        await self._policies.start(runtime)
        await self._catalogs.start(runtime)

    def observed(self, resource: Resource, delta: Delta) -> None:
        """See `kube.replica.runtime.Controller`."""
        (self._catalogs if resource == CATALOG_COMPACTIONS else self._policies).observed(resource, delta)

    async def reconcile(self, key: CacheKey) -> float | None:
        """See `kube.replica.runtime.Controller`."""
        if isinstance(key, CatalogKey):
            return await self._catalogs.reconcile(key)
        return await self._policies.reconcile(key)

    async def stop(self) -> None:
        """See `kube.replica.runtime.Controller`."""
        await self._catalogs.stop()
        await self._policies.stop()
