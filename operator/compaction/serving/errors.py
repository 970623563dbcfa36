"""Errors of HTTP endpoints: their configuration, and who may call."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any

from compaction.errors import CompactionError


class IngestConfigError(CompactionError):
    """The endpoint cannot be started like this; names the option or file, never what is secret in it."""


class NotAuthenticatedError(CompactionError):
    """A caller without a token, or with an unknown one."""


class NotAllowedError(CompactionError):
    """A caller that is known and may not do this; names the principal, and the tenant."""


class OwnTokenError(CompactionError):
    """There is no token of the operator's own service account to show; says why and what to do."""


class TokenReviewUnavailableError(CompactionError):
    """The API server could not be asked whose token it is: neither known nor unknown, try again."""


class RequestRefusedError(CompactionError):
    """A request that is answered with `status`, the word `code`, a sentence, and further fields of the endpoint's model
    of refusals.
    """

    def __init__(self, status: HTTPStatus, code: StrEnum, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details = status, code, message, details
