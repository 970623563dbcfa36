"""Models whose attribute docstrings are the descriptions of their fields in a JSON schema.

Pydantic's own way (`use_attribute_docstrings`) reads and parses the source of each class when it is imported: a third
of what the API costs each process that starts, while only a developer generates a schema. So the docstrings are read
when a schema is made, from the source, a module at a time.
"""

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """The base of such a model. `Field(description=...)` wins over a docstring."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        generated = handler(schema)
        properties = handler.resolve_ref_schema(generated).get("properties", {})
        for name, text in descriptions(cls).items():
            field = cls.model_fields.get(name)
            shown = properties.get(name if field is None else field.alias or name)
            if field is not None and shown is not None and field.description is None:
                shown["description"] = text
        return generated


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings of the attributes of a model and of the models that it inherits from, by attribute."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, Documented) and one is not Documented:
            found |= _of_module(one.__module__).get(one.__qualname__, {})
    return found


@functools.cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Docstrings of attributes by the qualified name of their class."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {qualified: dict(_of_class(one)) for qualified, one in _classes(tree, "")}


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield f"{prefix}{child.name}", child
            yield from _classes(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(child, f"{prefix}{child.name}.<locals>.")
        else:
            yield from _classes(child, prefix)


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """A string that follows an annotated attribute is its docstring."""
    for attribute, text in itertools.pairwise(node.body):
        if (
            isinstance(attribute, ast.AnnAssign)
            and isinstance(attribute.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield attribute.target.id, inspect.cleandoc(text.value.value)
