"""What the endpoint offers, once: the routes are made from these operations, and the OpenAPI document too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from compaction.ingest.messages import (
    ListingAnswer,
    ListingQuery,
    ProblemAnswer,
    RegisterAnswer,
    RegisterRequest,
)

JSON: Final = "application/json"
TEXT: Final = "text/plain"
_REFERENCE: Final = "#/components/schemas/{model}"
_BEARER: Final = "bearer"


class Name(StrEnum):
    """The operations."""

    REGISTER = "registerBlocks"
    LIST = "listBlocks"
    DOCUMENT = "openapi"
    HEALTH = "healthz"
    READY = "readyz"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Operation:
    """One route. `answers`: by status a model, or a media type; `open`: without authentication."""

    name: Name
    method: str
    path: str
    summary: str
    answers: Mapping[HTTPStatus, type[BaseModel] | str]
    description: str = ""
    open: bool = False
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None

    def document(self) -> dict[str, Any]:
        """As OpenAPI has it."""
        found: dict[str, Any] = {"operationId": self.name.value, "summary": self.summary}
        if self.description:
            found["description"] = self.description
        if self.open:
            found["security"] = []
        if self.query is not None:
            found["parameters"] = _parameters(self.query)
        if self.body is not None:
            found["requestBody"] = {"required": True, "content": _content(self.body)}
        found["responses"] = {
            str(status.value): {"description": status.phrase, "content": _content(answer)}
            | ({} if isinstance(answer, str) else _headers(status))
            for status, answer in self.answers.items()
        }
        return found


def _problems(*statuses: HTTPStatus) -> dict[HTTPStatus, type[BaseModel] | str]:
    return dict.fromkeys(statuses, ProblemAnswer)


_ALWAYS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
_OF_BODIES: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)

OPERATIONS: Final = (
    Operation(
        Name.REGISTER,
        "POST",
        "/v1/blocks",
        "Register blocks that were uploaded: all of them, or none.",
        {HTTPStatus.OK: RegisterAnswer} | _problems(*_ALWAYS, *_OF_BODIES),
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
        {HTTPStatus.OK: ListingAnswer} | _problems(*_ALWAYS, HTTPStatus.GONE),
        "By id, in pages. For the next one give the `version` of the first and the last id as `after`: whatever "
        "happens in between, all pages show the same instant. The objects stay readable for the store's grace after "
        "it. 410: the instant is too long ago.",
        query=ListingQuery,
    ),
    Operation(Name.DOCUMENT, "GET", "/openapi.json", "This document.", {HTTPStatus.OK: JSON}, open=True),
    Operation(Name.HEALTH, "GET", "/healthz", "Whether the process answers.", {HTTPStatus.OK: TEXT}, open=True),
    Operation(
        Name.READY,
        "GET",
        "/readyz",
        "Whether requests are taken.",
        {HTTPStatus.OK: TEXT, HTTPStatus.SERVICE_UNAVAILABLE: TEXT},
        open=True,
    ),
    Operation(Name.METRICS, "GET", "/metrics", "Metrics for Prometheus.", {HTTPStatus.OK: TEXT}, open=True),
)


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document. `version`: of the program."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = operation.document()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Block ingest",
            "version": version,
            "description": "Writers register the Parquet blocks that they have uploaded; readers list the live ones.",
        },
        "security": [{_BEARER: []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                _BEARER: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token of a service account, made for the audience of this service; or a shared "
                    "secret.",
                }
            },
        },
    }


def _schemas() -> dict[str, Any]:
    """The models of all operations, which name each other."""
    models = {one.body for one in OPERATIONS if one.body is not None}
    models |= {answer for one in OPERATIONS for answer in one.answers.values() if not isinstance(answer, str)}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, found = models_json_schema([(model, "validation") for model in ordered], ref_template=_REFERENCE)
    return dict(found["$defs"])


def _content(answer: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {"schema": {"type": "string" if answer == TEXT else "object"}}}
    return {JSON: {"schema": {"$ref": _REFERENCE.format(model=answer.__name__)}}}


def _headers(status: HTTPStatus) -> dict[str, Any]:
    name = {HTTPStatus.SERVICE_UNAVAILABLE: "Retry-After", HTTPStatus.UNAUTHORIZED: "WWW-Authenticate"}.get(status)
    return {} if name is None else {"headers": {name: {"schema": {"type": "string"}}}}


def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    required = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required}
        | ({"description": found.pop("description")} if "description" in found else {})
        | {"schema": found}
        for name, found in ((name, dict(found)) for name, found in schema["properties"].items())
    ]
