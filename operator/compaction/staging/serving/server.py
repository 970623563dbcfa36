"""The staging endpoint: routes, and what each of them does with its request (docs/staging-ingest.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import structlog
from aiohttp import web
from prometheus_client import Counter
from pydantic import ValidationError

from compaction.serving.access import Gate, Principal
from compaction.serving.metrics import RequestMetrics
from compaction.serving.openapi import LINES
from compaction.serving.service import HttpService, KnownHandler, RequestLimits, answered
from compaction.serving.wire import Wire
from compaction.staging.flows.area import Area
from compaction.staging.serving import operations
from compaction.staging.serving.batches import BatchLineError, Change, changes_in
from compaction.staging.serving.messages import (
    ChangeOperation,
    CommitRequest,
    ObjectQuery,
    ObjectValue,
    ReadQuery,
    ResetRequest,
    StagingProblem,
    WriteQuery,
)
from compaction.staging.serving.openapi import STAGING_API, StagingName
from compaction.staging.serving.pages import DifferencesQuery, ObjectsQuery
from compaction.staging.serving.refusals import STAGING_REFUSALS
from compaction.staging.serving.repositories import OpenRepositories
from compaction.staging.serving.values import framed_value
from compaction.staging.store import StagingStore

T = TypeVar("T")
Model = TypeVar("Model", bound=Wire)
log = structlog.get_logger(__name__)


class StagingServer(HttpService):
    """Serves the repositories of one store; for one event loop. `close` when the application has ended."""

    def __init__(self, store: StagingStore, gate: Gate, *, limits: RequestLimits | None = None) -> None:
        self._store, self._repositories = store, OpenRepositories(store)
        self.metrics = RequestMetrics("compaction_staging_ingest")
        self._changes = Counter(
            "compaction_staging_ingest_changes",
            "Changes of objects that were acknowledged, by what they do",
            ["operation"],
            registry=self.metrics.registry,
        )
        super().__init__(gate, STAGING_API, STAGING_REFUSALS, limits=limits or RequestLimits(), metrics=self.metrics)

    def known_handlers(self) -> Mapping[StrEnum, KnownHandler]:
        return {
            StagingName.PUT: self._put,
            StagingName.DELETE: self._delete,
            StagingName.CHANGE: self._change,
            StagingName.COMMIT: self._commit,
            StagingName.RESET: self._reset,
            StagingName.DIFF: self._diff,
            StagingName.GET: self._get,
            StagingName.LIST: self._list,
        }

    # -- writers ------------------------------------------------------------------------------------------------------

    async def _put(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        query = self._allowed(request, principal, WriteQuery)
        if isinstance(query, web.Response):
            return query
        value = await self._body(request, ObjectValue)
        if isinstance(value, web.Response):
            return value
        try:
            framed = framed_value(value, now=self._store.clock())
        except ValueError as error:
            return self.refusals.bad(str(error))
        done = await self._do(request, lambda area: operations.put(area, request.match_info["branch"], query, framed))
        self._changes.labels(ChangeOperation.PUT.value).inc()
        return answered(done)

    async def _delete(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        query = self._allowed(request, principal, ObjectQuery)
        if isinstance(query, web.Response):
            return query
        done = await self._do(request, lambda area: operations.delete(area, request.match_info["branch"], query))
        self._changes.labels(ChangeOperation.DELETE.value).inc()
        return answered(done)

    async def _change(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        principal.check(request.match_info["repository"])
        body = await self.body_of(request, kind=LINES)
        if isinstance(body, web.Response):
            return body
        lines = await self.in_thread(partial(self._lines, body))
        if isinstance(lines, web.Response):
            return lines
        done = await self._do(request, lambda area: operations.change(area, request.match_info["branch"], lines))
        self._changes.labels(ChangeOperation.PUT.value).inc(done.written)
        self._changes.labels(ChangeOperation.DELETE.value).inc(done.deleted)
        return answered(done)

    def _lines(self, body: bytes) -> list[Change] | web.Response:
        """The changes of a batch, or the refusal of the first line that is wrong."""
        try:
            return changes_in(body, now=self._store.clock())
        except BatchLineError as error:
            if isinstance(error.error, ValidationError):
                return self.refusals.malformed(error.error, where=f"line {error.number}: ")
            return self.refusals.bad(str(error))
        except ValueError as error:
            return self.refusals.bad(str(error))

    async def _commit(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        principal.check(request.match_info["repository"])
        wanted = await self._body(request, CommitRequest)
        if isinstance(wanted, web.Response):
            return wanted
        branch, name = request.match_info["branch"], principal.name
        done = await self._do(request, lambda area: operations.commit(area, branch, wanted, caller=name))
        log.info("committed", principal=name, repository=request.match_info["repository"], branch=branch, id=done.id)
        return answered(done)

    async def _reset(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        principal.check(request.match_info["repository"])
        wanted = await self._body(request, ResetRequest)
        if isinstance(wanted, web.Response):
            return wanted
        branch = request.match_info["branch"]
        done = await self._do(request, lambda area: operations.reset(area, branch, wanted))
        log.info("reset", principal=principal.name, repository=request.match_info["repository"], branch=branch)
        return answered(done)

    # -- readers ------------------------------------------------------------------------------------------------------

    async def _get(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        query = self._allowed(request, principal, ReadQuery)
        if isinstance(query, web.Response):
            return query
        found = await self._do(request, lambda area: operations.get(area, request.match_info["reference"], query))
        if found is None:
            message = "the reference does not show the key"
            return self.refusals.refusal(HTTPStatus.NOT_FOUND, StagingProblem.NOT_FOUND, message)
        return answered(found)

    async def _list(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        query = self._allowed(request, principal, ObjectsQuery)
        if isinstance(query, web.Response):
            return query
        reference = request.match_info["reference"]
        return answered(await self._do(request, lambda area: operations.listing(area, reference, query)))

    async def _diff(self, request: web.Request, principal: Principal) -> web.StreamResponse:
        query = self._allowed(request, principal, DifferencesQuery)
        if isinstance(query, web.Response):
            return query
        branch = request.match_info["branch"]
        return answered(await self._do(request, lambda area: operations.differences(area, branch, query)))

    # -- what they share ----------------------------------------------------------------------------------------------

    def _allowed(self, request: web.Request, principal: Principal, model: type[Model]) -> Model | web.Response:
        """The query, of a caller who may use the repository. Raises NotAllowedError."""
        principal.check(request.match_info["repository"])
        return self.query_of(request, model)

    async def _body(self, request: web.Request, model: type[Model]) -> Model | web.Response:
        body = await self.body_of(request)
        if isinstance(body, web.Response):
            return body
        try:
            return model.model_validate_json(body, by_name=False, by_alias=True)
        except ValidationError as error:
            return self.refusals.malformed(error)

    async def _do(self, request: web.Request, work: Callable[[Area], T]) -> T:
        name = request.match_info["repository"]
        return await self.in_thread(lambda: work(self._repositories.area(name)))
