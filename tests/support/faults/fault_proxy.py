"""An HTTP proxy between us and a real S3 server that answers wrongly on demand.

Signatures survive it: the request is passed on with the Host that the client signed, which is the proxy's.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler

from support.faults.http_proxy import HttpProxy

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
