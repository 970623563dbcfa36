"""Filters of zones: paths of JSON, checked for their form (docs/design/catalogs.md#zones)."""

from __future__ import annotations

import re
from typing import Final

from compaction.catalogs.errors import CatalogValidationError

_NAME: Final = re.compile(r"[^\s.\[\]()*'\"]+|\*")
_STEPS: Final = re.compile(r"\s*(\*|-?\d+(\s*,\s*-?\d+)*|-?\d*\s*:\s*-?\d*(\s*:\s*-?\d+)?)\s*\]")
_NAMES: Final = re.compile(
    r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s*,\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))*\s*\]"""
)
_CONDITION: Final = re.compile(r"\s*\?\s*\(")


def require_path(filter: str | None) -> None:
    """CatalogValidationError when `filter` is no JSON path."""
    if filter is None:
        return
    path = filter.strip()
    if not path.startswith(("$", "@")):
        path = f"$.{path}"
    at = 1
    if path.endswith("."):
        raise CatalogValidationError(f"the filter {filter[:80]!a} is no JSON path: it ends with a dot")
    while at < len(path):
        end = _step(path, at)
        if end is None:
            raise CatalogValidationError(f"the filter {filter[:80]!a} is no JSON path: see character {at}")
        at = end


def _step(path: str, at: int) -> int | None:
    """Where the step that begins at `at` ends; None when there is none."""
    if path.startswith("..", at):
        at += 2
    elif path.startswith(".", at):
        at += 1
    elif not path.startswith("[", at):
        return None
    if not path.startswith("[", at):
        found = _NAME.match(path, at)
        if found is None:
            return None
        return found.end() + 2 if path.startswith("()", found.end()) else found.end()
    for form in (_STEPS, _NAMES):
        if found := form.match(path, at + 1):
            return found.end()
    if found := _CONDITION.match(path, at + 1):
        return _condition_end(path, found.end())
    return None


def _condition_end(path: str, at: int) -> int | None:
    """After the `)]` that closes a condition; brackets in texts do not count."""
    depth, quote, start = 1, "", at
    while at < len(path):
        one = path[at]
        if quote:
            at += one == "\\"
            quote = "" if one == quote else quote
        elif one in "'\"":
            quote = one
        elif one == "(":
            depth += 1
        elif one == ")":
            depth -= 1
            if not depth:
                closing = re.compile(r"\s*\]").match(path, at + 1)
                return closing.end() if closing and path[start:at].strip() else None
        at += 1
    return None
