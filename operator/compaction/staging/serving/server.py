"""The staging endpoint: routes and their operations, OpenAPI document, refusals, batches (docs/staging-ingest.md)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import Final, TypeVar

import structlog
from prometheus_client import Counter
from pydantic import ValidationError

from compaction.serving.access import Gate
from compaction.serving.errors import RequestRefusedError
from compaction.serving.openapi import Api, Call, EndpointOperation
from compaction.serving.refusals import Refusals, bad_request, malformed
from compaction.serving.service import HttpService, RequestLimits, RequestMetrics
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


# The staging endpoint: each row of its table, and what carries it out (docs/staging-ingest.md).

T = TypeVar("T")
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

    # -- writers ------------------------------------------------------------------------------------------------------

    async def put(self, call: Call) -> WrittenAnswer:
        """One object, under the condition of the query."""
        try:
            framed = framed_value(call.body, now=self._store.clock())
        except ValueError as error:
            raise bad_request(str(error)) from None
        done = await self._do(call, lambda area: operations.put(area, call.parts["branch"], call.query, framed))
        self._changes.labels(ChangeOperation.PUT.value).inc()
        return done

    async def delete(self, call: Call) -> DeletedAnswer:
        """One object less."""
        done = await self._do(call, lambda area: operations.delete(area, call.parts["branch"], call.query))
        self._changes.labels(ChangeOperation.DELETE.value).inc()
        return done

    async def change(self, call: Call) -> ChangedAnswer:
        """A batch, of which every line is read before the first is carried out."""
        lines = await self.in_thread(partial(self._lines, call.body))
        done = await self._do(call, lambda area: operations.change(area, call.parts["branch"], lines))
        self._changes.labels(ChangeOperation.PUT.value).inc(done.written)
        self._changes.labels(ChangeOperation.DELETE.value).inc(done.deleted)
        return done

    def _lines(self, body: bytes) -> list[Change]:
        try:
            return changes_in(body, now=self._store.clock())
        except BatchLineError as error:
            if isinstance(error.error, ValidationError):
                raise malformed(error.error, where=f"line {error.number}: ") from None
            raise bad_request(str(error)) from None
        except ValueError as error:
            raise bad_request(str(error)) from None

    async def commit(self, call: Call) -> CommitAnswer:
        """Commit what is staged on the branch."""
        branch, caller = call.parts["branch"], call.principal.name
        done = await self._do(call, lambda area: operations.commit(area, branch, call.body, caller=caller))
        log.info("committed", principal=caller, repository=call.parts["repository"], branch=branch, id=done.id)
        return done

    async def reset(self, call: Call) -> ResetAnswer:
        """Uncommitted changes are taken back."""
        branch = call.parts["branch"]
        done = await self._do(call, lambda area: operations.reset(area, branch, call.body))
        log.info("reset", principal=call.principal.name, repository=call.parts["repository"], branch=branch)
        return done

    # -- readers ------------------------------------------------------------------------------------------------------

    async def get(self, call: Call) -> ObjectAnswer:
        """One object, as the reference shows it."""
        found = await self._do(call, lambda area: operations.get(area, call.parts["reference"], call.query))
        if found is None:
            message = "the reference does not show the key"
            raise RequestRefusedError(HTTPStatus.NOT_FOUND, StagingProblem.NOT_FOUND, message)
        return found

    async def list(self, call: Call) -> ListedAnswer:
        """A page of objects."""
        return await self._do(call, lambda area: operations.listing(area, call.parts["reference"], call.query))

    async def diff(self, call: Call) -> DifferencesAnswer:
        """A page of differences."""
        return await self._do(call, lambda area: operations.differences(area, call.parts["branch"], call.query))

    async def _do(self, call: Call, work: Callable[[Area], T]) -> T:
        return await self.in_thread(lambda: work(self._repositories.area(call.parts["repository"])))


_BRANCH: Final = "/v1/repositories/{repository}/branches/{branch}"
_REFERENCE: Final = "/v1/repositories/{repository}/references/{reference}"
_OF_BRANCH: Final = {"repository": "Name of the repository.", "branch": "Name of the branch."}
_OF_REFERENCE: Final = {
    "repository": "Name of the repository.",
    "reference": "A branch, a tag or a commit, with `~N`, `^N`, `@` or `$` behind it.",
}
_REPOSITORY: Final = "{repository}"
_READ: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)
_CHANGED: Final = (*_READ, HTTPStatus.CONFLICT)
_DURABLE: Final = (
    "A 200 says that the change is durable, and was staged before the branch sealed what it was staged in. After 503, "
    "or no answer, send the same request again."
)
STAGING_API: Final = Api(
    "Staging areas",
    "Writers stage objects on branches, and commit them; readers read and list what branches, tags and commits show.",
    (
        EndpointOperation(
            "putObject",
            "PUT",
            f"{_BRANCH}/object",
            "Write one object.",
            WrittenAnswer,
            StagingServer.put,
            _DURABLE + " 412: the condition does not hold, and nothing was written.",
            problems=(*_CHANGED, HTTPStatus.PRECONDITION_FAILED),
            scope=_REPOSITORY,
            body=ObjectValue,
            query=WriteQuery,
            parts=_OF_BRANCH,
        ),
        EndpointOperation(
            "deleteObject",
            "DELETE",
            f"{_BRANCH}/object",
            "Delete one object.",
            DeletedAnswer,
            StagingServer.delete,
            _DURABLE,
            problems=_CHANGED,
            scope=_REPOSITORY,
            query=ObjectQuery,
            parts=_OF_BRANCH,
        ),
        EndpointOperation(
            "changeObjects",
            "POST",
            f"{_BRANCH}/changes",
            f"Write and delete up to {MOST_CHANGES} objects, one per line.",
            ChangedAnswer,
            StagingServer.change,
            "Of several lines with one key the last one counts. A line that is wrong is named, and none is carried "
            "out. Objects are written one after the other: after 503, or no answer, some may be; send the same request "
            "again.",
            problems=_CHANGED,
            scope=_REPOSITORY,
            lines=ChangeLine,
            parts=_OF_BRANCH,
        ),
        EndpointOperation(
            "commitBranch",
            "POST",
            f"{_BRANCH}/commits",
            "Commit what is staged.",
            CommitAnswer,
            StagingServer.commit,
            "What is written meanwhile stays staged. 409: there is nothing to commit, for instance because an earlier "
            "request without an answer did it.",
            problems=_CHANGED,
            scope=_REPOSITORY,
            body=CommitRequest,
            parts=_OF_BRANCH,
        ),
        EndpointOperation(
            "resetBranch",
            "POST",
            f"{_BRANCH}/resets",
            "Take back uncommitted changes: of one key, of a prefix, or all.",
            ResetAnswer,
            StagingServer.reset,
            problems=_CHANGED,
            scope=_REPOSITORY,
            body=ResetRequest,
            parts=_OF_BRANCH,
        ),
        EndpointOperation(
            "listDifferences",
            "GET",
            f"{_BRANCH}/differences",
            "List how a branch differs from its commit, or from another reference.",
            DifferencesAnswer,
            StagingServer.diff,
            problems=_READ,
            scope=_REPOSITORY,
            query=DifferencesQuery,
            parts=_OF_BRANCH,
        ),
        EndpointOperation(
            "getObject",
            "GET",
            f"{_REFERENCE}/object",
            "Read one object.",
            ObjectAnswer,
            StagingServer.get,
            problems=_READ,
            scope=_REPOSITORY,
            query=ReadQuery,
            parts=_OF_REFERENCE,
        ),
        EndpointOperation(
            "listObjects",
            "GET",
            f"{_REFERENCE}/objects",
            "List objects in the order of their keys' bytes.",
            ListedAnswer,
            StagingServer.list,
            "Each page is of one instant. A page may have fewer objects than were asked for, and `more` says whether "
            "others follow.",
            problems=_READ,
            scope=_REPOSITORY,
            query=ObjectsQuery,
            parts=_OF_REFERENCE,
        ),
    ),
    StagingProblemAnswer,
)
"""The table of the endpoint: its routes and its document are made from these rows."""
