"""The endpoint of blocks: registrations and listings (docs/block-ingest.md)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from http import HTTPStatus

import structlog
from aiohttp import web
from pydantic import ValidationError

from compaction.blocks.index.listing import BlockFilter
from compaction.blocks.index.pages import Page, page
from compaction.blocks.serving.messages import (
    ListingAnswer,
    ListingQuery,
    LiveBlock,
    Problem,
    RegisterAnswer,
    RegisterRequest,
    RegistrationOutcome,
)
from compaction.blocks.serving.metrics import IngestMetrics
from compaction.blocks.serving.openapi import API, Name
from compaction.blocks.serving.refusals import REFUSALS
from compaction.blocks.serving.registering import register
from compaction.blocks.store import BlockStore
from compaction.serving.access import Gate, Principal
from compaction.serving.errors import NotAllowedError
from compaction.serving.service import HttpService, KnownHandler, RequestLimits, answered

log = structlog.get_logger(__name__)


class IngestServer(HttpService):
    """Serves one store; for one event loop. `close` when the application has ended."""

    def __init__(
        self,
        store: BlockStore,
        gate: Gate,
        *,
        limits: RequestLimits | None = None,
        metrics: IngestMetrics | None = None,
    ) -> None:
        limits = limits or RequestLimits()
        self._store, self.metrics = store, metrics or IngestMetrics()
        super().__init__(gate, API, REFUSALS, limits=limits, metrics=self.metrics)
        self._footers = ThreadPoolExecutor(limits.threads, thread_name_prefix="footers")

    def known_handlers(self) -> Mapping[StrEnum, KnownHandler]:
        return {Name.REGISTER: self._register, Name.LIST: self._list}

    def close(self) -> None:
        super().close()
        self._footers.shutdown()

    async def _register(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        body = await self.body_of(request)
        if isinstance(body, web.Response):
            return body
        try:
            wanted = RegisterRequest.model_validate_json(body, by_name=False, by_alias=True).blocks
        except ValidationError as error:
            return self.refusals.malformed(error)
        done = await self.in_thread(partial(register, self._store, wanted, principal, pool=self._footers))
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
            return answered(RegisterAnswer(blocks=done.results))
        count = outcomes.count(RegistrationOutcome.REFUSED)
        message = f"{count} of {len(outcomes)} blocks were refused, and none was registered"
        return self.refusals.refusal(done.status, Problem.BLOCKS_REFUSED, message, blocks=done.results)

    async def _list(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        query = self.query_of(request, ListingQuery)
        if isinstance(query, web.Response):
            return query
        if query.tenant is not None:
            principal.check(query.tenant)
        elif principal.allowed is not None:
            raise NotAllowedError(f"{principal.name} may not list all tenants: name one of its own")
        if query.after and query.version is None:
            return self.refusals.bad("`after` goes with the `version` of the page before")
        found = await self.in_thread(partial(self._page, query))
        blocks = tuple(LiveBlock.of(block) for block in found.blocks)
        return answered(ListingAnswer(version=found.version, blocks=blocks, more=found.more))

    def _page(self, query: ListingQuery) -> Page:
        which = BlockFilter(query.tenant, query.shard, query.level, query.start, query.end)
        return page(self._store.index, which, version=query.version, after=query.after, limit=query.limit)
