"""Bounded text and lists for status.

The schema bounds every string and list, and the API server refuses a status that breaks a bound. A status that cannot
be written is a silent stall, so text that comes from outside (an error message, a path) is cut to fit instead of
refused.
"""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError

from compaction.api.text.safe import INT64_MAX, MARK_LIMIT, MESSAGE_LIMIT, PATH_LIMIT, cut, printable

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
