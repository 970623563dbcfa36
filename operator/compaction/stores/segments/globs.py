"""Include and exclude patterns for log directories: relative paths, `/` between parts.

`*` and `?` stay inside one part, `[...]` is a set, `**` as a whole part stands for any number of parts, none included.
So `**` matches the root itself as well, `*` only what lies directly below it, `**/archive/**` everything below any
`archive`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from compaction.exceptions import GlobSyntaxError


def compile_globs(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Compiled patterns. GlobSyntaxError for an absolute one, one with `..`, an empty one, or one that cannot mean what
    it says (`***`, a `[` without its `]`).
    """
    return tuple(re.compile(_translate(pattern)) for pattern in patterns)


def matches(patterns: tuple[re.Pattern[str], ...], relative: str) -> bool:
    """Whether any pattern matches a path relative to the root (`""` for the root itself)."""
    return any(pattern.fullmatch(relative) for pattern in patterns)


def _translate(pattern: str) -> str:
    parts = pattern.strip("/").split("/") if not pattern.startswith("/") else []
    if not parts or any(part in ("", ".", "..") for part in parts):
        raise GlobSyntaxError(
            f"{pattern!r}: a pattern is a path relative to the root, without empty parts, `.` and `..`"
        )
    if "***" in pattern:
        raise GlobSyntaxError(f"{pattern!r}: write `**` for any depth, `*` within one name")
    if any("[" in re.sub(r"\[[^\]]+\]", "", part) for part in parts):
        raise GlobSyntaxError(f"{pattern!r}: a `[` has no `]` in the same name; write `[[]` for the character itself")
    if all(part == "**" for part in parts):
        return r"(?s:.*)"
    expression = ""
    for position, part in enumerate(parts):
        last = position == len(parts) - 1
        if part == "**":
            # Behind a named part the separator is optional: `a/**` matches `a` itself.
            expression = expression.removesuffix("/") + r"(?:/[^/]+)*" if last else expression + r"(?:[^/]+/)*"
        else:
            expression += _translate_part(part) + ("" if last else "/")
    return rf"(?s:{expression})"


def _translate_part(part: str) -> str:
    """One part, in which no wildcard crosses a separator."""
    # A part is never empty: `*` does not match the root.
    out = "(?=[^/])"
    for piece in re.split(r"(\*+|\?|\[[^\]]+\])", part):
        if piece.startswith("*"):
            out += "[^/]*"
        elif piece == "?":
            out += "[^/]"
        elif piece.startswith("[") and piece.endswith("]"):
            out += rf"(?!/){fnmatch.translate(piece)[4:-3]}"
        else:
            out += re.escape(piece)
    return out
