"""The endpoint as an aiohttp application: routes, limits, and one form of every refusal.

Order of a request: a place among those under way, who is asking, the body (bounded in bytes and seconds), then the
store in a thread. Before the caller is authenticated, neither the body nor the store is read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Final, TypeVar

import structlog
from aiohttp import web
from prometheus_client.exposition import choose_encoder
from pydantic import ValidationError

from compaction.api.text.safe import cut, printable
from compaction.exceptions import NotAllowedError
from compaction.ingest.access import Gate, Principal
from compaction.ingest.messages import (
    ListingAnswer,
    ListingQuery,
    LiveBlock,
    Problem,
    RegisterAnswer,
    RegisterRequest,
    RegistrationOutcome,
)
from compaction.ingest.metrics import IngestMetrics
from compaction.ingest.openapi import JSON, OPERATIONS, Name, document
from compaction.ingest.refusals import FAILED_HERE, HANDLED, of_error, of_http, refusal
from compaction.ingest.registering import register
from compaction.stores.blocks.index.listing import BlockFilter
from compaction.stores.blocks.index.pages import Page, page
from compaction.stores.blocks.store import BlockStore

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log = structlog.get_logger(__name__)
_SHOWN_ERRORS: Final = 3


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one server takes upon itself. `threads`: requests that work in the store at a time, and as many footers that
    are read at a time; `in_flight`: requests under way altogether.
    """

    body_bytes: int = 1 << 20
    body_seconds: float = 30.0
    in_flight: int = 64
    threads: int = 8


