"""One form of every refusal: a status, a word that programs decide by, and a sentence.

Of errors in the store, the index or the review of tokens a caller learns that they passed or may pass; where and what
is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web

from compaction.exceptions import (
    BlockStoreError,
    CompactionError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
    NotAllowedError,
    NotAuthenticatedError,
    ObjectAccessError,
    ObjectRefusedError,
    ObjectStoreUnavailableError,
    SnapshotExpiredError,
    StorageError,
    TokenReviewUnavailableError,
)
from compaction.ingest.messages import BlockResult, Problem, ProblemAnswer
from compaction.ingest.openapi import JSON

log = structlog.get_logger(__name__)

_THEIRS: Final[Mapping[type[CompactionError], tuple[HTTPStatus, Problem]]] = {
    NotAuthenticatedError: (HTTPStatus.UNAUTHORIZED, Problem.UNAUTHENTICATED),
    NotAllowedError: (HTTPStatus.FORBIDDEN, Problem.FORBIDDEN),
    SnapshotExpiredError: (HTTPStatus.GONE, Problem.SNAPSHOT_EXPIRED),
}
"""The caller can fix it: the response says how."""
_PASSING: Final = (
    TokenReviewUnavailableError,
    DatabaseUnavailableError,
    DatabaseSchemaError,
    ObjectStoreUnavailableError,
    ObjectAccessError,
    ObjectRefusedError,
)
HANDLED: Final = (NotAuthenticatedError, NotAllowedError, TokenReviewUnavailableError, BlockStoreError, StorageError)
"""Errors that `of_error` turns into answers."""
FAILED_HERE: Final = "it failed here: the log of the service says why"
_HTTP: Final[Mapping[int, Problem]] = {
    HTTPStatus.BAD_REQUEST: Problem.BAD_REQUEST,
    HTTPStatus.NOT_FOUND: Problem.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: Problem.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: Problem.TOO_LARGE,
}
_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "2"},
}


def refusal(
    status: HTTPStatus, code: Problem, message: str, *, blocks: tuple[BlockResult, ...] | None = None
) -> web.Response:
    """An answer that says no."""
    body = ProblemAnswer(code=code, message=message, blocks=blocks).to_json()
    return web.Response(status=status, body=body, content_type=JSON, headers=_HEADERS.get(status))


def of_error(error: CompactionError, *, operation: str) -> web.Response:
    """The answer for one of `HANDLED`."""
    if found := _THEIRS.get(type(error)):
        return refusal(*found, str(error))
    if isinstance(error, _PASSING):
        log.warning("a request has to be repeated", operation=operation, error=str(error))
        message = "the store, its index or the API server did not answer: send the same request again"
        return refusal(HTTPStatus.SERVICE_UNAVAILABLE, Problem.UNAVAILABLE, message)
    log.error("a request failed", operation=operation, error=str(error))
    return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, Problem.FAILED, FAILED_HERE)


def of_http(error: web.HTTPException) -> web.Response:
    """The answer for what aiohttp itself refuses."""
    status = HTTPStatus(error.status)
    answer = refusal(status, _HTTP.get(status, Problem.FAILED), f"{status.phrase}: see /openapi.json")
    if "Allow" in error.headers:
        answer.headers["Allow"] = error.headers["Allow"]
    return answer
