"""etcd for tests: one member or three on loopback, stopped, frozen, started again and restored; each with its proxy."""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
import socket
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from compaction.catalogs.log.etcd.gateway import GatewayClient
from compaction.catalogs.log.etcd.wire import Endpoint, EtcdSettings, Tls
from compaction.catalogs.log.etcd_log import EtcdUpdateLog
from compaction.catalogs.log.watching import WatchPace
from compaction.local.cluster.control_plane import server_environment
from compaction.local.processes.process import ProcessId, spawn
from support.catalogs.logs import Collector, wait_for
from support.clocks import eventually
from support.faults.proxies import TcpProxy
from tools.servers.etcd import LocalEtcd
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


# A partition between members of one etcd: a proxy before the peer port of each, which knows who sends.

SENDER = re.compile(rb"X-Server-From: ([0-9a-f]+)")
"""Each request of a member to another one names its id; a connection has requests of one member."""


@dataclass
class PeerProxy(TcpProxy):
    """Resets the connections of members whose ids are in `cut`, in hexadecimal digits."""

    cut: frozenset[str] = frozenset()
    _senders: dict[socket.socket, str] = field(default_factory=dict)

    def passes(self, source: socket.socket, target: socket.socket, data: bytes) -> bool:
        found = SENDER.search(data) if source not in self._senders else None
        if found is not None:
            # Answers over the same connection, such as a stream of messages, are of the same pair.
            self._senders[source] = self._senders[target] = found[1].decode()
        return self._senders.get(source) not in self.cut


@dataclass
class Partition:
    """The proxies of all members, by name."""

    members: Members
    proxies: dict[str, PeerProxy]

    def isolate(self, one: Member) -> None:
        """Neither side hears from the other; clients reach both."""
        ids = self._ids()
        for member in self.members.members:
            others = frozenset(id for name, id in ids.items() if name != member.name)
            self.proxies[member.name].cut = others if member is one else frozenset({ids[one.name]})

    def heal(self) -> None:
        for proxy in self.proxies.values():
            proxy.cut = frozenset()

    def _ids(self) -> dict[str, str]:
        client = self.members.client()
        with contextlib.closing(client):
            by_endpoint = {status.endpoint: f"{status.member:x}" for status in client.status()}
        return {member.name: by_endpoint[str(member.endpoint)] for member in self.members.members}


@contextlib.contextmanager
def partitioned(directory: Path, program: Path, count: int = 3) -> Iterator[Partition]:
    """A running cluster whose members reach each other through proxies."""
    members = tuple(Member(f"m{number}", directory / f"m{number}") for number in range(count))
    with contextlib.ExitStack() as open_proxies:
        proxies = {}
        for member in members:
            proxies[member.name] = open_proxies.enter_context(PeerProxy((HOST, member.peer_port)))
            member.advertised_port = proxies[member.name].port
        cluster = Members(program, members)
        try:
            cluster.start()
            yield Partition(cluster, proxies)
        finally:
            cluster.stop()


# Users of an etcd for tests: root, and one who may read and write one prefix.

USER = "orders"
PASSWORD = "s3cret-of-the-orders"


def nameless(running: LocalEtcd) -> EtcdSettings:
    """A certificate without a common name: the gateway of an etcd with users takes no other."""
    pair = running.authority._issue(
        x509.Name([]), usage=ExtendedKeyUsageOID.CLIENT_AUTH, names=(x509.DNSName("catalog"),)
    )
    certificate, key = (running.authority.directory / f"nameless.{kind}" for kind in ("crt", "key"))
    certificate.write_bytes(pair.certificate)
    key.write_bytes(pair.key)
    return replace(running.settings, tls=Tls(running.authority.ca, certificate, key))


def with_users(settings: EtcdSettings, prefix: str) -> EtcdSettings:
    """Require users from now on; the settings of the one for the prefix."""
    client = GatewayClient(settings)
    start = f"{prefix}/"
    permission = {
        "permType": "READWRITE",
        "key": b64encode(start.encode()).decode(),
        "range_end": b64encode((start[:-1] + "0").encode()).decode(),
    }
    steps: list[tuple[str, dict[str, Any]]] = [
        ("/v3/auth/role/add", {"name": "root"}),
        ("/v3/auth/user/add", {"name": "root", "password": "root-of-the-test"}),
        ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
        ("/v3/auth/role/add", {"name": USER}),
        ("/v3/auth/role/grant", {"name": USER, "perm": permission}),
        ("/v3/auth/user/add", {"name": USER, "password": PASSWORD}),
        ("/v3/auth/user/grant", {"user": USER, "role": USER}),
        ("/v3/auth/enable", {}),
    ]
    for path, what in steps:
        client._call(path, what)
    client.close()
    return replace(settings, user=USER, password=PASSWORD)
