"""What every OpenAPI document of an endpoint must be, whatever the endpoint offers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from compaction.serving.service import HttpService


def check_routes(server: HttpService, document: dict[str, Any]) -> None:
    """The routes that are served are those of the document. Closes the server."""
    served = [(route.method.lower(), route.resource) for route in server.application().router.routes()]
    routes = {(method, resource.canonical) for method, resource in served if resource is not None}
    assert routes == {(method, path) for path, found in document["paths"].items() for method in found}
    server.close()


def check_whole(document: dict[str, Any]) -> None:
    """All that it refers to is there and described, nothing is left open, and operations have names of their own."""
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    assert set(_references(document)) <= {f"#/components/schemas/{name}" for name in schemas}
    for name, schema in schemas.items():
        assert "description" in schema, name
        assert schema.get("additionalProperties") is False or "enum" in schema, name
    operations = [item for path in document["paths"].values() for item in path.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    json.dumps(document)


def secured(document: dict[str, Any]) -> set[str]:
    """The operations that need a caller who is known."""
    operations = [item for path in document["paths"].values() for item in path.values()]
    return {operation["operationId"] for operation in operations if operation.get("security", document["security"])}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (item for name, item in value.items() if name == "$ref")
        yield from (found for item in value.values() for found in _references(item))
    elif isinstance(value, list):
        yield from (found for item in value for found in _references(item))
