"""A replica of the operator: the production election, term, controller and executor, without threads, sockets and Kopf.

Replaced are the elector's thread (`Candidate`), the process's main thread (`replica`) and Kopf's informer
(`SimulatedTerm._informer`: list, then watch, like Kopf without reporting deletions that a new list reveals).
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.errors import ApiError, GoneError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.transport import COMPACTION_JOBS, COMPACTION_POLICIES, LEASES, Resource
from compaction.kube.controller import PolicyController
from compaction.kube.executor.events import EventRecorder
from compaction.kube.hold import HoldWatch
from compaction.kube.informer.cache import ObjectCache
from compaction.kube.informer.handlers import Feed
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.replica.operator import CoordinatorLease
from compaction.kube.replica.runtime import LoopHeartbeat, Runtime
from compaction.kube.replica.term import StopRequest, Term, TermSettings
from compaction.leases.election import Election, ElectionSettings, ElectionState
from compaction.storage.adapter import open_store
from simulation.network import client_of
from simulation.processes import Process

if TYPE_CHECKING:
    from simulation.world import SimulatedSystem

SETTINGS = ElectionSettings()
RESYNC = 40.0
MARGIN = 1.0


class Candidate:
    """What `leases.elector.Elector` is to the rest of the process, on the process's own loop."""

    def __init__(self, world: SimulatedSystem, process: Process) -> None:
        self.settings = SETTINGS
        self.identity = process.name
        self._process = process
        client = client_of(process, world.network, deadline=SETTINGS.call_deadline)
        self.election = Election(
            CoordinatorLease(client, "default", "compaction-coordinator"),
            identity=process.name,
            settings=SETTINGS,
            clock=process.monotonic,
            observer_clock=process.monotonic,
            now=process.now,
            rng=world.faults.dice(f"{process.name}/election"),
        )
        self.is_leader = self.election.is_leader

    @property
    def epoch(self) -> int:
        return self.election.epoch

    def seconds_to_takeover(self) -> float:
        return self.election.takeover_at - self._process.monotonic()

    async def campaign(self, *, until: ElectionState) -> None:
        """Run for office, or renew, until it stands like this."""
        pause = 0.0
        while self.election.standing is not until:
            await asyncio.sleep(pause)
            pause = await self.election.step()

    async def deadman(self) -> None:
        """Ends the process before anybody can take over, whatever else it is doing."""
        left = self.seconds_to_takeover() - MARGIN
        while left > 0.0:
            await asyncio.sleep(min(left, 1.0))
            left = self.seconds_to_takeover() - MARGIN
        self._process.kill(70)


class SimulatedTerm(Term):
    """`Term` with clocks, dice and an informer of the simulation's."""

    def __init__(self, world: SimulatedSystem, process: Process, candidate: Candidate) -> None:
        monotonic = process.monotonic
        opener = partial(open_store, clock=monotonic)
        super().__init__(
            client_of(process, world.network).connection,
            TermSettings(namespace="default", state_dir=Path("/nowhere"), lease_namespace="default", resync=RESYNC),
            elector=candidate,  # type: ignore[arg-type]
            controller=PolicyController(open_store=opener, monotonic=monotonic, wall=process.wall, limits=world.limits),
            make_launcher=lambda _client: world.launcher.of(process),
            metrics=world.metrics,
            heartbeat=LoopHeartbeat("simulated", limit=60.0, clock=monotonic),
        )
        self._world = world
        self._process = process
        self._rng = world.faults.dice(f"{process.name}/term")

    def _connect(self) -> ApiClient:
        return client_of(self._process, self._world.network)

    def _route_signals(self, stop: StopRequest) -> None:
        """Signals come from the schedule."""

    def _runtime(self, client: ApiClient, hold: HoldWatch) -> Runtime:
        process, candidate = self._process, self._elector
        return Runtime(
            client=client,
            cache=ObjectCache(),
            queue=WorkQueue(rng=self._world.faults.dice(f"{process.name}/queue")),
            launcher=self._make_launcher(client),
            events=EventRecorder(client, instance=process.name, clock=process.monotonic, now=process.now),
            metrics=self._metrics,
            is_leader=candidate.is_leader,
            epoch=candidate.epoch,
            identity=process.name,
            namespace="default",
            state_dir=Path("/nowhere"),
            hold=lambda: hold.hold,
        )

    async def _informer(self, feed: Feed, kopf_stop: asyncio.Event, stop: StopRequest) -> None:
        client = self._connect()
        watches = [
            self._process.start(_inform(client, feed, kind), name=f"informer-{kind.plural}")
            for kind in (COMPACTION_POLICIES, COMPACTION_JOBS, LEASES)
        ]
        await kopf_stop.wait()
        for watch in watches:
            watch.cancel()


async def _inform(client: ApiClient, feed: Feed, resource: Resource) -> None:
    """List and watch one kind for ever. What was deleted between a lost watch and the next list is never reported."""
    selector = ObjectCache.LEASE_SELECTOR if resource == LEASES else None
    version = ""
    while True:
        try:
            if not version:
                listed = await client.list(resource, namespace="default", labels=selector)
                for item in listed.items:
                    feed.event(resource, None, item)
                version = listed.resource_version
            async for event in client.watch(resource, namespace="default", labels=selector, resource_version=version):
                feed.event(resource, event.type, event.object)
                version = event.object["metadata"]["resourceVersion"]
        except GoneError:
            version = ""
        except ApiError:
            await asyncio.sleep(1.0)


async def lead(world: SimulatedSystem, process: Process) -> None:
    """The life of one process: run for office, lead one term, end."""
    candidate = Candidate(world, process)
    world.candidates[process] = candidate
    await candidate.campaign(until=ElectionState.LEADER)
    world.elected(process, candidate)
    stop = StopRequest()
    world.stops[process] = stop
    process.start(candidate.deadman(), name="deadman")
    renewing = process.start(candidate.campaign(until=ElectionState.LOST), name="elector")
    renewing.add_done_callback(lambda _: stop())
    await SimulatedTerm(world, process, candidate).run(stop)
    renewing.cancel()
    if stop.by_signal:
        try:
            await candidate.election.release()
        except ApiError:
            world.log(process, "could not release the lease")
    process.kill(0 if stop.by_signal else 75)


async def replica(world: SimulatedSystem, number: int) -> None:
    """Starts the process again whenever it has ended, as whoever supervises it does."""
    for life in range(1, 1000):
        process = world.process(f"coordinator-{number}.{life}", machine=f"machine-{number}")
        process.start(lead(world, process))
        await process.ended
        world.log(process, f"ended with {process.exit_code}")
        await asyncio.sleep(world.faults.dice(f"{process.name}/restart").uniform(0.5, 4.0))
