"""HTTP connections to members of etcd, kept open between requests (docs/design/catalogs.md#client-of-etcd)."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections import defaultdict
from dataclasses import dataclass

from compaction.catalogs.log.etcd.wire import Document, Endpoint

IDLE_CONNECTIONS = 8
"""Kept per member; more than that were needed for a moment only."""
KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds and probes until a connection whose other end is gone is noticed."""


@dataclass(frozen=True, slots=True)
class EtcdAnswer:
    """Status of HTTP and body. `date`: the server's clock, as its header says it, "" without one."""

    status: int
    body: bytes
    date: str = ""


class Connections:
    """A pool. Any thread may use it; one connection serves one request at a time."""

    def __init__(self, context: ssl.SSLContext | None, timeout: float) -> None:
        self._context = context
        self._timeout = timeout
        self._idle: defaultdict[Endpoint, list[http.client.HTTPConnection]] = defaultdict(list)
        self._lock = threading.Lock()
        self._closed = False

    def post(self, endpoint: Endpoint, path: str, what: Document, token: str) -> EtcdAnswer:
        """One request. OSError and http.client.HTTPException when it fails on the way, in either direction."""
        with self._lock:
            idle = self._idle[endpoint]
            connection = idle.pop() if idle else None
        if connection is None:
            connection = self.open(endpoint)
        kept = False
        try:
            send(connection, path, what, token)
            response = connection.getresponse()
            answer = EtcdAnswer(response.status, response.read(), response.headers.get("Date", ""))
            kept = not response.will_close
        finally:
            if not kept or not self._keep(endpoint, connection):
                connection.close()
        return answer

    def open(self, endpoint: Endpoint) -> http.client.HTTPConnection:
        """A connection of one's own, which the caller closes."""
        if endpoint.secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                endpoint.host, endpoint.port, timeout=self._timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=self._timeout)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            if hasattr(socket, option):  # not every system has them
                connection.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return connection

    def forget(self, endpoint: Endpoint) -> None:
        """Close what is idle: after one failure the others are of the same age."""
        with self._lock:
            idle, self._idle[endpoint] = self._idle[endpoint], []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back."""
        with self._lock:
            self._closed = True
            idle = [connection for item in self._idle.values() for connection in item]
            self._idle.clear()
        for connection in idle:
            connection.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def _keep(self, endpoint: Endpoint, connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            idle = self._idle[endpoint]
            if self._closed or len(idle) >= IDLE_CONNECTIONS:
                return False
            idle.append(connection)
            return True


def send(connection: http.client.HTTPConnection, path: str, what: Document, token: str) -> None:
    """Send a request; the token of a user goes into a header, and nowhere else."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = token
    try:
        connection.request("POST", path, json.dumps(what, separators=(",", ":")), headers)
    except (ssl.SSLError, ConnectionError):  # not where the time is over: a read would wait as long again
        _raise_alert(connection.sock)
        raise


def distrusts(error: Exception) -> bool:
    """One side does not accept the certificate of the other; a connection that merely broke off is no such failure."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError))


def _raise_alert(end: socket.socket | None) -> None:
    """Raise what a member said before it closed, as ssl.SSLError. With TLS 1.3 it refuses a certificate after the
    handshake: a request that comes later than that fails as one on any broken connection, and the reason is still to be
    read.
    """
    if isinstance(end, ssl.SSLSocket):
        try:
            end.recv(1)
        except OSError as error:
            if distrusts(error):
                raise


def shut(end: socket.socket) -> None:
    """End a connection that another thread reads from: closing alone would leave that thread waiting."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
