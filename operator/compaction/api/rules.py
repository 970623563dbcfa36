"""Validation rules that hold in two places: CEL on the API server, Python for `compactor run -f`.

A rule's two halves stand next to each other and share one message, so the same wrong spec gets the same advice
wherever it is refused. Messages say what to write instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


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
