"""Operations of an endpoint, once: its routes and its OpenAPI document are made from them, and from its wire
models.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema

from compaction.api.base import Documented
from compaction.serving.access import Principal

# The base of every model that goes over the wire.
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


# The operations of an endpoint, once: routes, authentication, decoding and the OpenAPI document follow from them.

JSON: Final = "application/json"
TEXT: Final = "text/plain"
LINES: Final = "application/x-ndjson"
_REFERENCE: Final = "#/components/schemas/{model}"
_BEARER: Final = "bearer"
_ALWAYS: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
"""Refusals of every operation that is not open."""
_OF_BODIES: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
"""Refusals of every operation with a body."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was admitted and decoded. `parts`: of its path; `query`, `body`: of the models of its operation,
    and for a body of lines the bytes.
    """

    principal: Principal
    parts: Mapping[str, str]
    query: Any = None
    body: Any = None


Run = Callable[[Any, Call], Awaitable[Wire | bytes]]
"""Carries an operation out, for a service; an answer in bytes is JSON already."""


@dataclass(frozen=True, slots=True)
class EndpointOperation:
    """One row of an endpoint's table: a route, who may use it, what it takes and answers, and what carries it out.

    answer: the model of a 200, or its media type. problems: statuses of refusals beside those that every operation has.
    run: None is an open operation of `HttpService`.
    scope: what a caller must be allowed, with parts of the path in braces; empty: `run` checks it. lines: a body of
    JSON lines, each of this model. parts: the parameters in the path, and what they are.
    """

    name: str
    method: str
    path: str
    summary: str
    answer: type[BaseModel] | str
    run: Run | None = None
    description: str = ""
    problems: tuple[HTTPStatus, ...] = ()
    scope: str = ""
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    lines: type[BaseModel] | None = None

    def answers(self, problem: type[BaseModel]) -> dict[HTTPStatus, type[BaseModel] | str]:
        """By status a model, or a media type. `problem`: the model of refusals."""
        if self.run is None:
            return dict.fromkeys((HTTPStatus.OK, *self.problems), self.answer)
        bodies = _OF_BODIES if self.body is not None or self.lines is not None else ()
        return {HTTPStatus.OK: self.answer} | dict.fromkeys((*_ALWAYS, *bodies, *self.problems), problem)

    def document(self, problem: type[BaseModel]) -> dict[str, Any]:
        """The operation in OpenAPI. `problem`: the model of refusals."""
        found: dict[str, Any] = {"operationId": self.name, "summary": self.summary}
        if self.description:
            found["description"] = self.description
        if self.run is None:
            found["security"] = []
        parameters = [
            {"name": name, "in": "path", "required": True, "description": what, "schema": {"type": "string"}}
            for name, what in self.parts.items()
        ]
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
            for status, answer in self.answers(problem).items()
        }
        return found


@dataclass(frozen=True, slots=True)
class Api:
    """An endpoint as its document describes it. `own`: the operations that other endpoints do not have; `problem`: the
    model of refusals; `document_path`: where the document is.
    """

    title: str
    description: str
    own: tuple[EndpointOperation, ...]
    problem: type[BaseModel]
    document_path: str = "/openapi.json"

    @property
    def operations(self) -> tuple[EndpointOperation, ...]:
        """All of them: the own ones, and those that every endpoint has for every caller."""
        return (
            *self.own,
            EndpointOperation("openapi", "GET", self.document_path, "This document.", JSON),
            EndpointOperation("healthz", "GET", "/healthz", "Whether the process answers.", TEXT),
            EndpointOperation(
                "readyz",
                "GET",
                "/readyz",
                "Whether requests are taken.",
                TEXT,
                problems=(HTTPStatus.SERVICE_UNAVAILABLE,),
            ),
            EndpointOperation("metrics", "GET", "/metrics", "Metrics for Prometheus.", TEXT),
        )

    def document(self, version: str) -> dict[str, Any]:
        """The OpenAPI document. `version`: of the program."""
        paths: dict[str, dict[str, Any]] = {}
        for operation in self.operations:
            paths.setdefault(operation.path, {})[operation.method.lower()] = operation.document(self.problem)
        return {
            "openapi": "3.1.0",
            "info": {"title": self.title, "version": version, "description": self.description},
            "security": [{_BEARER: []}],
            "paths": paths,
            "components": {
                "schemas": self._schemas(),
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

    def _schemas(self) -> dict[str, Any]:
        """The models of all operations, which name each other."""
        models = {self.problem}
        for operation in self.own:
            models |= {model for model in (operation.body, operation.lines) if model is not None}
            if not isinstance(operation.answer, str):
                models.add(operation.answer)
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
