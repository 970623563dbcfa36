"""Docstrings of attributes describe the fields of a schema, wherever the model is written."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from compaction.api.base import Documented, descriptions


class Part(Documented):
    """A model that another one has and a third one inherits from."""

    model_config = ConfigDict(alias_generator=to_camel)

    row_count: int
    """How many rows
    there are."""
    plain: int = 0

    def rows(self) -> int:
        """Not the docstring of an attribute."""
        return self.row_count


class Whole(Part):
    plain: int = 1
    """Described by the model that inherits it."""
    other: Part | None = None
    """The other part."""
    own: Annotated[int, Field(description="Its own words.")] = 2
    """Words for a reader of the code."""


def test_a_field_has_its_docstring_by_its_name_on_the_wire() -> None:
    shown = Part.model_json_schema()["properties"]
    assert shown["rowCount"]["description"] == "How many rows\nthere are."
    assert "description" not in shown["plain"]


def test_a_model_inherits_docstrings_and_adds_its_own_but_not_over_a_description() -> None:
    schema = Whole.model_json_schema()
    shown = {name: field.get("description") for name, field in schema["properties"].items()}
    assert shown == {
        "rowCount": "How many rows\nthere are.",
        "plain": "Described by the model that inherits it.",
        "other": "The other part.",
        "own": "Its own words.",
    }
    assert "description" not in schema["$defs"]["Part"]["properties"]["plain"]


def test_a_model_may_be_written_in_a_function_or_in_another_one() -> None:
    class Outer(Documented):
        class Inner(Documented):
            depth: int
            """How deep it is."""

        depth: int
        """Not so deep."""

    assert descriptions(Outer) == {"depth": "Not so deep."}
    assert descriptions(Outer.Inner) == {"depth": "How deep it is."}
