"""The ingest endpoint for tests: served on loopback from a thread, called by a client that holds every answer against
the OpenAPI document.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from compaction.blocks.serving.server import IngestServer
from compaction.blocks.store import BlockStore
from compaction.catalogs.participants.reference import Participant
from compaction.serving.access import AccessRules, AllowedAccounts, CachedReviews, Gate, SharedSecret, TokenReview
from compaction.serving.service import Address, HttpService, RequestLimits, serve
from compaction.staging.store import StagingStore
from support.clocks import PATIENCE_SECONDS

# What every OpenAPI document of an endpoint must be, whatever the endpoint offers.


def check_routes(server: HttpService, document: dict[str, Any]) -> None:
    """The routes that are served are those of the document. Closes the server."""
    served = [(route.method.lower(), route.resource) for route in server.application().router.routes()]
    routes = {(method, resource.canonical) for method, resource in served if resource is not None}
    assert routes == {(method, path) for path, found in document["paths"].items() for method in found}
    server.close()


def check_whole(document: dict[str, Any]) -> None:
    """All that it refers to is there and described, nothing is left open, and operations have names of their own."""
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    assert set(_references(document)) <= {f"#/components/schemas/{name}" for name in schemas}
    for name, schema in schemas.items():
        assert "description" in schema, name
        assert schema.get("additionalProperties") is False or "enum" in schema, name
    operations = [item for path in document["paths"].values() for item in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    json.dumps(document)


def secured(document: dict[str, Any]) -> set[str]:
    """The operations that need a caller who is known."""
    operations = [item for path in document["paths"].values() for item in path.values()]
    return {operation["operationId"] for operation in operations if operation.get("security", document["security"])}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (item for name, item in value.items() if name == "$ref")
        yield from (found for item in value.values() for found in _references(item))
    elif isinstance(value, list):
        yield from (found for item in value for found in _references(item))


# As much of JSON Schema as our documents use: what is wrong with a value. An unknown keyword is an error.

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NOTES = {"title", "description", "default"}
_OTHER_TYPES = {
    "items", "properties", "required", "additionalProperties", "minLength", "minItems", "maxLength", "maxItems",
    "minimum", "maximum", "propertyNames", "maxProperties", "pattern",
}  # fmt: skip
"""They say nothing about a value of another type."""


def problems(value: Any, schema: dict[str, Any], document: dict[str, Any], where: str = "$") -> list[str]:
    """Every reason why the value is not one of the schema."""
    found: list[str] = []
    for keyword, rule in schema.items():
        match keyword:
            case "$ref":
                target: Any = document
                for part in rule.removeprefix("#/").split("/"):
                    target = target[part]
                found += problems(value, target, document, where)
            case "anyOf":
                tried = [problems(value, item, document, where) for item in rule]
                found += [] if [] in tried else [f"{where}: none of {tried}"]
            case "type":
                wrong = not isinstance(value, _TYPES[rule]) or (isinstance(value, bool) and rule != "boolean")
                found += [f"{where}: {value!r} is no {rule}"] if wrong else []
            case "const":
                found += [] if value == rule and not isinstance(value, bool) else [f"{where}: {value!r} is not {rule}"]
            case "enum":
                found += [] if value in rule else [f"{where}: {value!r} is not in {rule}"]
            case "items" if isinstance(value, list):
                found += [p for n, item in enumerate(value) for p in problems(item, rule, document, f"{where}[{n}]")]
            case "properties" if isinstance(value, dict):
                for name in rule.keys() & value.keys():
                    found += problems(value[name], rule[name], document, f"{where}.{name}")
            case "required" if isinstance(value, dict):
                found += [f"{where}: {name} is missing" for name in rule if name not in value]
            case "additionalProperties" if isinstance(value, dict):
                others = [name for name in value if name not in schema.get("properties", {})]
                if rule is False:
                    found += [f"{where}: {name} is unknown" for name in others]
                else:
                    found += [p for name in others for p in problems(value[name], rule, document, f"{where}.{name}")]
            case "propertyNames" if isinstance(value, dict):
                found += [p for name in value for p in problems(name, rule, document, f"{where}: {name}")]
            case "maxProperties" if isinstance(value, dict):
                found += [f"{where}: too many"] if len(value) > rule else []
            case "pattern" if isinstance(value, str):
                found += [] if re.search(rule, value) else [f"{where}: not of the form {rule}"]
            case "minLength" | "minItems" if isinstance(value, str | list):
                found += [f"{where}: too short"] if len(value) < rule else []
            case "maxLength" | "maxItems" if isinstance(value, str | list):
                found += [f"{where}: too long"] if len(value) > rule else []
            case "minimum" if isinstance(value, int):
                found += [f"{where}: too small"] if value < rule else []
            case "maximum" if isinstance(value, int):
                found += [f"{where}: too large"] if value > rule else []
            case _:
                assert keyword in _NOTES | _OTHER_TYPES, keyword
    return found


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
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
            if self.tls is None
            else http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE_SECONDS, context=self.tls)
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


# An ingest endpoint as a process of its own, started by its command.


@contextmanager
def serving_process(
    command: Sequence[str], server: type[HttpService], *, secret: Path, log: Path, environment: Mapping[str, str]
) -> Iterator[tuple[int, Endpoint]]:
    """The command, started on a free port for whoever has the shared secret; its process id, and a client. `log`: the
    file that takes what it has written when it has ended. `server`: what it serves, for the client.
    """
    options = ["--port=0", f"--secret-file=writer={secret}", "--log-format=json"]
    words = [sys.executable, "-m", "compaction.cli.main", *command, *options]
    with subprocess.Popen(words, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True) as running:
        said = running.stderr
        assert said is not None
        lines = []
        rest = None
        try:
            for line in said:
                lines.append(line)
                if found := re.search(r'"port": (\d+)', line):
                    break
            else:
                pytest.fail("".join(lines))
            rest = threading.Thread(target=lambda: log.write_text("".join(lines) + said.read()))
            rest.start()
            yield running.pid, Endpoint(int(found[1]), server=object.__new__(server))
        finally:
            if running.poll() is None:
                running.terminate()
            running.wait()
            if rest is not None:
                rest.join()
