"""A very small blocking client for the local control plane: start-up probes and fixtures, before and beside the
operator's own client.

One request per connection, JSON in and out, HTTP errors are answers and not exceptions.
"""

from __future__ import annotations

import http.client
import json
import ssl
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
        target = urlsplit(self.url)
        connection = http.client.HTTPSConnection(
            target.hostname or "", target.port, timeout=timeout, context=self._context()
        )
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = connection.getresponse()
            return Answer(status=answer.status, text=answer.read().decode())
        except http.client.HTTPException as error:
            raise ConnectionError(f"{self.url}: {error!r}") from error
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context
