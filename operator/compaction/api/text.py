"""Bounded text and lists for status; text from outside made safe to print.

The schema bounds every string and list, and the API server refuses a status that breaks a bound. A status that cannot
be written is a silent stall, so text that comes from outside (an error message, a path) is cut to fit instead of
refused.
"""

import hashlib
import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, ValidationError

ELLIPSIS: Final = "…"
_PROBLEM_LIMIT: Final = 300
# What a terminal obeys or what changes the order of a line (control characters, separators, bidirectional marks), and
# what UTF-8 cannot hold: file names of any bytes arrive with their stray ones as surrogates.
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def cut(text: str, limit: int) -> str:
    """The text if it fits in that many characters, else its beginning and an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def printable(text: str) -> str:
    """The text with what no line of output should hold written out: `\\x1b`, `\\u202e`; a stray byte: `\\xff`."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return ascii(match[0])[1:-1]


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


MARK_LIMIT: Final = 1024


def mark_of(value: str) -> str:
    """What status remembers of an annotation's value that was acted upon: the value, or its SHA-256 when it is long."""
    return value if len(value) <= MARK_LIMIT else f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def number_in(text: str | None, *, limit: int) -> int | None:
    """A number that somebody wrote into an annotation; None for anything else, or more than `limit`."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(limit)):
        return None
    return number if (number := int(text)) <= limit else None


MESSAGE_LIMIT: Final = 2048
PATH_LIMIT: Final = 4096

Message = Annotated[str, StringConstraints(max_length=MESSAGE_LIMIT), cutting(MESSAGE_LIMIT), PRINTABLE]
Mark = Annotated[str, StringConstraints(max_length=MARK_LIMIT)]
Word = Annotated[str, StringConstraints(max_length=64), cutting(64)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=253)]
# A directory may lie deeper than any program can name, and a name's stray bytes are written with four characters each.
Path = Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT), cutting(PATH_LIMIT)]
INT64_MAX: Final = 2**63 - 1
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
