"""A very small blocking client for the local control plane: start-up probes and fixtures, before and beside the
operator's own client.

JSON in and out, HTTP errors are answers and not exceptions. Each thread keeps the connection of its last request: a
handshake costs client and server five times what a request does, and who waits for something asks again and again.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: `status` code and the raw `text`."""

    status: int
    text: str

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass(frozen=True, slots=True)
class AdminClient:
    """Requests to `url` as the owner of the client certificate in `certificate`/`key` (without one: anonymous)."""

    url: str
    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        timeout: float = TIMEOUT_SECONDS,
    ) -> Answer:
        """Send one request. Raises OSError (refused, reset, timeout) when there is no answer at all."""
        connection = _connection(self, timeout)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return Answer(status=answer.status, text=answer.read().decode())
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionError(f"{self.url}: {error!r}") from error
        except BaseException:
            # Half of an answer may be left in it.
            connection.close()
            raise

    def connect(self) -> http.client.HTTPSConnection:
        """A connection; its first request opens it, and the next one opens it again once it is closed."""
        target = urlsplit(self.url)
        return http.client.HTTPSConnection(target.hostname or "", target.port, context=self._context())

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass(eq=False, slots=True)
class _Kept:
    """The connection that a thread keeps, of which process and client; closed when the thread ends."""

    process: int
    client: AdminClient
    connection: http.client.HTTPSConnection

    def __del__(self) -> None:
        self.connection.close()


_of_thread = threading.local()


def _connection(client: AdminClient, timeout: float) -> http.client.HTTPSConnection:
    """The one that is kept, if it is this client's; closed if the server has closed it, or says anything unasked."""
    kept: _Kept | None = getattr(_of_thread, "kept", None)
    if kept is None or kept.process != os.getpid() or kept.client != client:
        kept = _of_thread.kept = _Kept(os.getpid(), client, client.connect())
    connection = kept.connection
    if connection.sock is not None and _has_input(connection.sock):
        connection.close()
    connection.timeout = timeout
    if connection.sock is not None:
        connection.sock.settimeout(timeout)
    return connection


def _has_input(sock: socket.socket) -> bool:
    # Not select.select: it refuses descriptors above 1023, of which a process with many logs has some.
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    return bool(waiting.poll(0))
