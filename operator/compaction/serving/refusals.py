"""One form of every refusal: a status, a word that programs decide by, and a sentence.

Of errors in the store, its database or the review of tokens a caller learns that they passed or may pass; where and
what is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web
from pydantic import ValidationError

from compaction.api.text.printing import cut, printable
from compaction.errors import CompactionError
from compaction.serving.errors import (
    NotAllowedError,
    NotAuthenticatedError,
    RequestRefusedError,
    TokenReviewUnavailableError,
)
from compaction.serving.openapi import JSON, Wire
from compaction.storage.errors import (
    DatabaseSchemaError,
    DatabaseUnavailableError,
    ObjectAccessError,
    ObjectRefusedError,
    ObjectStoreUnavailableError,
    StorageError,
)

log = structlog.get_logger(__name__)


class RefusedRequest(StrEnum):
    """The words of refusals that every endpoint has; its own list has them too."""

    BAD_REQUEST = "BadRequest"
    UNAUTHENTICATED = "Unauthenticated"
    FORBIDDEN = "Forbidden"
    NOT_FOUND = "NotFound"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    BUSY = "Busy"
    UNAVAILABLE = "Unavailable"
    FAILED = "Failed"


Theirs = Mapping[type[CompactionError], tuple[HTTPStatus, StrEnum]]
PASSING: Final = (
    TokenReviewUnavailableError,
    DatabaseUnavailableError,
    DatabaseSchemaError,
    ObjectStoreUnavailableError,
    ObjectAccessError,
    ObjectRefusedError,
)
_THEIRS: Final[Theirs] = {
    NotAuthenticatedError: (HTTPStatus.UNAUTHORIZED, RefusedRequest.UNAUTHENTICATED),
    NotAllowedError: (HTTPStatus.FORBIDDEN, RefusedRequest.FORBIDDEN),
}
_HANDLED: Final = (
    RequestRefusedError,
    NotAuthenticatedError,
    NotAllowedError,
    TokenReviewUnavailableError,
    StorageError,
)
_FAILED_HERE: Final = "it failed here: the log of the service says why"
_HTTP: Final[Mapping[int, RefusedRequest]] = {
    HTTPStatus.BAD_REQUEST: RefusedRequest.BAD_REQUEST,
    HTTPStatus.NOT_FOUND: RefusedRequest.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: RefusedRequest.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: RefusedRequest.TOO_LARGE,
}
_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.SERVICE_UNAVAILABLE: {"Retry-After": "2"},
}
_SHOWN_ERRORS: Final = 3


@dataclass(frozen=True, slots=True)
class Refusals:
    """The refusals of one endpoint.

    answer: the model of a refusal, from word, sentence and details. base: of the errors of its store. theirs: errors
    that the caller can fix, whose text says how. away: what is said of errors that pass; `passing`: more of those.
    """

    answer: Callable[..., Wire]
    base: type[CompactionError]
    theirs: Theirs
    away: str
    passing: tuple[type[CompactionError], ...] = ()
    document: str = "/openapi.json"

    @property
    def handled(self) -> tuple[type[CompactionError], ...]:
        """Errors that `of_error` turns into answers."""
        return (*_HANDLED, self.base)

    def refusal(self, status: HTTPStatus, code: StrEnum, message: str, **details: Any) -> web.Response:
        """An answer that says no."""
        body = self.answer(code, message, **details).to_json()
        return web.Response(status=status, body=body, content_type=JSON, headers=_HEADERS.get(status))

    def of_error(self, error: CompactionError, *, operation: str) -> web.Response:
        """The answer for one of `handled`."""
        if isinstance(error, RequestRefusedError):
            return self.refusal(error.status, error.code, error.message, **error.details)
        if found := (_THEIRS.get(type(error)) or self.theirs.get(type(error))):
            return self.refusal(*found, printable(cut(str(error), 1000)))
        if isinstance(error, (*PASSING, *self.passing)):
            log.warning("a request has to be repeated", operation=operation, error=str(error))
            return self.refusal(HTTPStatus.SERVICE_UNAVAILABLE, RefusedRequest.UNAVAILABLE, self.away)
        log.error("a request failed", operation=operation, error=str(error))
        return self.unexpected()

    def unexpected(self) -> web.Response:
        """The answer for a defect; what it is says the log alone."""
        error = failed_here()
        return self.refusal(error.status, error.code, error.message)

    def of_http(self, error: web.HTTPException) -> web.Response:
        """The answer for what aiohttp itself refuses."""
        status = HTTPStatus(error.status)
        where = f"{status.phrase}: see {self.document}"
        answer = self.refusal(status, _HTTP.get(status, RefusedRequest.FAILED), where)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer


def failed_here() -> RequestRefusedError:
    """A defect; what it is says the log alone."""
    return RequestRefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, RefusedRequest.FAILED, _FAILED_HERE)


def malformed(error: ValidationError, *, where: str = "") -> RequestRefusedError:
    """Return the refusal that says what is wrong with a request, without what was sent."""
    return bad_request(where + _wrong(error))


def bad_request(message: str) -> RequestRefusedError:
    """A request that makes no sense."""
    return RequestRefusedError(HTTPStatus.BAD_REQUEST, RefusedRequest.BAD_REQUEST, message)


def _wrong(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [": ".join(filter(None, (".".join(map(str, item["loc"])), item["msg"]))) for item in found[:_SHOWN_ERRORS]]
    more = f" (and {len(found) - _SHOWN_ERRORS} more)" if len(found) > _SHOWN_ERRORS else ""
    return printable(cut("; ".join(lines), 1000)) + more
