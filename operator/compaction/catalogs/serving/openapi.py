"""What a participant's endpoint offers, once: routes and the OpenAPI document are made from these operations."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

from compaction.catalogs.serving.actions import ACTIONS, DoneMessage
from compaction.catalogs.serving.messages import MinimumMessage, ParticipantProblemMessage, ReportMessage, StoredMessage
from compaction.serving.openapi import ALWAYS, JSON, OF_BODIES, OPEN, Api, OpenName, Operation

DOCUMENT_PATH: Final = "/v1/openapi.json"
REPORT_PATH: Final = "/v1/report"
MINIMUM_PATH: Final = "/v1/minimum"
HEALTH_PATH: Final = "/healthz"


class ParticipantName(StrEnum):
    """The operations that every participant has."""

    REPORT = "getReport"
    MINIMUM = "storeMinimum"


def _problems(*statuses: HTTPStatus) -> dict[HTTPStatus, type[BaseModel] | str]:
    return dict.fromkeys((*ALWAYS, *statuses), ParticipantProblemMessage)


_DOCUMENT: Final = Operation(
    OpenName.DOCUMENT, "GET", DOCUMENT_PATH, "This document.", {HTTPStatus.OK: JSON}, open=True
)
_OPEN: Final = (_DOCUMENT, *(one for one in OPEN if one.name is not OpenName.DOCUMENT))
_OPERATIONS: Final = (
    Operation(
        ParticipantName.REPORT,
        "GET",
        REPORT_PATH,
        "Report from when on the catalog is needed, and why.",
        {HTTPStatus.OK: ReportMessage} | _problems(),
        "Everything in a report is of one instant. It is at most 4 MiB long, and not compressed.",
    ),
    Operation(
        ParticipantName.MINIMUM,
        "POST",
        MINIMUM_PATH,
        "Store the minimum of the transactions of all participants.",
        {HTTPStatus.OK: StoredMessage} | _problems(*OF_BODIES, HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY),
        "It is stored in the log of each partition that the participant leads, and published by the next checkpoint. "
        "Repeating is harmless. 409: a coordinator with a larger token was here. 422: the participant's own "
        "transactions need an older version, so this is not the minimum of all; nothing was stored.",
        body=MinimumMessage,
    ),
)
_ADMIN: Final = tuple(
    Operation(
        action.name,
        "POST",
        action.path,
        action.summary,
        {HTTPStatus.OK: DoneMessage} | _problems(*OF_BODIES, HTTPStatus.CONFLICT),
        body=action.body,
    )
    for action in ACTIONS
)
PARTICIPANT_API: Final = Api(
    "Participant of a catalog",
    "A coordinator asks from when on the participant needs the catalog, and sends the minimum of all participants.",
    (*_OPERATIONS, *_OPEN),
)
ADMIN_API: Final = Api(
    PARTICIPANT_API.title,
    f"{PARTICIPANT_API.description} The operations under /v1/admin drive a reference participant in tests.",
    (*_OPERATIONS, *_ADMIN, *_OPEN),
)


def document(*, admin: bool = False, version: str = "1") -> dict[str, Any]:
    """The OpenAPI document."""
    return (ADMIN_API if admin else PARTICIPANT_API).document(version)
