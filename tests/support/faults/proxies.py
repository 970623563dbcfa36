"""An HTTP proxy between us and a real S3 server that answers wrongly on demand.

Signatures survive it: the request is passed on with the Host that the client signed, which is the proxy's.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import selectors
import socket
import struct
import threading
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

from compaction.catalogs.log.etcd.wire import TRANSACTION
from compaction.catalogs.log.layout import Keys, number

# An HTTP server on loopback in front of a real one; what happens to a request is the subclass's to say.


@dataclass
class HttpProxy(ABC):
    """Serves from entry to exit. `target`: host and port of the real server; `handler` makes the class of handlers."""

    target: tuple[str, int]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    @abstractmethod
    def handler(self) -> type[BaseHTTPRequestHandler]: ...

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=f"{type(self).__name__} at {self.endpoint}"
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)
HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}


class Fault(Enum):
    """What becomes of one request."""

    PASS = "nothing is wrong with it"
    BUSY = "503 without touching the server"
    BUSY_AFTER = "the server carries it out, the answer is 503"
    RESET = "the connection is cut before the server sees it"
    RESET_AFTER = "the server carries it out, the connection is cut"
    SILENT_AFTER = "the server carries it out, no answer comes until the client gives up"
    SILENT = "no answer comes until the client gives up"
    TRUNCATED = "the head of the answer and half of its body"
    SHORT = "half of the body, as if that were all"
    FORBIDDEN = "403 that quotes the access key, as S3 does"


Match = Callable[[str, str], bool]


@dataclass
class FaultProxy(HttpProxy):
    """`proxy.plan(fault, times=2, method="PUT")` spoils the next requests; everything else is passed on."""

    seen: list[tuple[str, str]] = field(default_factory=list)
    _plan: list[tuple[Fault, str]] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"owner": self})

    def plan(self, fault: Fault, *, times: int = 1, method: str = "") -> None:
        """The next `times` requests (of that method) fail so, after those planned before."""
        with self._lock:
            self._plan += [(fault, method)] * times

    def clear(self) -> None:
        with self._lock:
            self._plan.clear()
            self.seen.clear()

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            for position, (fault, wanted) in enumerate(self._plan):
                if wanted in {"", method}:
                    del self._plan[position]
                    return fault
            return None

    def wait(self) -> None:
        """Say nothing for longer than any client of the tests listens."""
        self._ended.wait(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, *args: object) -> None:
        """Nothing: `seen` is the log."""

    def _serve(self) -> None:
        fault = self.owner.take(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if fault is Fault.BUSY:
            self._answer(503, {"content-type": "application/xml"}, SLOW_DOWN)
        elif fault is Fault.FORBIDDEN:
            key = self.headers["authorization"].split("Credential=")[1].split("/")[0]
            text = f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{key}</AWSAccessKeyId></Error>"
            self._answer(403, {"content-type": "application/xml"}, text.encode())
        elif fault in {Fault.RESET, Fault.SILENT}:
            self._cut(silent=fault is Fault.SILENT)
        else:
            self._pass_on(fault, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _pass_on(self, fault: Fault | None, body: bytes) -> None:
        connection = http.client.HTTPConnection(*self.owner.target, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
            length = answer.getheader("content-length")
        finally:
            connection.close()
        if fault in {Fault.RESET_AFTER, Fault.SILENT_AFTER}:
            self._cut(silent=fault is Fault.SILENT_AFTER)
        elif fault is Fault.BUSY_AFTER:
            self._answer(503, {"content-type": "application/xml"}, SLOW_DOWN)
        elif fault is Fault.TRUNCATED and self.command != "HEAD":
            self._answer(answer.status, headers, data[: len(data) // 2], length=len(data))
            self._cut()
        elif fault is Fault.SHORT:
            headers.pop("Content-Range", None)
            self._answer(answer.status, headers, data[: len(data) // 2])
        else:
            size = int(length) if self.command == "HEAD" and length else len(data)
            self._answer(answer.status, headers, data, length=size)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, length: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _cut(self, *, silent: bool = False) -> None:
        if silent:
            self.owner.wait()
        self.close_connection = True
        self.connection.close()


# A network that can be cut: a TCP proxy on loopback between one client and the API server.

CHUNK = 1 << 16


class Network(Enum):
    """What becomes of bytes and of new connections."""

    UP = "up"
    REFUSING = "refusing"
    """Connections are reset, new ones are reset as soon as they come."""
    BLACK_HOLE = "black hole"
    """Everything is accepted and nothing arrives. What was under way arrives late, once the network is up again."""


@dataclass(slots=True)
class _Pipe:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket


@dataclass
class TcpProxy:
    """Forwards to `target`. One thread; `set` takes effect within a few milliseconds."""

    target: tuple[str, int]
    state: Network = Network.UP
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._ended = False
        self._open: dict[socket.socket, _Pipe] = {}
        self._thread = threading.Thread(target=self._serve, name="tcp proxy")
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def set(self, state: Network) -> None:
        """Cut or mend the network."""
        self.state = state

    def passes(self, source: socket.socket, target: socket.socket, data: bytes) -> bool:
        """Whether these bytes go on; the connection is reset when they do not."""
        return True

    def kubeconfig(self, original: Path, url: str, path: Path) -> Path:
        """A copy of a kubeconfig that leads through this proxy."""
        text = original.read_text()
        assert url in text
        path.write_text(text.replace(url, f"https://127.0.0.1:{self.port}"))
        return path

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ended:
                if self.state is Network.REFUSING:
                    for end in list(self._open):
                        self._reset(end, selector)
                if self.state is Network.BLACK_HOLE:
                    # Nobody reads: the kernel takes what its buffers hold, and new connections up to the backlog.
                    threading.Event().wait(0.02)
                    continue
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.fileobj in self._open:
                        self._forward(self._open[key.fileobj], selector)
            for end in list(self._open):
                self._reset(end, selector)
            self._listener.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        if self.state is Network.REFUSING:
            _reset(client)
            return
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            _reset(client)
            return
        for source, target in ((client, server), (server, client)):
            self._open[source] = _Pipe(source, target)
            selector.register(source, selectors.EVENT_READ)

    def _forward(self, pipe: _Pipe, selector: selectors.BaseSelector) -> None:
        try:
            data = pipe.source.recv(CHUNK)
            if data and self.passes(pipe.source, pipe.target, data):
                pipe.target.sendall(data)
                return
        except OSError:
            pass
        self._reset(pipe.source, selector)

    def _reset(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        pipe = self._open.pop(end, None)
        if pipe is None:
            return
        self._open.pop(pipe.target, None)
        for item in (pipe.source, pipe.target):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(item)
            _reset(item)


def _reset(end: socket.socket) -> None:
    """Close with RST instead of FIN: the other side gets an error, not an end of file."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()


