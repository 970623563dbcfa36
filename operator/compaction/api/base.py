"""The base of every model in the API: frozen, camelCase on the wire, documented, bounded, with rules."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from compaction.api.text.printing import INT64_MAX, MARK_LIMIT, MESSAGE_LIMIT, PATH_LIMIT, cut, printable

# Times as they are written in the resources: RFC 3339 in UTC, whole seconds, as metav1.Time.


def to_timestamp(moment: datetime) -> datetime:
    """The moment as metav1.Time keeps it: UTC, whole seconds (the rest is cut off). ValueError out of range."""
    try:
        return moment.astimezone(UTC).replace(microsecond=0)
    except OverflowError as error:
        raise ValueError("a time must lie between the years 1 and 9999 in UTC") from error


def format_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds: `2026-11-21T03:36:00Z`."""
    # Not strftime: it writes years before 1000 with fewer than four digits.
    return to_timestamp(moment).replace(tzinfo=None).isoformat() + "Z"


def timestamp_from_epoch(seconds: float) -> datetime:
    """The time of that many seconds since 1970 UTC."""
    return to_timestamp(datetime.fromtimestamp(seconds, tz=UTC))


Timestamp = Annotated[
    AwareDatetime,
    AfterValidator(to_timestamp),
    PlainSerializer(format_timestamp, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in status: an aware datetime in UTC, to the second."""

# Models whose attribute docstrings are the descriptions of their fields in a JSON schema.
#
# Pydantic's own way (`use_attribute_docstrings`) reads and parses the source of each class when it is imported: a
# third of what the API costs each process that starts, while only a developer generates a schema. So the docstrings
# are read when a schema is made, from the source, a module at a time.


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
    for item in reversed(model.__mro__):
        if issubclass(item, Documented) and item is not Documented:
            found |= _of_module(item.__module__).get(item.__qualname__, {})
    return found


@functools.cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """Docstrings of attributes by the qualified name of their class."""
    tree = ast.parse(inspect.getsource(sys.modules[name]))
    return {qualified: dict(_of_class(item)) for qualified, item in _classes(tree, "")}


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


# Bounded text and lists for status.
#
# The schema bounds every string and list, and the API server refuses a status that breaks a bound. A status that
# cannot be written is a silent stall, so text that comes from outside (an error message, a path) is cut to fit
# instead of refused.

_PROBLEM_LIMIT: Final = 300


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong with data from outside, as `field.path: what`: one short line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return printable(cut(f"{where}: {first['msg']}" if where else first["msg"], _PROBLEM_LIMIT))


# In `Annotated` these come after the bound they keep: the last validator named runs first.


def cutting(limit: int) -> BeforeValidator:
    """Validator that cuts a string to the limit (characters)."""
    return BeforeValidator(lambda value: cut(value, limit) if isinstance(value, str) else value)


PRINTABLE: Final = BeforeValidator(
    lambda value: "\n".join(map(printable, value.split("\n"))) if isinstance(value, str) else value
)
"""Validator that makes each line of a string printable."""


def keeping_first(limit: int) -> BeforeValidator:
    """Validator that keeps the first items of a list."""
    return BeforeValidator(lambda value: value[:limit] if isinstance(value, list | tuple) else value)


def keeping_last(limit: int) -> BeforeValidator:
    """Validator that keeps the last (newest) items of a list."""
    return BeforeValidator(lambda value: value[-limit:] if isinstance(value, list | tuple) else value)


def once_by(*attributes: str) -> AfterValidator:
    """Validator for a list whose items have keys on the API server: of several with the same key the first stays."""

    def first_of_each(items: tuple[Any, ...]) -> tuple[Any, ...]:
        by_key: dict[tuple[Any, ...], Any] = {}
        for item in items:
            by_key.setdefault(tuple(getattr(item, attribute) for attribute in attributes), item)
        return tuple(by_key.values())

    return AfterValidator(first_of_each)


Message = Annotated[str, StringConstraints(max_length=MESSAGE_LIMIT), cutting(MESSAGE_LIMIT), PRINTABLE]
Mark = Annotated[str, StringConstraints(max_length=MARK_LIMIT)]
Word = Annotated[str, StringConstraints(max_length=64), cutting(64)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
# A directory may lie deeper than any program can name, and a name's stray bytes are written with four characters each.
Path = Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT), cutting(PATH_LIMIT)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]


# Validation rules that hold in two places: CEL on the API server, Python for `compactor run -f`.
#
# A rule's two halves stand next to each other and share one message, so the same wrong spec gets the same advice
# wherever it is refused. Messages say what to write instead.


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about a value (`self` in CEL).

    `message_cel` and `explain`: the message with what is wrong in the value, as an expression of CEL and in Python.

    `holds` is None for rules about a change (CEL's oldSelf): only the API server sees both sides. `field` is the
    member the error is shown at, relative to the value, for rules about an object: `.root`.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    field: str = ""
    message_cel: str = ""
    explain: Callable[[Any], str] | None = None

    def to_schema(self) -> dict[str, Any]:
        """The entry of `x-kubernetes-validations`."""
        entry = {"rule": self.cel, "message": self.message}
        if self.message_cel:
            entry["messageExpression"] = self.message_cel
        return entry | {"fieldPath": self.field} if self.field else entry

    def check(self, value: Any) -> None:
        """Raise PydanticCustomError with the message when the value breaks the rule."""
        if self.holds is not None and not self.holds(value):
            message = self.explain(value) if self.explain is not None else self.message
            raise PydanticCustomError("rule", "{message}", {"message": message, "field": self.field})


class Checked:
    """Field metadata: `Annotated[str, Checked(rule, ...)]` puts rules on a single field or on each item of a list."""

    def __init__(self, *rules: Rule) -> None:
        self.rules = rules

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        generated = handler(schema)
        rules = [*generated.get("x-kubernetes-validations", ()), *(rule.to_schema() for rule in self.rules)]
        return {**generated, "x-kubernetes-validations": rules}

    def _check(self, value: Any) -> Any:
        for rule in self.rules:
            rule.check(value)
        return value


def exactly_one_of(members: tuple[str, ...], attributes: tuple[str, ...], *, what: str) -> Rule:
    """The rule of a union: exactly one member is set. A new member is one more name in the tuple."""
    listed = ", ".join(f"has(self.{member})" for member in members)
    choices = " or ".join(members)
    return Rule(
        cel=f"[{listed}].exists_one(given, given)",
        message=f"set exactly one {what}: {choices}",
        holds=lambda value: sum(getattr(value, attribute) is not None for attribute in attributes) == 1,
    )


# The base of every model in the API: frozen, camelCase on the wire, documented, with rules.
#
# `from_object` and `to_object` are the only way between the API server's JSON and the models. Unknown fields are
# ignored when reading (a newer operator may have written them); `manifests` refuses them where a person's typing is
# read.


class ApiModel(Documented):
    """A frozen model whose attribute docstrings are the field descriptions of `kubectl explain`."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        extra="ignore",
        use_enum_values=False,
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def from_object(cls, data: Mapping[str, Any]) -> Self:
        """The model of an object as the API server returns it. Raises pydantic.ValidationError."""
        return cls.model_validate(data)

    def to_object(self) -> dict[str, Any]:
        """JSON-compatible dict with camelCase keys; what is None is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.RULES:
            rule.check(self)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        generated = super().__get_pydantic_json_schema__(schema, handler)
        if cls.RULES:
            handler.resolve_ref_schema(generated)["x-kubernetes-validations"] = [rule.to_schema() for rule in cls.RULES]
        return generated


# Small pieces of schema that pydantic does not know: list semantics of Kubernetes, and defaults kept out of the
# schema.

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


# Columns and filters of `kubectl get`: printer columns and the description of one resource.


class PrinterColumnType(StrEnum):
    """OpenAPI types of a printer column; kubectl shows a date as an age."""

    STRING = "string"
    INTEGER = "integer"
    DATE = "date"


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of `kubectl get`; `wide` columns appear with `-o wide` only."""

    name: str
    path: str
    description: str
    type: PrinterColumnType = PrinterColumnType.STRING
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ResourceInfo:
    """Names, columns and selectable fields of a kind."""

    kind: str
    plural: str
    singular: str
    short_name: str
    columns: tuple[PrinterColumn, ...]
    selectable: tuple[str, ...]


# The part of `metadata` the operator reads. Metadata is the API server's: none of it is in the generated schemas.


class OwnerReference(ApiModel):
    """An object this one belongs to (metav1.OwnerReference)."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiModel):
    """Metadata of an object (metav1.ObjectMeta); empty strings and 0 before the API server filled them in."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Timestamp | None = None
    deletion_timestamp: Timestamp | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def is_deleting(self) -> bool:
        """True when deletion was asked for."""
        return self.deletion_timestamp is not None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if there is one."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A resourceVersion or uid of "" would be refused by the API server.
        return {key: value for key, value in handler(self).items() if value}
