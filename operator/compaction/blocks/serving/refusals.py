"""The refusals of the endpoint of blocks."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Final

from compaction.blocks.errors import BlockStoreError, SnapshotExpiredError
from compaction.blocks.serving.messages import BlockResult, Problem, ProblemAnswer
from compaction.serving.refusals import Refusals


def _answer(code: StrEnum, message: str, *, blocks: tuple[BlockResult, ...] | None = None) -> ProblemAnswer:
    return ProblemAnswer(code=Problem(code.value), message=message, blocks=blocks)


REFUSALS: Final = Refusals(
    _answer,
    BlockStoreError,
    {SnapshotExpiredError: (HTTPStatus.GONE, Problem.SNAPSHOT_EXPIRED)},
    "the store, its index or the API server did not answer: send the same request again",
)
