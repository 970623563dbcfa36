"""Where two values of JSON differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

MOST: Final = 20
"""Differences that are listed of one value."""
_LONGEST: Final = 160
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Missing:
    """In place of a value that is not there."""

    def __str__(self) -> str:
        return "nothing"


MISSING: Final = Missing()


@dataclass(frozen=True, slots=True)
class Difference:
    """`path`: keys and positions with points between them, from the name of a field on."""

    path: str
    expected: object
    found: object

    def __str__(self) -> str:
        return f"{self.path}: the history has {_text(self.expected)}, this catalog {_text(self.found)}"


def differences(path: str, expected: Any, found: Any) -> list[Difference]:
    """The innermost values that differ, MOST of them; the last counts the others."""
    every = list(_differences(path, expected, found))
    if len(every) <= MOST:
        return every
    rest = len(every) - MOST
    return [*every[:MOST], Difference(f"{path} and {rest} more", every[MOST].expected, every[MOST].found)]


def _differences(path: str, expected: Any, found: Any) -> Iterator[Difference]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from _differences(f"{path}.{key}", expected.get(key, MISSING), found.get(key, MISSING))
    elif isinstance(expected, list) and isinstance(found, list):
        for at in range(max(len(expected), len(found))):
            one = expected[at] if at < len(expected) else MISSING
            other = found[at] if at < len(found) else MISSING
            yield from _differences(f"{path}.{at}", one, other)
    elif type(expected) is not type(found) or expected != found:
        yield Difference(path, expected, found)


def _text(value: object) -> str:
    shown = str(value) if isinstance(value, Missing) else json.dumps(value, sort_keys=True)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
