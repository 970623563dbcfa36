"""etcd for tests: one member or three on loopback, stopped, frozen, started again and restored; each with its proxy."""

from __future__ import annotations

import contextlib
import secrets
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Endpoint, EtcdSettings
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.watching import WatchPace
from compaction.local.cluster.control_plane import server_environment
from compaction.local.processes.process import ProcessId, spawn
from support.catalogs.logs import Collector, wait_for
from support.time.waiting import eventually
from tools.servers.versitygw import free_port

HOST = "127.0.0.1"
QUICK = WatchPace(pulse=0.3, first_pause=0.02, most_pause=0.3)
"""A watch that notices within a test what takes seconds otherwise."""


@dataclass
class Member:
    """One etcd: its ports stay the same when it is started again."""

    name: str
    directory: Path
    client_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: ProcessId | None = None
    advertised_port: int | None = None
    """Where other members find it: its peer port, unless something stands before that."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(False, HOST, self.client_port)

    @property
    def peer(self) -> str:
        return f"http://{HOST}:{self.advertised_port or self.peer_port}"

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        assert self.process.send(number)

    def kill(self) -> None:
        """As a machine that lost its power, except that what it wrote is there."""
        self.signal(signal.SIGKILL)
        self.stop()

    def stop(self, patience: float = 5.0) -> None:
        """SIGTERM, and after `patience` seconds SIGKILL. A member with open watches takes eight to end by itself."""
        if self.process is not None:
            self.process.stop(patience=patience)
            self.process = None


@dataclass
class Members:
    """A cluster. Its data is written without fsync: no test takes power from the machine."""

    program: Path
    members: tuple[Member, ...]
    arguments: tuple[str, ...] = ()

    def start(self, *which: Member) -> None:
        """These members, or all, and wait until each knows a leader."""
        cluster = ",".join(f"{member.name}={member.peer}" for member in self.members)
        for member in which or self.members:
            member.directory.mkdir(parents=True, exist_ok=True)
            command = [
                str(self.program),
                f"--name={member.name}",
                "--data-dir=data",
                "--log-level=warn",
                "--unsafe-no-fsync",
                "--heartbeat-interval=100",
                "--election-timeout=1000",
                f"--listen-client-urls={member.endpoint}",
                f"--advertise-client-urls={member.endpoint}",
                f"--listen-peer-urls=http://{HOST}:{member.peer_port}",
                f"--initial-advertise-peer-urls={member.peer}",
                f"--initial-cluster={cluster}",
                *self.arguments,
            ]
            log = member.directory / "etcd.log"
            child = spawn(command, cwd=member.directory, log=log, env=server_environment())
            member.process = ProcessId.of(member.name, child.pid)
            assert member.process is not None, log.read_text()
        for member in which or self.members:
            eventually(partial(self._ready, member), f"{member.name} knows a leader", pause=0.05)

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def settings(self, *endpoints: Endpoint, call_seconds: float = 15.0, attempt_seconds: float = 2.0) -> EtcdSettings:
        """All members, or others."""
        found = endpoints or tuple(member.endpoint for member in self.members)
        return EtcdSettings(found, call_seconds=call_seconds, attempt_seconds=attempt_seconds)

    def client(self, *endpoints: Endpoint, call_seconds: float = 15.0) -> GatewayClient:
        return GatewayClient(self.settings(*endpoints, call_seconds=call_seconds))

    def leader(self) -> Member:
        """Of the members that answer."""

        def found() -> Member | None:
            client = self.client()
            statuses = client.status()
            client.close()
            leaders = [status.endpoint for status in statuses if status.leader == status.member != 0]
            return next((member for member in self.members if str(member.endpoint) in leaders), None)

        return eventually(found, "a leader", pause=0.05)

    def _ready(self, member: Member) -> bool:
        """It has a leader; also an etcd with users says so to all."""
        try:
            with urllib.request.urlopen(f"{member.endpoint}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@contextlib.contextmanager
def etcd_members(directory: Path, program: Path, count: int = 1, arguments: tuple[str, ...] = ()) -> Iterator[Members]:
    """A running cluster of so many members."""
    members = tuple(Member(f"m{number}", directory / f"m{number}") for number in range(count))
    cluster = Members(program, members, arguments)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@dataclass
class EtcdStore:
    """One log in a running etcd, under a prefix of its own."""

    members: Members
    prefix: str = field(default_factory=lambda: f"/catalogs/{secrets.token_hex(4)}")
    opened: list[EtcdUpdateLog] = field(default_factory=list)

    def open(self, *endpoints: Endpoint, call_seconds: float = 15.0) -> EtcdUpdateLog:
        client = self.members.client(*endpoints, call_seconds=call_seconds)
        log = EtcdUpdateLog(client, self.prefix, pace=QUICK)
        self.opened.append(log)
        return log

    def settle(self, collector: Collector, count: int) -> list[str]:
        return wait_for(collector, count)

    def defragment(self) -> None:
        """Every member rewrites its database, and answers nothing meanwhile."""
        for member in self.members.members:
            request = urllib.request.Request(f"{member.endpoint}/v3/maintenance/defragment", b"{}", method="POST")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.status == 200

    def disarm(self) -> None:
        """Clear the alarm of an etcd that had no space left, as `etcdctl alarm disarm` does."""
        client = self.members.client()
        (status,) = client.status()
        client.close()
        alarm = f'{{"action":"DEACTIVATE","memberID":"{status.member}","alarm":"NOSPACE"}}'.encode()
        request = urllib.request.Request(f"{status.endpoint}/v3/maintenance/alarm", alarm, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    def forget_history(self) -> None:
        client = self.members.client()
        client.compact(client.status()[0].revision)
        client.close()

    def __enter__(self) -> EtcdStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for log in self.opened:
            log.close()
