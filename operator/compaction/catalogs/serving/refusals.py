"""The refusals of a participant's endpoint."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from compaction.catalogs.errors import CatalogError, MinimumAheadError, ParticipantStateError, StaleCoordinatorError
from compaction.catalogs.serving.messages import ParticipantProblem, ParticipantProblemMessage
from compaction.serving.refusals import Refusals


def _answer(code: StrEnum, message: str) -> ParticipantProblemMessage:
    return ParticipantProblemMessage(code=ParticipantProblem(code.value), message=message)


REFUSALS: Final = Refusals(
    _answer,
    CatalogError,
    {
        StaleCoordinatorError: (HTTPStatus.CONFLICT, ParticipantProblem.STALE_TOKEN),
        MinimumAheadError: (HTTPStatus.UNPROCESSABLE_ENTITY, ParticipantProblem.MINIMUM_AHEAD),
        ParticipantStateError: (HTTPStatus.CONFLICT, ParticipantProblem.STATE),
    },
    "the API server cannot be asked whose token it is, and the log says why: send the same request again",
    document="/v1/openapi.json",
)
