"""The refusals of the staging endpoint."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from compaction.serving.refusals import Refusals
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
from compaction.staging.serving.messages import StagingProblem, StagingProblemAnswer


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