class IngestServer:
    """Serves one store; for one event loop. `close` when the application has ended."""

    def __init__(
        self,
        store: BlockStore,
        gate: Gate,
        *,
        limits: RequestLimits | None = None,
        metrics: IngestMetrics | None = None,
    ) -> None:
        self._store, self._gate = store, gate
        self._limits = limits or RequestLimits()
        self.metrics = metrics or IngestMetrics()
        self._requests = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="ingest")
        self._footers = ThreadPoolExecutor(self._limits.threads, thread_name_prefix="footers")
        self._under_way = 0
        self._document = json.dumps(document(version("compaction-operator"))).encode()
        self.ready = False

    def application(self) -> web.Application:
        """What to serve."""
        app = web.Application(client_max_size=self._limits.body_bytes, middlewares=[self._answered])
        handlers: Mapping[Name, Handler] = {
            Name.REGISTER: partial(self._known, self._register),
            Name.LIST: partial(self._known, self._list),
            Name.DOCUMENT: self._openapi,
            Name.HEALTH: self._health,
            Name.READY: self._readiness,
            Name.METRICS: self._exposed,
        }
        for operation in OPERATIONS:
            app.router.add_route(operation.method, operation.path, handlers[operation.name], name=operation.name.value)
        app.on_response_prepare.append(_anonymous)
        return app

    def close(self) -> None:
        """Wait for the threads; the store stays open."""
        self._requests.shutdown()
        self._footers.shutdown()

    # -- around every request -----------------------------------------------------------------------------------------

    @web.middleware
    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        began, name = time.perf_counter(), _operation(request)
        self.metrics.running.inc()
        try:
            answer = await handler(request)
        except web.HTTPException as error:
            answer = of_http(error)
        except HANDLED as error:
            answer = of_error(error, operation=name)
        except Exception:  # the boundary of a request: whatever it was, the caller gets the answer that is documented
            log.exception("a request failed unexpectedly", operation=name)
            answer = refusal(HTTPStatus.INTERNAL_SERVER_ERROR, Problem.FAILED, FAILED_HERE)
        finally:
            self.metrics.running.dec()
        self.metrics.requests.labels(name, str(answer.status)).inc()
        self.metrics.seconds.labels(name).observe(time.perf_counter() - began)
        return answer

    async def _known(
        self, handler: Callable[[web.Request, Principal], Awaitable[web.StreamResponse]], request: web.Request
    ) -> web.StreamResponse:
        if self._under_way >= self._limits.in_flight:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, Problem.BUSY, "too many requests are under way: try again")
        self._under_way += 1
        try:
            return await handler(request, await self._gate.enter(request.headers.get("Authorization")))
        finally:
            self._under_way -= 1

    # -- operations ---------------------------------------------------------------------------------------------------

    async def _register(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        if request.content_type != JSON or request.headers.get("Content-Encoding", "identity") != "identity":
            why = f"the body is {JSON}, not compressed, and Content-Type says so"
            return refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, Problem.UNSUPPORTED_MEDIA_TYPE, why)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await request.read()
        except TimeoutError:
            return refusal(HTTPStatus.REQUEST_TIMEOUT, Problem.TOO_SLOW, "the body did not arrive in time")
        try:
            wanted = RegisterRequest.model_validate_json(body, by_name=False, by_alias=True).blocks
        except ValidationError as error:
            return _malformed(error)
        done = await self._in_thread(partial(register, self._store, wanted, principal, pool=self._footers))
        self.metrics.count(done.results)
        outcomes = [one.outcome for one in done.results]
        log.info(
            "blocks registered" if done.status == HTTPStatus.OK else "blocks refused",
            principal=principal.name,
            new=outcomes.count(RegistrationOutcome.REGISTERED),
            known=outcomes.count(RegistrationOutcome.KNOWN),
            refused=outcomes.count(RegistrationOutcome.REFUSED),
        )
        if done.status == HTTPStatus.OK:
            return web.Response(body=RegisterAnswer(blocks=done.results).to_json(), content_type=JSON)
        count = outcomes.count(RegistrationOutcome.REFUSED)
        message = f"{count} of {len(outcomes)} blocks were refused, and none was registered"
        return refusal(done.status, Problem.BLOCKS_REFUSED, message, blocks=done.results)

    async def _list(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        given = request.query
        if twice := next((name for name in given if len(given.getall(name)) > 1), None):
            message = f"{printable(cut(twice, 100))} is given twice"
            return refusal(HTTPStatus.BAD_REQUEST, Problem.BAD_REQUEST, message)
        try:
            query = ListingQuery.model_validate(dict(given), by_name=False, by_alias=True)
        except ValidationError as error:
            return _malformed(error)
        if query.tenant is not None:
            principal.check(query.tenant)
        elif principal.tenants is not None:
            raise NotAllowedError(f"{principal.name} may not list all tenants: name one of its own")
        if query.after and query.version is None:
            message = "`after` goes with the `version` of the page before"
            return refusal(HTTPStatus.BAD_REQUEST, Problem.BAD_REQUEST, message)
        found = await self._in_thread(partial(self._page, query))
        blocks = tuple(LiveBlock.of(block) for block in found.blocks)
        answer = ListingAnswer(version=found.version, blocks=blocks, more=found.more)
        return web.Response(body=answer.to_json(), content_type=JSON)

    def _page(self, query: ListingQuery) -> Page:
        which = BlockFilter(query.tenant, query.shard, query.level, query.start, query.end)
        return page(self._store.index, which, version=query.version, after=query.after, limit=query.limit)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._requests, call)

    # -- open to everybody --------------------------------------------------------------------------------------------

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
        return web.Response(body=encode(self.metrics.registry), headers={"Content-Type": content_type})


def _operation(request: web.Request) -> str:
    """Its name, for metrics; never a path, which anybody may invent."""
    return str(request.match_info.route.name or "none")


def _malformed(error: ValidationError) -> web.Response:
    """What is wrong with a request, without what was sent."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in found[:_SHOWN_ERRORS]]
    more = f" (and {len(found) - _SHOWN_ERRORS} more)" if len(found) > _SHOWN_ERRORS else ""
    message = printable(cut("; ".join(lines), 1000)) + more
    return refusal(HTTPStatus.BAD_REQUEST, Problem.BAD_REQUEST, message)


async def _anonymous(_: web.Request, response: web.StreamResponse) -> None:
    """The response does not disclose program and version."""
    response.headers["Server"] = "compaction"
