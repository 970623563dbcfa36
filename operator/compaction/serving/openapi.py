"""Operations of an endpoint, once: its routes and its OpenAPI document are made from them, and from its wire
models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema

from compaction.api.base import Documented

# What every model that goes over the wire is.
#
# Requests are strict: an unknown field is an error of the client, never ignored.


class Wire(Documented):
    """Frozen, camelCase, nothing unknown, nothing converted."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def to_json(self) -> bytes:
        """As it is sent; what is None is left out."""
        return self.model_dump_json(exclude_none=True).encode()


# What an endpoint offers, once: its routes are made from its operations, and the OpenAPI document too.

JSON: Final = "application/json"
TEXT: Final = "text/plain"
_REFERENCE: Final = "#/components/schemas/{model}"
_BEARER: Final = "bearer"


class OpenName(StrEnum):
    """The operations that every endpoint has, for every caller."""

    DOCUMENT = "openapi"
    HEALTH = "healthz"
    READY = "readyz"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class EndpointOperation:
    """One route. `answers`: by status a model, or a media type; `open`: without authentication. `parts`: the parameters
    in the path, and what they are. `lines`: a body of JSON lines, each of this model.
    """

    name: StrEnum
    method: str
    path: str
    summary: str
    answers: Mapping[HTTPStatus, type[BaseModel] | str]
    description: str = ""
    open: bool = False
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    lines: type[BaseModel] | None = None

    def document(self) -> dict[str, Any]:
        """As OpenAPI has it."""
        found: dict[str, Any] = {"operationId": self.name.value, "summary": self.summary}
        if self.description:
            found["description"] = self.description
        if self.open:
            found["security"] = []
        parameters = [_part(name, what) for name, what in self.parts.items()]
        if self.query is not None:
            parameters += _parameters(self.query)
        if parameters:
            found["parameters"] = parameters
        if self.body is not None:
            found["requestBody"] = {"required": True, "content": _content(self.body)}
        if self.lines is not None:
            line = {"$ref": _REFERENCE.format(model=self.lines.__name__)}
            found["requestBody"] = {
                "required": True,
                "content": {LINES: {"schema": {"type": "string"}, "x-line": line}},
            }
        found["responses"] = {
            str(status.value): {"description": status.phrase, "content": _content(answer)}
            | ({} if isinstance(answer, str) else _headers(status))
            for status, answer in self.answers.items()
        }
        return found


LINES: Final = "application/x-ndjson"
ALWAYS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
"""Refusals of every operation that is not open."""
OF_BODIES: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
"""Refusals of every operation with a body."""
OPEN: Final = (
    EndpointOperation(OpenName.DOCUMENT, "GET", "/openapi.json", "This document.", {HTTPStatus.OK: JSON}, open=True),
    EndpointOperation(
        OpenName.HEALTH, "GET", "/healthz", "Whether the process answers.", {HTTPStatus.OK: TEXT}, open=True
    ),
    EndpointOperation(
        OpenName.READY,
        "GET",
        "/readyz",
        "Whether requests are taken.",
        {HTTPStatus.OK: TEXT, HTTPStatus.SERVICE_UNAVAILABLE: TEXT},
        open=True,
    ),
    EndpointOperation(OpenName.METRICS, "GET", "/metrics", "Metrics for Prometheus.", {HTTPStatus.OK: TEXT}, open=True),
)


@dataclass(frozen=True, slots=True)
class Api:
    """An endpoint as its document describes it; `operations` with those that every endpoint has."""

    title: str
    description: str
    operations: tuple[EndpointOperation, ...]

    def document(self, version: str) -> dict[str, Any]:
        """The OpenAPI document. `version`: of the program."""
        paths: dict[str, dict[str, Any]] = {}
        for operation in self.operations:
            paths.setdefault(operation.path, {})[operation.method.lower()] = operation.document()
        return {
            "openapi": "3.1.0",
            "info": {"title": self.title, "version": version, "description": self.description},
            "security": [{_BEARER: []}],
            "paths": paths,
            "components": {
                "schemas": _schemas(self.operations),
                "securitySchemes": {
                    _BEARER: {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "The token of a service account, made for the audience of this service; or a "
                        "shared secret.",
                    }
                },
            },
        }


def _schemas(operations: Iterable[EndpointOperation]) -> dict[str, Any]:
    """The models of all operations, which name each other."""
    every = list(operations)
    models = {model for one in every for model in (one.body, one.lines) if model is not None}
    models |= {answer for one in every for answer in one.answers.values() if not isinstance(answer, str)}
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


def _part(name: str, what: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": what, "schema": {"type": "string"}}


def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    required = set(schema.get("required", ()))
    return [
        {"name": name, "in": "query", "required": name in required}
        | ({"description": found.pop("description")} if "description" in found else {})
        | {"schema": found}
        for name, found in ((name, dict(found)) for name, found in schema["properties"].items())
    ]
