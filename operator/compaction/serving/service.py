"""An endpoint as an aiohttp application on a port: routes, limits, TLS, metrics, and an end that breaks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, ValidationError

from compaction.api.text.printing import cut, printable
from compaction.serving.access import Gate
from compaction.serving.errors import IngestConfigError, RequestRefusedError
from compaction.serving.openapi import JSON, LINES, Api, Call, EndpointOperation, Run
from compaction.serving.refusals import Refusals, RefusedRequest, bad_request, malformed

# Metrics that every endpoint counts. Labels are of small, fixed sets: no tenant, no principal, no path.

_SECONDS: Final = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class RequestMetrics:
    """Of one server, in a registry of its own unless one is given. `prefix`: of the names of its metrics."""

    def __init__(self, prefix: str, registry: CollectorRegistry | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # see kube/metrics/registry.py
        self.registry = registry or CollectorRegistry()
        self.requests = Counter(
            f"{prefix}_requests",
            "Requests answered, by operation and status",
            ["operation", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            f"{prefix}_request_seconds",
            "From the head of a request to its answer",
            ["operation"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.running = Gauge(f"{prefix}_requests_running", "Requests under way", registry=self.registry)


# An endpoint as an aiohttp application: routes, limits, and one form of every refusal.
#
# Order of a request: a place among those under way, who is asking and for what, the query, the body (bounded in bytes
# and seconds), then the store in a thread. Before the caller is authenticated, neither the body nor the store is read.

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of what one server takes upon itself. `threads`: requests that work in the store at a time;
    `in_flight`: requests under way altogether.
    """

    body_bytes: int = 1 << 20
    body_seconds: float = 30.0
    in_flight: int = 64
    threads: int = 8


