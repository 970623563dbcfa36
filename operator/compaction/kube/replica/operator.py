"""The process of the operator: configuration, probes, election; then one term of leadership; then the end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Final

import structlog

from compaction.api.names import (
    ANNOTATION_CONFIGURATION,
    ANNOTATION_VERSION,
    COMPONENT_COORDINATOR,
    COORDINATOR_LEASE,
    LABEL_COMPONENT,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)
from compaction.errors import NotFoundError
from compaction.kube.client.api import LEASES, ApiCall, ApiClient
from compaction.kube.client.config import OWN_VERSION, ApiConnection, load_connection
from compaction.kube.launchers.base import Launcher
from compaction.kube.logging import LogFormat, setup_logging
from compaction.kube.metrics.registry import Metrics
from compaction.kube.replica import preflight
from compaction.kube.replica.runtime import Controller, Health, LoopHeartbeat, ProbeServer
from compaction.kube.replica.term import StopRequest, Term, TermSettings
from compaction.leases.election import ElectionPort, ElectionSettings, ElectionState, make_identity
from compaction.leases.elector import Deadman, Elector
from compaction.leases.record import Lease, LeaseRecord

# The API server as an election needs it: one Lease, three verbs, a deadline per call that fits the renew deadline.


@dataclass(frozen=True, slots=True)
class CoordinatorLease:
    """One named Lease (`leases.election.LeasePort`)."""

    client: ApiClient
    namespace: str
    name: str
    published: str = ""

    async def get(self) -> Lease:
        """Read it. Raises NotFoundError."""
        return Lease.parse(await self.client.get(LEASES, self.name, namespace=self.namespace))

    async def create(self, record: LeaseRecord) -> Lease:
        """Make it. Raises AlreadyExistsError, NotFoundError when its namespace does not exist."""
        labels = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_COMPONENT: COMPONENT_COORDINATOR}
        lease = Lease(name=self.name, namespace=self.namespace, record=record, labels=labels)
        try:
            return Lease.parse(await self.client.create(LEASES, self._told(lease).body()))
        except NotFoundError as error:
            raise NotFoundError(
                f'Cannot create Lease {self.name}: namespace "{self.namespace}" does not exist. '
                "Create it or correct --namespace, or --lease-namespace where that is given.",
                status=error.status,
                reason=error.reason,
            ) from None

    async def replace(self, lease: Lease) -> Lease:
        """Compare-and-set. Raises ConflictError."""
        return Lease.parse(await self.client.replace(LEASES, self._told(lease).body()))

    def _told(self, lease: Lease) -> Lease:
        """The Lease as this replica leaves it: there `kubectl compaction version` and `check` read what leads."""
        return lease.annotate({ANNOTATION_VERSION: OWN_VERSION, ANNOTATION_CONFIGURATION: self.published})


def coordinator_lease(
    connection: ApiConnection,
    *,
    namespace: str,
    name: str,
    call_deadline: float,
    published: str = "",
    user_agent: str = "compactor-elector",
    observe: Callable[[ApiCall], None] | None = None,
) -> Callable[[], AbstractAsyncContextManager[ElectionPort]]:
    """A factory for the elector: it opens a client of its own, inside the elector's loop."""

    @asynccontextmanager
    async def open_port() -> AsyncIterator[ElectionPort]:
        async with ApiClient(connection, user_agent=user_agent, deadline=call_deadline, observe=observe) as client:
            yield CoordinatorLease(client, namespace, name, published)

    return open_port


# The operator's process: configuration, probes, election; then one term of leadership; then the end.
#
# The main thread waits for the election and leads; the elector, the probes and the deadman have threads of their own.
# Exit codes and the order of the end are promised in docs/control-plane.md §3 and §5. A process leads once: after its
# term it exits, and its supervisor starts it again.

#: How long a thread may compute before another one gets its turn (Python's default is ten times as much). The elector
#: needs many turns for one renewal, and scans compute for minutes (docs/adr/0034-no-thread-is-made-less-urgent.md).
SWITCH_SECONDS: Final = 0.0005
#: What ending takes beyond the drain: posting Events, closing watches.
_STOP_SLACK_SECONDS: Final = 15.0


class ExitCode(IntEnum):
    """The exit codes of the process (70, the deadman's, is in leases.elector)."""

    STOPPED = 0
    FAILED = 1
    LEADERSHIP_LOST = 75  # EX_TEMPFAIL: start it again


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """One replica's configuration. `namespace` None watches all namespaces; a port of 0 lets the system choose.
    `published`: what it says of its configuration on the Lease that it holds.
    """

    namespace: str | None
    state_dir: Path
    lease_namespace: str | None = None  # default: the watched namespace, else the connection's
    lease_name: str = COORDINATOR_LEASE
    identity: str = field(default_factory=make_identity)
    kubeconfig: Path | None = None
    election: ElectionSettings = field(default_factory=ElectionSettings)
    bind_address: str = "127.0.0.1"
    metrics_port: int = 8080
    health_port: int = 8081
    log_format: LogFormat = LogFormat.TEXT
    log_level: int = 20
    concurrency: int = 4
    resync_seconds: float = 300.0
    drain_seconds: float = 20.0
    published: str = ""


MakeLauncher = Callable[[ApiClient], Launcher]
"""Makes the launcher of one term, with the term's client."""


