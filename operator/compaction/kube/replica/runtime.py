"""The seam between the process and its controllers, and the probes that answer whatever the main loop is doing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from compaction.core.reconcile.observations import Hold
from compaction.errors import CompactionError
from compaction.kube.client.api import ApiClient
from compaction.kube.client.config import OWN_VERSION
from compaction.kube.client.transport import Resource
from compaction.kube.executor.events import EventRecorder
from compaction.kube.informer.cache import CacheKey, Delta, ObjectCache
from compaction.kube.informer.queue import WorkQueue
from compaction.kube.launchers.base import Launcher
from compaction.kube.metrics.registry import Metrics

# The seam between the process (election, informer, queue) and the controller that decides and acts.
#
# The process makes one `Runtime` per term of leadership, inside the loop that Kopf runs in, and hands it to the
# controller. Order: `controller.start(runtime)` before the first event; `observed` for every change the cache
# accepted, on the loop, before the policy's key is queued; `reconcile` for queued policy keys, never two at a time
# for one key; `stop` after the queue has drained. Every key is the key of a catalog or of a policy: jobs and Leases
# map to the policy they belong to, also when that policy no longer exists (which is how orphans are found).


@dataclass(frozen=True, slots=True)
class Runtime:
    """The parts that a controller works with; all of it belongs to the running loop.

    `is_leader` must be asked before every side effect outside the API server (starting or stopping a worker, deleting
    files); API writes are made harmless by their preconditions instead. `epoch` grows with every change of leadership.
    `hold` says whether the operator is on hold; when that changes, every key is queued.
    """

    client: ApiClient
    cache: ObjectCache
    queue: WorkQueue[CacheKey]
    launcher: Launcher
    events: EventRecorder
    metrics: Metrics
    is_leader: Callable[[], bool]
    epoch: int
    identity: str
    namespace: str | None
    state_dir: Path
    version: str = OWN_VERSION
    hold: Callable[[], Hold | None] = lambda: None


class Controller(Protocol):
    """Owned by `kube.controller` and `catalogs.operator`. `watches_catalogs`: whether catalogs are reconciled."""

    watches_catalogs: bool = False

    async def start(self, runtime: Runtime) -> None:
        """Take the term's runtime; nothing was observed yet."""
        ...

    def observed(self, resource: Resource, delta: Delta) -> None:
        """The cache accepted a change; the moment of this call is the local time of observation. Must not block."""
        ...

    async def reconcile(self, key: CacheKey) -> float | None:
        """Bring one policy and everything of it forward; returns seconds after which to look again, or None."""
        ...

    async def stop(self) -> None:
        """The queue has drained; end what `start` began. Workers are left running: they outlive their coordinator.

        May be called more than once.
        """
        ...


# Probes and metrics over HTTP, in a thread of their own: they answer whatever the main loop is doing.
#
# `/livez` (and `/healthz`): should this process be killed? Checks that can stall report why. `/readyz`: is the
# process initialised? Readiness is *not* leadership, or a rollout with a disruption budget would wait for ever
# (docs/design/control-plane-traps.md#probes). `/metrics`: Prometheus text.

#: Returns what is wrong, or None.
Check = Callable[[], str | None]

_TEXT: Final = "text/plain; charset=utf-8"


class ProbeServerError(CompactionError):
    """The port for probes or metrics cannot be used."""


class LoopHeartbeat:
    """A loop's sign of life: `beat()` from the loop, `check()` from anywhere; silent until the first beat."""

    def __init__(self, what: str, *, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._limit = limit
        self._clock = clock
        self._last: float | None = None

    def beat(self) -> None:
        """The loop runs."""
        self._last = self._clock()

    def stop(self) -> None:
        """The loop ended on purpose: silence is no longer a sign of anything."""
        self._last = None

    def check(self) -> str | None:
        """Return what is wrong, or None."""
        last = self._last
        if last is None or self._clock() - last <= self._limit:
            return None
        return f"{self._what} has been silent for {self._clock() - last:.0f} s (limit {self._limit:g} s)"


class Health:
    """Named checks; add them before serving. Thread safe for reading."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready = threading.Event()

    def add(self, name: str, check: Check) -> None:
        """A check of liveness."""
        self._live[name] = check

    def ready(self) -> None:
        """The process is initialised."""
        self._ready.set()

    def livez(self) -> list[str]:
        """Return what is wrong; empty means alive."""
        return [f"{name}: {wrong}" for name, check in self._live.items() if (wrong := check()) is not None]

    def readyz(self) -> list[str]:
        """Return what is missing; empty means ready."""
        return [] if self._ready.is_set() else ["not initialised yet"]


class ProbeServer:
    """One HTTP server; a port of 0 lets the system choose (see `port`). Start two for separate ports."""

    def __init__(self, health: Health, registry: CollectorRegistry | None, *, host: str, port: int) -> None:
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(health, registry))
        except OSError as error:
            raise ProbeServerError(
                f"cannot listen on {host}:{port} for probes and metrics: {error.strerror}; choose another port"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="probes", daemon=True
        )

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _handler(health: Health, registry: CollectorRegistry | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 10  # a client that says nothing does not keep a thread

        def do_GET(self) -> None:  # the name http.server looks for
            path = self.path.partition("?")[0]
            if path in ("/livez", "/healthz"):
                self._verdict(health.livez())
            elif path == "/readyz":
                self._verdict(health.readyz())
            elif path == "/metrics" and registry is not None:
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(HTTPStatus.OK, encode(registry), content_type)
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"not found\n", _TEXT)

        do_HEAD = do_GET

        def _verdict(self, problems: list[str]) -> None:
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            self._answer(status, ("\n".join(problems) or "ok").encode() + b"\n", _TEXT)

        def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds; they are not news."""

    return Handler
