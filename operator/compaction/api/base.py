"""The base of every model in the API: frozen, camelCase on the wire, documented, with rules.

`from_object` and `to_object` are the only way between the API server's JSON and the models. Unknown fields are
ignored when reading (a newer operator may have written them); `manifests` refuses them where a person's typing is
read.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

from compaction.api.documented import Documented
from compaction.api.rules import Rule


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