def run_operator(
    config: OperatorConfig, *, make_controller: Callable[[], Controller], make_launcher: MakeLauncher
) -> int:
    """Run one replica until it is stopped or has lost its lease; returns the exit code. Main thread only.

    Raises CompactionError for what a person has to put right first (no API server, missing permissions, a busy port).
    """
    setup_logging(config.log_format, level=config.log_level)
    connection = load_connection(config.kubeconfig)
    lease_namespace = config.lease_namespace or config.namespace or connection.namespace
    asyncio.run(_preflight(connection, config, lease_namespace))
    config.state_dir.mkdir(parents=True, exist_ok=True)
    return Replica(config, connection, lease_namespace).run(make_controller, make_launcher)


async def _preflight(connection: ApiConnection, config: OperatorConfig, lease_namespace: str) -> None:
    async with ApiClient(connection, user_agent="compactor-operator") as client:
        refusals = await preflight.check_when_up(client, namespace=config.namespace, lease_namespace=lease_namespace)
        for refusal in refusals:
            _log.warning("a permission is missing", why=refusal)


class Replica:
    """The threads of one process and what passes between them."""

    def __init__(self, config: OperatorConfig, connection: ApiConnection, lease_namespace: str) -> None:
        self._config = config
        self._connection = connection
        self._lease_namespace = lease_namespace
        self._metrics = Metrics(version=version("compaction-operator"))
        self._metrics.leader.labels(config.lease_name).set(0)
        self._health = Health()
        self._heartbeat = LoopHeartbeat("the main loop", limit=60.0)
        self._wake = threading.Event()
        self._stop = StopRequest()
        self._elector = Elector(
            coordinator_lease(
                connection,
                namespace=lease_namespace,
                name=config.lease_name,
                call_deadline=config.election.call_deadline,
                published=config.published,
                observe=self._metrics.observe_call,
            ),
            identity=config.identity,
            settings=config.election,
            on_elected=self._on_elected,
            on_lost=self._on_lost,
            on_renewal=self._on_renewal,
            on_sent=self._metrics.lease_renew_delay_seconds.observe,
        )
        self._deadman = Deadman(self._elector, overdue=self._stop_is_overdue)

    def run(self, make_controller: Callable[[], Controller], make_launcher: MakeLauncher) -> int:
        """Serve probes, wait to be elected, lead, and end in order."""
        sys.setswitchinterval(SWITCH_SECONDS)
        servers = self._serve_probes()
        self._install_signal_handlers()
        self._elector.start()
        self._health.ready()
        _log.info("waiting to be elected", identity=self._config.identity, lease=self._config.lease_name)
        try:
            self._wake.wait()
            if self._elector.is_leader() and not self._stop.by_signal:
                self._lead(make_controller(), make_launcher)
            lost = not self._stop.by_signal and self._elector.standing is ElectionState.LOST
            # The guarded work is over. Released, the Lease is free at once; a lost one is not ours to touch.
            self._elector.stop(release=not lost)
            code = ExitCode.LEADERSHIP_LOST if lost else ExitCode.STOPPED if self._stop.by_signal else ExitCode.FAILED
        finally:
            self._deadman.disarm()
            self._elector.stop(release=True)
            self._metrics.leader.labels(self._config.lease_name).set(0)
            for server in servers:
                server.stop()
        _log.info("ended", identity=self._config.identity, code=int(code), reason=code.name)
        return int(code)

    def _lead(self, controller: Controller, make_launcher: MakeLauncher) -> None:
        settings = TermSettings(
            namespace=self._config.namespace,
            state_dir=self._config.state_dir,
            lease_namespace=self._lease_namespace,
            concurrency=self._config.concurrency,
            resync=self._config.resync_seconds,
            drain=self._config.drain_seconds,
        )
        term = Term(
            self._connection,
            settings,
            elector=self._elector,
            controller=controller,
            make_launcher=make_launcher,
            metrics=self._metrics,
            heartbeat=self._heartbeat,
        )
        self._deadman.arm()
        try:
            asyncio.run(term.run(self._stop))
        except Exception:  # noqa: BLE001 - the top of the process: whatever it was, the Lease must still be handed over
            _log.exception("the term ended with an error")
        finally:
            self._deadman.disarm()
            self._install_signal_handlers()  # the loop has put the defaults back

    def _stop_is_overdue(self) -> bool:
        return time.monotonic() - self._stop.requested_at > self._config.drain_seconds + _STOP_SLACK_SECONDS

    def _serve_probes(self) -> list[ProbeServer]:
        self._health.add("elector", self._check_elector)
        self._health.add("loop", self._heartbeat.check)
        config, registry = self._config, self._metrics.registry
        ports = dict.fromkeys((config.health_port, config.metrics_port))
        servers = [ProbeServer(self._health, registry, host=config.bind_address, port=port) for port in ports]
        for server in servers:
            server.start()
        _log.info("serving probes and metrics", address=config.bind_address, ports=[s.port for s in servers])
        return servers

    def _check_elector(self) -> str | None:
        silence = self._elector.stalled_for()
        return None if silence is None else f"no round finished for {silence:.0f} s"

    def _install_signal_handlers(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.signal()
        self._wake.set()

    def _on_elected(self) -> None:
        self._metrics.leader.labels(self._config.lease_name).set(1)
        self._wake.set()

    def _on_lost(self) -> None:
        self._metrics.leader.labels(self._config.lease_name).set(0)
        self._stop()
        self._wake.set()

    def _on_renewal(self, seconds: float, ok: bool) -> None:
        self._metrics.lease_renew_seconds.labels("success" if ok else "error").observe(seconds)


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/compaction-operator`, by default below `~/.local/state`."""
    base = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(base) / "compaction-operator"


_log = structlog.get_logger(__name__)
