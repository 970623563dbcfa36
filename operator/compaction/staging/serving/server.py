"""The staging endpoint: routes and their operations, OpenAPI document, refusals, batches (docs/staging-ingest.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import Final, TypeVar

import structlog
from aiohttp import web
from prometheus_client import Counter
from pydantic import BaseModel, ValidationError

from compaction.serving.access import Gate, Principal
from compaction.serving.openapi import ALWAYS, LINES, OF_BODIES, OPEN, Api, EndpointOperation, Wire
from compaction.serving.refusals import Refusals
from compaction.serving.service import HttpService, KnownHandler, RequestLimits, RequestMetrics, answered
from compaction.staging.errors import (
    ConditionFailedError,
    ForeignRepositoryError,
    HookRefusedError,
    InvalidBatchError,
    KeyValueArgumentError,
    NoChangesError,
    ProtectedBranchError,
    RangeRecordError,
    RepositoryReadOnlyError,
    StagingNameError,
    StagingStoreError,
    TooManyTriesError,
    UnknownRefError,
)
from compaction.staging.flows.area import Area
from compaction.staging.serving import operations
from compaction.staging.serving.operations import (
    DifferencesAnswer,
    DifferencesQuery,
    ListedAnswer,
    ObjectsQuery,
    OpenRepositories,
)
from compaction.staging.serving.wire import (
    MOST_CHANGES,
    ChangedAnswer,
    ChangeLine,
    ChangeOperation,
    CommitAnswer,
    CommitRequest,
    DeletedAnswer,
    ObjectAnswer,
    ObjectQuery,
    ObjectValue,
    ReadQuery,
    ResetAnswer,
    ResetRequest,
    StagingProblem,
    StagingProblemAnswer,
    WriteQuery,
    WrittenAnswer,
    framed_value,
)
from compaction.staging.store import StagingStore

# The refusals of the staging endpoint.


def _answer(code: StrEnum, message: str) -> StagingProblemAnswer:
    return StagingProblemAnswer(code=StagingProblem(code.value), message=message)


STAGING_REFUSALS: Final = Refusals(
    _answer,
    StagingStoreError,
    {
        UnknownRefError: (HTTPStatus.NOT_FOUND, StagingProblem.NOT_FOUND),
        StagingNameError: (HTTPStatus.UNPROCESSABLE_ENTITY, StagingProblem.INVALID),
        KeyValueArgumentError: (HTTPStatus.UNPROCESSABLE_ENTITY, StagingProblem.INVALID),
        RangeRecordError: (HTTPStatus.UNPROCESSABLE_ENTITY, StagingProblem.INVALID),
        InvalidBatchError: (HTTPStatus.UNPROCESSABLE_ENTITY, StagingProblem.INVALID),
        ConditionFailedError: (HTTPStatus.PRECONDITION_FAILED, StagingProblem.CONDITION_FAILED),
        RepositoryReadOnlyError: (HTTPStatus.CONFLICT, StagingProblem.CONFLICT),
        ForeignRepositoryError: (HTTPStatus.CONFLICT, StagingProblem.CONFLICT),
        ProtectedBranchError: (HTTPStatus.CONFLICT, StagingProblem.CONFLICT),
        HookRefusedError: (HTTPStatus.CONFLICT, StagingProblem.CONFLICT),
        NoChangesError: (HTTPStatus.CONFLICT, StagingProblem.NO_CHANGES),
        TooManyTriesError: (HTTPStatus.SERVICE_UNAVAILABLE, StagingProblem.BUSY),
    },
    "the store, its database or the API server did not answer: send the same request again",
)


# A batch of changes as lines of JSON: read as a whole before any of it is carried out.

Change = tuple[ChangeLine, bytes]
"""A line, and the framed value that it writes; b"" for a deletion."""


class BatchLineError(ValueError):
    """A line is no change. `number`: of the line, from 1. `error`: what is wrong with it."""

    def __init__(self, number: int, error: ValueError) -> None:
        super().__init__(f"line {number}: {error}")
        self.number = number
        self.error = error


def changes_in(body: bytes, *, now: float) -> list[Change]:
    """The changes of a batch in their order; empty lines are passed over. `now`: seconds since 1970.

    Raises BatchLineError for the first line that is wrong, ValueError for more than `MOST_CHANGES` changes.
    """
    found: list[Change] = []
    for number, text in enumerate(BytesIO(body), 1):
        if not text.strip():
            continue
        if len(found) == MOST_CHANGES:
            raise ValueError(f"a batch has at most {MOST_CHANGES} lines: send several")
        try:
            line = ChangeLine.model_validate_json(text, by_name=False, by_alias=True)
            framed = framed_value(line.content(), now=now) if line.op is ChangeOperation.PUT else b""
        except ValueError as error:  # pydantic's ValidationError among them
            raise BatchLineError(number, error) from None
        found.append((line, framed))
    return found


# What the staging endpoint offers, once: the routes are made from these operations, and the OpenAPI document too.


class StagingName(StrEnum):
    """The operations that are not open."""

    GET = "getObject"
    PUT = "putObject"
    DELETE = "deleteObject"
    CHANGE = "changeObjects"
    LIST = "listObjects"
    DIFF = "listDifferences"
    COMMIT = "commitBranch"
    RESET = "resetBranch"


_BRANCH: Final = "/v1/repositories/{repository}/branches/{branch}"
_REFERENCE: Final = "/v1/repositories/{repository}/references/{reference}"
_OF_BRANCH: Final = {"repository": "Name of the repository.", "branch": "Name of the branch."}
_OF_REFERENCE: Final = {
    "repository": "Name of the repository.",
    "reference": "A branch, a tag or a commit, with `~N`, `^N`, `@` or `$` behind it.",
}


def _problems(*statuses: HTTPStatus) -> dict[HTTPStatus, type[BaseModel] | str]:
    return dict.fromkeys(
        (*ALWAYS, HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY, *statuses), StagingProblemAnswer
    )


_CHANGES: Final = (HTTPStatus.CONFLICT,)
_DURABLE: Final = (
    "A 200 says that the change is durable, and was staged before the branch sealed what it was staged in. After 503, "
    "or no answer, send the same request again."
)

_OPERATIONS: Final = (
    EndpointOperation(
        StagingName.PUT,
        "PUT",
        f"{_BRANCH}/object",
        "Write one object.",
        {HTTPStatus.OK: WrittenAnswer} | _problems(*OF_BODIES, *_CHANGES, HTTPStatus.PRECONDITION_FAILED),
        _DURABLE + " 412: the condition does not hold, and nothing was written.",
        body=ObjectValue,
        query=WriteQuery,
        parts=_OF_BRANCH,
    ),
    EndpointOperation(
        StagingName.DELETE,
        "DELETE",
        f"{_BRANCH}/object",
        "Delete one object.",
        {HTTPStatus.OK: DeletedAnswer} | _problems(*_CHANGES),
        _DURABLE,
        query=ObjectQuery,
        parts=_OF_BRANCH,
    ),
    EndpointOperation(
        StagingName.CHANGE,
        "POST",
        f"{_BRANCH}/changes",
        f"Write and delete up to {MOST_CHANGES} objects, one per line.",
        {HTTPStatus.OK: ChangedAnswer} | _problems(*OF_BODIES, *_CHANGES),
        "Of several lines with one key the last one counts. A line that is wrong is named, and none is carried out. "
        "Objects are written one after the other: after 503, or no answer, some may be; send the same request again.",
        lines=ChangeLine,
        parts=_OF_BRANCH,
    ),
    EndpointOperation(
        StagingName.COMMIT,
        "POST",
        f"{_BRANCH}/commits",
        "Commit what is staged.",
        {HTTPStatus.OK: CommitAnswer} | _problems(*OF_BODIES, *_CHANGES),
        "What is written meanwhile stays staged. 409: there is nothing to commit, for instance because an earlier "
        "request without an answer did it.",
        body=CommitRequest,
        parts=_OF_BRANCH,
    ),
    EndpointOperation(
        StagingName.RESET,
        "POST",
        f"{_BRANCH}/resets",
        "Take back uncommitted changes: of one key, of a prefix, or all.",
        {HTTPStatus.OK: ResetAnswer} | _problems(*OF_BODIES, *_CHANGES),
        body=ResetRequest,
        parts=_OF_BRANCH,
    ),
    EndpointOperation(
        StagingName.DIFF,
        "GET",
        f"{_BRANCH}/differences",
        "List how a branch differs from its commit, or from another reference.",
        {HTTPStatus.OK: DifferencesAnswer} | _problems(),
        query=DifferencesQuery,
        parts=_OF_BRANCH,
    ),
    EndpointOperation(
        StagingName.GET,
        "GET",
        f"{_REFERENCE}/object",
        "Read one object.",
        {HTTPStatus.OK: ObjectAnswer} | _problems(),
        query=ReadQuery,
        parts=_OF_REFERENCE,
    ),
    EndpointOperation(
        StagingName.LIST,
        "GET",
        f"{_REFERENCE}/objects",
        "List objects in the order of their keys' bytes.",
        {HTTPStatus.OK: ListedAnswer} | _problems(),
        "Each page is of one instant. A page may have fewer objects than were asked for, and `more` says whether "
        "others follow.",
        query=ObjectsQuery,
        parts=_OF_REFERENCE,
    ),
)
STAGING_API: Final = Api(
    "Staging areas",
    "Writers stage objects on branches, and commit them; readers read and list what branches, tags and commits show.",
    (*_OPERATIONS, *OPEN),
)


# The staging endpoint: routes, and what each of them does with its request (docs/staging-ingest.md).

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