# An HTTP proxy in front of an etcd that holds one transaction until a test releases it: the moment at which a
# coordinator has decided and nothing has happened yet.

TransactionMatch = Callable[[dict[str, Any]], bool]
_FORWARD_SECONDS: Final = 60.0


def snapshot_of(prefix: str, version: int) -> TransactionMatch:
    """The transaction that makes a version of the log at `prefix` its snapshot."""
    key, value = _text(Keys(prefix.rstrip("/")).snapshot), _text(number(version))
    return lambda body: any((put["key"], put["value"]) == (key, value) for put in _puts(body))


def claim_of(prefix: str) -> TransactionMatch:
    """The transaction with which a coordinator claims the log at `prefix`."""
    key = _text(Keys(prefix.rstrip("/")).token)
    return lambda body: [put["key"] for put in _puts(body)] == [key]


def token_of(prefix: str, body: dict[str, Any]) -> int:
    """The fencing token that a transaction writes."""
    key = _text(Keys(prefix.rstrip("/")).token)
    (value,) = (put["value"] for put in _puts(body) if put["key"] == key)
    return int.from_bytes(b64decode(value))


def _puts(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [item["request_put"] for item in body["success"] if "request_put" in item]


def _text(data: bytes) -> str:
    return b64encode(data).decode()


@dataclass
class Held:
    """One transaction. `body`: as it was sent, once `caught` is set; `answer`: etcd's, once `answered` is."""

    match: TransactionMatch
    caught: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    body: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        """Whether etcd carried it out after its release."""
        assert self.answered.is_set()
        return bool(self.answer.get("succeeded", False))


@dataclass
class HoldingProxy(HttpProxy):
    """Forwards to the etcd at `target`."""

    _wanted: list[Held] = field(default_factory=list)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_TransactionHandler,), {"owner": self})

    def __exit__(self, *error: object) -> None:
        self._ended.set()  # first: what is released now must not be forwarded
        for item in self._wanted:
            item.released.set()
        super().__exit__(*error)

    def hold(self, match: TransactionMatch) -> Held:
        """Hold the next transaction that matches; others pass."""
        held = Held(match)
        with self._lock:
            self._wanted.append(held)
        return held

    def caught(self, path: str, body: bytes) -> Held | None:
        """The one that this request is; it waits here until its release."""
        if path != TRANSACTION:
            return None
        document = json.loads(body)
        with self._lock:
            held = next((item for item in self._wanted if not item.caught.is_set() and item.match(document)), None)
            if held is None:
                return None
            held.body = document
            held.caught.set()
        held.released.wait()
        return held

    @property
    def ended(self) -> bool:
        return self._ended.is_set()


class _TransactionHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: HoldingProxy

    def log_message(self, *args: object) -> None:
        """Nothing: `Held` is the log."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        held = self.owner.caught(self.path, body)
        if self.owner.ended:
            self.close_connection = True
            return
        status, answer = self._forward(body)
        if held is not None:
            held.answer = json.loads(answer)
            held.answered.set()
        try:
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
        except OSError:
            self.close_connection = True  # the client is gone, and etcd has answered all the same

    def _forward(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.owner.target, timeout=_FORWARD_SECONDS)
        headers = {"Content-Type": "application/json"}
        if authorization := self.headers.get("authorization"):
            headers["Authorization"] = authorization
        try:
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
