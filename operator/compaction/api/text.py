"""Bounded text and lists for status.

The schema bounds every string and list, and the API server refuses a status that breaks a bound. A status that cannot
be written is a silent stall, so text that comes from outside (an error message, a path) is cut to fit instead of
refused.
"""

from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

ELLIPSIS: Final = "…"


def cut(text: str, limit: int) -> str:
    """The text if it fits in that many characters, else its beginning and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


# In `Annotated` these come after the bound they keep: the last validator named runs first.


def cutting(limit: int) -> BeforeValidator:
    """Validator that cuts a string to the limit (characters)."""
    return BeforeValidator(lambda value: cut(value, limit) if isinstance(value, str) else value)


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


MESSAGE_LIMIT: Final = 2048
PATH_LIMIT: Final = 4096

Message = Annotated[str, StringConstraints(max_length=MESSAGE_LIMIT), cutting(MESSAGE_LIMIT)]
Word = Annotated[str, StringConstraints(max_length=64), cutting(64)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Path = Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT)]
INT64_MAX: Final = 2**63 - 1
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
