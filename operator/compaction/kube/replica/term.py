"""One term of leadership, on the main thread's loop: informer, cache, queue and controller, from election to the end.

Order at the start: controller, then a complete list of all kinds (nothing is decided on half a picture), then the
queue, then Kopf. Order at the end: no new reconciliations, the running ones end, the controller stops, Events are
posted, Kopf stops. Our tasks are born before Kopf's: it cancels whatever was born after
(docs/design/control-plane-traps.md#kopf).
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import kopf
import structlog

from compaction.errors import ApiUnavailableError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import ApiConnection
from compaction.kube.executor.events import EventRecorder
from compaction.kube.hold import HoldWatch
from compaction.kube.informer.cache import CacheKey, CatalogKey, ObjectCache
from compaction.kube.informer.handlers import Feed, Relist, build_registry, build_settings
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.launchers.base import Launcher
from compaction.kube.logging import bound
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica.runtime import Controller, LoopHeartbeat, Runtime
from compaction.leases.elector import Elector

_HEARTBEAT_SECONDS: Final = 1.0
_LIST_RETRY_SECONDS: Final = 2.0
_FLUSH_SECONDS: Final = 2.0
_UNUSED_IDENTITY: Final[Any] = "compaction-operator"
"""For Kopf's peering, which is off; left to itself Kopf asks for the user's name, and a container's user may have none.
"""


@dataclass(frozen=True, slots=True)
class TermSettings:
    """`namespace` None watches all namespaces; times in seconds. `lease_namespace` has the Lease of a hold, too."""

    namespace: str | None
    state_dir: Path
    lease_namespace: str
    concurrency: int = 4
    resync: float = 300.0
    drain: float = 20.0


@dataclass(slots=True)
class StopRequest:
    """The request to stop, from any thread; also before the loop exists. `by_signal`: a user or the node requested
    it.
    """

    requested: bool = False
    by_signal: bool = False
    requested_at: float = float("inf")  # monotonic
    _loop: asyncio.AbstractEventLoop | None = None
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self) -> None:
        """Ask for the end."""
        if not self.requested:
            self.requested, self.requested_at = True, time.monotonic()
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has closed: the term is over already
                self._loop.call_soon_threadsafe(self._event.set)

    def signal(self) -> None:
        """SIGTERM or SIGINT arrived."""
        self.by_signal = True
        self()

    async def wait(self) -> None:
        """Until the end is asked for."""
        self._loop = asyncio.get_running_loop()
        if self.requested:
            self._event.set()
        await self._event.wait()


class Term:
    """Runs once. Everything it makes belongs to the loop that awaits `run()`."""

    def __init__(
        self,
        connection: ApiConnection,
        settings: TermSettings,
        *,
        elector: Elector,
        controller: Controller,
        make_launcher: Callable[[ApiClient], Launcher],
        metrics: Metrics,
        heartbeat: LoopHeartbeat,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._elector = elector
        self._controller = controller
        self._make_launcher = make_launcher
        self._metrics = metrics
        self._heartbeat = heartbeat
        self._rng = random.Random()

    async def run(self, stop: StopRequest) -> None:
        """Lead until `stop` is requested. Raises what ended it otherwise."""
        async with self._connect() as client:
            hold = HoldWatch(client, self._settings.lease_namespace, metrics=self._metrics)
            runtime = self._runtime(client, hold)
            feed = Feed(runtime.cache, runtime.queue, self._controller, self._metrics)
            relist = Relist(client, runtime.cache, feed, namespace=self._settings.namespace, metrics=self._metrics)
            await self._controller.start(runtime)
            try:
                await self._until_listed(relist, hold, stop)
                if not stop.requested:
                    hold.on_change = feed.look_at_everything
                    await self._serve(runtime, feed, relist, hold, stop)
            finally:
                await self._controller.stop()
                self._heartbeat.stop()

    def _connect(self) -> ApiClient:
        return ApiClient(self._connection, user_agent="compactor-operator", observe=self._metrics.observe_call)

    def _runtime(self, client: ApiClient, hold: HoldWatch) -> Runtime:
        return Runtime(
            client=client,
            cache=ObjectCache(catalogs=self._controller.watches_catalogs),
            queue=WorkQueue(metrics=self._metrics.queue),
            launcher=self._make_launcher(client),
            events=EventRecorder(client, instance=self._elector.identity, metrics=self._metrics),
            metrics=self._metrics,
            is_leader=self._elector.is_leader,
            epoch=self._elector.epoch,
            identity=self._elector.identity,
            namespace=self._settings.namespace,
            state_dir=self._settings.state_dir,
            hold=lambda: hold.hold,
        )

    async def _serve(self, runtime: Runtime, feed: Feed, relist: Relist, hold: HoldWatch, stop: StopRequest) -> None:
        kopf_stop = asyncio.Event()
        queue = asyncio.create_task(
            runtime.queue.run(self._reconcile, concurrency=self._settings.concurrency), name="work queue"
        )
        background = [
            asyncio.create_task(runtime.events.run(), name="event poster"),
            asyncio.create_task(relist.forever(every=self._settings.resync, rng=self._rng), name="resync"),
            asyncio.create_task(hold.forever(), name="hold"),
            asyncio.create_task(self._beat(), name="heartbeat"),
        ]
        closing = asyncio.create_task(self._close(runtime, stop, kopf_stop, queue, background), name="end of term")
        try:
            await self._informer(feed, kopf_stop, stop)
            if not stop.requested:
                _log.error("the informer ended by itself")
            stop()
            await closing
        finally:
            for task in (closing, queue, *background):
                task.cancel()
            await asyncio.gather(closing, queue, *background, return_exceptions=True)

    async def _informer(self, feed: Feed, kopf_stop: asyncio.Event, stop: StopRequest) -> None:
        """Kopf, until `kopf_stop`; signals end our term, not Kopf's, so that the queue can drain first."""
        ours = asyncio.all_tasks()
        namespace = self._settings.namespace
        tasks = await kopf.spawn_tasks(
            registry=build_registry(feed, self._connection),
            settings=build_settings(rng=self._rng),
            standalone=True,
            identity=_UNUSED_IDENTITY,
            clusterwide=namespace is None,
            namespaces=() if namespace is None else (namespace,),
            stop_flag=kopf_stop,
        )
        self._route_signals(stop)  # Kopf has just installed its own
        await kopf.run_tasks(tasks, ignored=ours)

    async def _close(
        self,
        runtime: Runtime,
        stop: StopRequest,
        kopf_stop: asyncio.Event,
        queue: "asyncio.Task[None]",
        background: "list[asyncio.Task[None]]",
    ) -> None:
        """Wait for the request to stop, or for one of our own tasks to fail; then end things in order."""
        requested = asyncio.create_task(stop.wait(), name="stop requested")
        ended, _ = await asyncio.wait([requested, queue, *background], return_when=asyncio.FIRST_COMPLETED)
        requested.cancel()
        try:
            runtime.queue.drain()
            # Whoever lost the lease has only until the deadman; whoever was asked to stop, the grace it was given.
            left = min(self._settings.drain, max(self._elector.seconds_to_takeover() - 2.0, 0.0))
            _, busy = await asyncio.wait([queue], timeout=left)
            if busy:
                _log.warning("reconciliations cancelled: they did not end in time", seconds=round(left, 1))
            # Before Kopf stops: it would give tasks born since its start, the controller's among them, only 5 s to end.
            await self._controller.stop()
            await runtime.events.flush(seconds=min(_FLUSH_SECONDS, left))
        finally:
            kopf_stop.set()
        for task in ended - {requested}:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _reconcile(self, key: CacheKey) -> float | None:
        if not self._elector.is_leader():
            return None
        is_catalog = isinstance(key, CatalogKey)
        with bound(policy=None if is_catalog else key, catalog=key if is_catalog else None):
            return await self._controller.reconcile(key)

    async def _until_listed(self, relist: Relist, hold: HoldWatch, stop: StopRequest) -> None:
        self._route_signals(stop)
        while not stop.requested:
            try:
                # Before anything is decided: a coordinator that does not know of a hold would break it.
                await hold.read()
                await relist.once()
            except ApiUnavailableError as error:
                _log.warning("cannot list yet", error=str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LIST_RETRY_SECONDS):
                        await stop.wait()
            else:
                return

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._heartbeat.beat()
            due = loop.time() + _HEARTBEAT_SECONDS
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            self._metrics.loop_lag_seconds.set(max(0.0, loop.time() - due))

    def _route_signals(self, stop: StopRequest) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.signal)


_log = structlog.get_logger(__name__)
