"""The ingest endpoint for tests: served on loopback from a thread, called by a client that holds every answer against
the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from compaction.blocks.serving.server import IngestServer
from compaction.blocks.store import BlockStore
from compaction.catalogs.participants.reference import Participant
from compaction.serving.access import AccessRules, AllowedAccounts, CachedReviews, Gate, SharedSecret, TokenReview
from compaction.serving.service import Address, HttpService, RequestLimits, serve
from compaction.staging.store import StagingStore
from support.stores.json_schema import problems

SECRET = "a secret of the tests"
EVERYBODY = {"secret:writer": ["*"]}


@dataclass
class Answer:
    """Of one request. `body`: the JSON, or the text of anything else."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        return str(self.body["code"])

    def outcomes(self) -> list[tuple[str, str | None]]:
        """(outcome, code) of each block."""
        return [(item["outcome"], item.get("code")) for item in self.body["blocks"]]


@dataclass
class Endpoint:
    """A running server as a client sees it."""

    port: int
    server: HttpService
    tls: ssl.SSLContext | None = None
    document: dict[str, Any] = field(default_factory=dict, repr=False)
    token: str | None = SECRET
    seen: set[tuple[str, str, int]] = field(default_factory=set)
    """(method, path, status) of all answers."""

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        token: str | None = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request; the answer is one that the document knows. `token` "" is the endpoint's, None sends none."""
        sent = dict(headers or {})
        if (token := self.token if token == "" else token) is not None:
            sent.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            if self.tls is None
            else http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.tls)
        )
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            data, kind = response.read(), response.headers.get_content_type()
        finally:
            connection.close()
        found = json.loads(data) if kind == "application/json" else data.decode()
        answer = Answer(response.status, found, dict(response.headers))
        self._hold_against_the_document(method, path.partition("?")[0], answer, kind)
        return answer

    @property
    def documented(self) -> set[tuple[str, str, int]]:
        """(method, path, status) of all answers of the document; one that is not in it fails where it is given."""
        return {
            (method.upper(), path, int(status))
            for path, found in self.document["paths"].items()
            for method, operation in found.items()
            for status in operation["responses"]
        }

    def register(self, *blocks: Mapping[str, Any], **options: Any) -> Answer:
        return self.call("POST", "/v1/blocks", json.dumps({"blocks": blocks}).encode(), **options)

    def list(self, *, token: str | None = "", **query: Any) -> Answer:
        given = {name.rstrip("_"): value for name, value in query.items()}
        return self.call("GET", "/v1/blocks?" + urlencode(given, quote_via=quote), token=token)

    def _template(self, path: str) -> str:
        """The path of the document with parameters in it; the path itself when there is none."""
        for template in self.document.get("paths", {}):
            if re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)), path):
                return str(template)
        return path

    def _hold_against_the_document(self, method: str, path: str, answer: Answer, kind: str) -> None:
        path = self._template(path)
        self.seen.add((method, path, answer.status))
        operation = self.document.get("paths", {}).get(path, {}).get(method.lower())
        if operation is None:
            return
        described = operation["responses"][str(answer.status)]
        assert kind in described["content"], f"{kind} is not documented"
        assert set(described.get("headers", ())) <= set(answer.headers)
        assert problems(answer.body, described["content"][kind]["schema"], self.document) == []


def gate(
    directory: Path,
    *,
    secrets: Mapping[str, str] | None = None,
    tenants: Mapping[str, list[str]] | None = None,
    review: TokenReview | None = None,
    allowed: tuple[str, ...] = (),
    clock: Callable[[], float] | None = None,
) -> Gate:
    """Who may come in; by default whoever has SECRET."""
    shared = []
    for name, text in ({"writer": SECRET} if secrets is None else secrets).items():
        file = directory / name
        file.write_text(text + "\n")
        shared.append(SharedSecret(name, file))
    options = {} if clock is None else {"clock": clock}
    reviews = None if review is None else CachedReviews(review, AllowedAccounts(allowed), **options)
    rules = None if tenants is None else AccessRules({name: frozenset(found) for name, found in tenants.items()})
    return Gate(shared, reviews, rules)


@contextmanager
def serving(
    store: BlockStore | StagingStore | Participant,
    make_gate: Callable[[], Gate],
    *,
    make: Callable[..., HttpService] = IngestServer,
    limits: RequestLimits | None = None,
    address: Address | None = None,
    tls: ssl.SSLContext | None = None,
    finish: Callable[[], Awaitable[None]] | None = None,
    document: str = "/openapi.json",
) -> Iterator[Endpoint]:
    """The server in a thread with an event loop of its own; ended at the end, and whatever went wrong is raised.
    `make_gate`, `make` and `finish` are called in that loop.
    """
    begun, failure = threading.Event(), []
    found: dict[str, Any] = {}

    async def run() -> None:
        stop = found["stop"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        server = found["server"] = make(store, make_gate(), limits=limits)

        def started(port: int) -> None:
            found["port"] = port
            begun.set()

        try:
            await serve(server, address or Address(port=0), stop=stop, started=started)
        finally:
            server.close()
            if finish is not None:
                await finish()

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001
            failure.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=main, name="ingest-server")
    thread.start()
    begun.wait()
    try:
        if not failure:
            endpoint = Endpoint(found["port"], found["server"], tls)
            endpoint.document = endpoint.call("GET", document).body
            yield endpoint
    finally:
        if "loop" in found and not failure:
            found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()
    if failure:
        raise failure[0]
