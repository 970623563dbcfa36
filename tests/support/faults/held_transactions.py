"""An HTTP proxy in front of an etcd that holds one transaction until a test releases it: the moment at which a
coordinator has decided and nothing has happened yet.
"""

from __future__ import annotations

import http.client
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from compaction.catalogs.log.etcd.wire import TRANSACTION
from compaction.catalogs.log.layout import Keys, number
from support.faults.http_proxy import HttpProxy

Match = Callable[[dict[str, Any]], bool]
_FORWARD_SECONDS: Final = 60.0


def snapshot_of(prefix: str, version: int) -> Match:
    """The transaction that makes a version of the log at `prefix` its snapshot."""
    key, value = _text(Keys(prefix.rstrip("/")).snapshot), _text(number(version))
    return lambda body: any((put["key"], put["value"]) == (key, value) for put in _puts(body))


def claim_of(prefix: str) -> Match:
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

    match: Match
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
        return type("Handler", (_Handler,), {"owner": self})

    def __exit__(self, *error: object) -> None:
        self._ended.set()  # first: what is released now must not be forwarded
        for item in self._wanted:
            item.released.set()
        super().__exit__(*error)

    def hold(self, match: Match) -> Held:
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


class _Handler(BaseHTTPRequestHandler):
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
