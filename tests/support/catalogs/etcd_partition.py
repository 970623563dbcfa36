"""A partition between members of one etcd: a proxy before the peer port of each, which knows who sends."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.catalogs.etcd_members import HOST, Member, Members
from support.faults.tcp_proxy import TcpProxy

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
