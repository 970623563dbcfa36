"""Small pieces of schema that pydantic does not know: list semantics of Kubernetes, and defaults kept out of the
schema."""

from typing import Any, Final

from pydantic import Field

LIST_TYPE: Final = "x-kubernetes-list-type"
FREE_FORM: Final = "x-kubernetes-preserve-unknown-fields"


def list_map(*keys: str) -> Any:
    """Field metadata: a list whose items are identified by these keys (server-side apply merges by them)."""
    return Field(json_schema_extra={LIST_TYPE: "map", "x-kubernetes-list-map-keys": list(keys)})


def list_set() -> Any:
    """Field metadata: a list without duplicates; the API server refuses an item that occurs twice."""
    return Field(json_schema_extra={LIST_TYPE: "set"})


def list_atomic() -> Any:
    """Field metadata: a list that is always written as a whole."""
    return Field(json_schema_extra={LIST_TYPE: "atomic"})


def free_form() -> Any:
    """Field metadata: an object of any form, checked by the component that receives it."""
    return Field(json_schema_extra={FREE_FORM: True})