class HttpService:
    """One endpoint, for one event loop. `close` when the application has ended."""

    def __init__(
        self, gate: Gate, api: Api, refusals: Refusals, *, limits: RequestLimits, metrics: RequestMetrics
    ) -> None:
        self._gate, self._api, self.refusals, self.limits = gate, api, refusals, limits
        self._metrics = metrics
        self._requests = ThreadPoolExecutor(limits.threads, thread_name_prefix="requests")
        self._under_way = 0
        self._document = json.dumps(api.document(version("compaction-operator"))).encode()
        self.ready = False

    def application(self) -> web.Application:
        """The application: a route for each row of the table."""
        app = web.Application(client_max_size=self.limits.body_bytes, middlewares=[self._answered])
        open_to_all: dict[str, Handler] = {
            "openapi": self._openapi,
            "healthz": self._health,
            "readyz": self._readiness,
            "metrics": self._exposed,
        }
        for operation in self._api.operations:
            # By what the row says, not by its name: one of an endpoint's own is never open.
            run = operation.run
            handler = open_to_all[operation.name] if run is None else partial(self._known, operation, run)
            app.router.add_route(operation.method, operation.path, handler, name=operation.name)
        app.on_response_prepare.append(_anonymous)
        return app

    def close(self) -> None:
        """Wait for the threads; the store stays open."""
        self._requests.shutdown()

    # -- around every request -----------------------------------------------------------------------------------------

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # The operation for metrics, never a path, which anybody may invent.
        began, name = time.perf_counter(), str(request.match_info.route.name or "none")
        self._metrics.running.inc()
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            answer = self.refusals.of_http(error)
        except self.refusals.handled as error:
            answer = self.refusals.of_error(error, operation=name)
        except Exception:  # the boundary of a request: whatever it was, the caller gets the answer that is documented
            log.exception("a request failed unexpectedly", operation=name)
            answer = self.refusals.unexpected()
        finally:
            self._metrics.running.dec()
        self._metrics.requests.labels(name, str(answer.status)).inc()
        self._metrics.seconds.labels(name).observe(time.perf_counter() - began)
        return answer

    async def _known(self, operation: EndpointOperation, run: Run, request: web.Request) -> web.StreamResponse:
        if self._under_way >= self.limits.in_flight:
            message = "too many requests are under way: try again"
            raise RequestRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, RefusedRequest.BUSY, message)
        self._under_way += 1
        try:
            principal = await self._gate.enter(request.headers.get("Authorization"))
            if operation.scope:
                principal.check(operation.scope.format_map(request.match_info))
            query = None if operation.query is None else _query_of(request, operation.query)
            body = await self._body_of(request, operation)
            answer = await run(self, Call(principal, request.match_info, query, body))
        finally:
            self._under_way -= 1
        return web.Response(body=answer if isinstance(answer, bytes) else answer.to_json(), content_type=JSON)

    async def _body_of(self, request: web.Request, operation: EndpointOperation) -> BaseModel | bytes | None:
        """The body by its model, or the bytes of lines. Raises RequestRefusedError."""
        if operation.body is None and operation.lines is None:
            return None
        kind = JSON if operation.body is not None else LINES
        if request.content_type != kind or request.headers.get("Content-Encoding", "identity") != "identity":
            why = f"the body is {kind}, not compressed, and Content-Type says so"
            raise RequestRefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, RefusedRequest.UNSUPPORTED_MEDIA_TYPE, why)
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await request.read()
        except TimeoutError:
            message = "the body did not arrive in time"
            raise RequestRefusedError(HTTPStatus.REQUEST_TIMEOUT, RefusedRequest.TOO_SLOW, message) from None
        if operation.body is None:
            return body
        try:
            return operation.body.model_validate_json(body, by_name=False, by_alias=True)
        except ValidationError as error:
            raise malformed(error) from None

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Work in the store."""
        return await asyncio.get_running_loop().run_in_executor(self._requests, call)

    # -- open to every caller -----------------------------------------------------------------------------------------

    async def _openapi(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._document, content_type=JSON)

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readiness(self, _: web.Request) -> web.StreamResponse:
        if self.ready:
            return web.Response(text="ok\n")
        return web.Response(text="starting or stopping\n", status=HTTPStatus.SERVICE_UNAVAILABLE)

    async def _exposed(self, request: web.Request) -> web.StreamResponse:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._metrics.registry), headers={"Content-Type": content_type})


def _query_of(request: web.Request, model: type[BaseModel]) -> BaseModel:
    """The query by its model. Raises RequestRefusedError."""
    try:
        unquote_to_bytes(request.rel_url.raw_query_string).decode()
    except UnicodeDecodeError:
        # What cannot be decoded would be taken for the text of its escapes.
        raise bad_request("the query is not UTF-8") from None
    given = request.query
    if twice := next((name for name in given if len(given.getall(name)) > 1), None):
        raise bad_request(f"{printable(cut(twice, 100))} is given twice")
    try:
        return model.model_validate(dict(given), by_name=False, by_alias=True)
    except ValidationError as error:
        raise malformed(error) from None


async def _anonymous(_: web.Request, response: web.StreamResponse) -> None:
    """The response does not disclose program and version."""
    response.headers["Server"] = "compaction"


# The endpoint on a port, until it is stopped: TLS by files that may be replaced, an end that breaks nothing.

LOOK_SECONDS: Final = 30.0
"""How often files of TLS are checked."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate (with its chain) and its key, as PEM."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Raises IngestConfigError."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(context)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """New connections get what is in the files now. Raises IngestConfigError."""
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise IngestConfigError(f"{self.certificate} and {self.key}: cannot be used for TLS: {error}") from None

    def version(self) -> tuple[tuple[int, int], ...]:
        """Another one when a file was replaced; empty while one is missing."""
        try:
            found = [os.stat(path) for path in (self.certificate, self.key)]
        except OSError:
            return ()
        return tuple((item.st_ino, item.st_mtime_ns) for item in found)


@dataclass(frozen=True, slots=True)
class Address:
    """The address to listen on; port 0 is any free one. `tls` None is plain HTTP, beyond loopback only if `plain` says
    so.

    `drain_seconds`: how long requests are still accepted after the signal to stop.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    tls: TlsFiles | None = None
    plain: bool = False
    drain_seconds: float = 0.0

    def check(self) -> None:
        """Raises IngestConfigError: tokens would travel readably."""
        if self.tls is None and not self.plain and not is_loopback(self.host):
            raise IngestConfigError(
                f"{self.host}: beyond loopback, bearer tokens would travel readably: give --tls-cert and --tls-key, or "
                "--plain-http where something else encrypts"
            )


async def serve(
    server: HttpService, address: Address, *, stop: asyncio.Event, started: Callable[[int], None] = lambda _: None
) -> None:
    """Serve until `stop` is set; `started` gets the port. Raises IngestConfigError."""
    address.check()
    context = address.tls.context() if address.tls is not None else None
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handle_signals=False,
        shutdown_timeout=20.0,
        auto_decompress=False,  # a little that stands for a lot would be unpacked before anybody is known
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise IngestConfigError(f"cannot listen on {where}: {error.strerror}; choose another port") from None
        watching = asyncio.create_task(_watch(address.tls, context))
        port = int(runner.addresses[0][1])
        server.ready = True
        log.info("listening", host=address.host, port=port, tls=context is not None)
        started(port)
        try:
            await stop.wait()
        finally:
            server.ready = False
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        await asyncio.sleep(address.drain_seconds)
    finally:
        await runner.cleanup()


async def _watch(files: TlsFiles | None, context: ssl.SSLContext | None) -> None:
    """Certificates are renewed long before they end."""
    if files is None or context is None:
        return
    seen = files.version()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        found = files.version()
        if found and found != seen:
            try:
                files.context()  # a pair that does not fit would spoil the one in use
                files.load(context)
            except IngestConfigError as error:
                log.error("the new certificate cannot be used; the old one stays", error=str(error))
            else:
                log.info("the certificate was replaced")
            seen = found


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own: what travels there needs no encryption."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
