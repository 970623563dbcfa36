"""What the endpoint of blocks offers, once: the routes are made from these operations, and the OpenAPI document too."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

from compaction.blocks.serving.messages import (
    ListingAnswer,
    ListingQuery,
    ProblemAnswer,
    RegisterAnswer,
    RegisterRequest,
)
from compaction.serving.openapi import ALWAYS, OF_BODIES, OPEN, Api, Operation


class Name(StrEnum):
    """The operations that are not open."""

    REGISTER = "registerBlocks"
    LIST = "listBlocks"


def _problems(*statuses: HTTPStatus) -> dict[HTTPStatus, type[BaseModel] | str]:
    return dict.fromkeys(statuses, ProblemAnswer)


_OF_REGISTRATIONS: Final = (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY)
_OPERATIONS: Final = (
    Operation(
        Name.REGISTER,
        "POST",
        "/v1/blocks",
        "Register blocks that were uploaded: all of them, or none.",
        {HTTPStatus.OK: RegisterAnswer} | _problems(*ALWAYS, *OF_BODIES, *_OF_REGISTRATIONS),
        "From a 200 on readers see the blocks, and they wait for compaction. Repeating is harmless: a block that is "
        "registered already is Known. 409: an id or path is that of another content. 422: an object is missing, "
        "damaged or not the block it should be. After 503, or no answer, send the same request again.",
        body=RegisterRequest,
    ),
    Operation(
        Name.LIST,
        "GET",
        "/v1/blocks",
        "List live blocks, all of one instant.",
        {HTTPStatus.OK: ListingAnswer} | _problems(*ALWAYS, HTTPStatus.GONE),
        "By id, in pages. For the next one give the `version` of the first and the last id as `after`: whatever "
        "happens in between, all pages show the same instant. The objects stay readable for the store's grace after "
        "it. 410: the instant is too long ago.",
        query=ListingQuery,
    ),
)
API: Final = Api(
    "Block ingest",
    "Writers register the Parquet blocks that they have uploaded; readers list the live ones.",
    (*_OPERATIONS, *OPEN),
)


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document. `version`: of the program."""
    return API.document(version)
