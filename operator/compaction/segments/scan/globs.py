"""Include and exclude patterns for log directories: relative paths, `/` between parts.

`*` and `?` stay inside one part, `[...]` is a set, `**` as a whole part stands for any number of parts, none included.
So `**` matches the root itself as well, `*` only what lies directly below it, `**/archive/**` everything below any
`archive`.

Matching takes at most (parts of the pattern) x (parts of the path) steps, whatever the two say: a pattern comes from
any user who may write a policy, a name from any who may create a directory, and neither may stop the coordinator.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from compaction.segments.errors import GlobSyntaxError

_LONGEST_QUOTE = 80

Glob = tuple[re.Pattern[str] | None, ...]
"""A compiled pattern, part by part; None for `**`."""


def compile_globs(patterns: Iterable[str]) -> tuple[Glob, ...]:
    """Compiled patterns. GlobSyntaxError for an absolute one, one with `..`, an empty one, or one that cannot mean what
    it says (`***`, a `[` without its `]`).
    """
    return tuple(_compile(pattern) for pattern in patterns)


def matches(patterns: tuple[Glob, ...], relative: str) -> bool:
    """Whether any pattern matches a path relative to the root (`""` for the root itself)."""
    names = relative.split("/") if relative else []
    return any(_matches(pattern, names) for pattern in patterns)


def _matches(pattern: Glob, names: list[str]) -> bool:
    """Greedy: should a part not match, the last `**` takes one name more. Going back further never helps."""
    part = name = 0
    any_depth, taken = -1, 0
    while name < len(names):
        wanted = pattern[part] if part < len(pattern) else None
        if part < len(pattern) and wanted is None:
            any_depth, taken = part, name
            part += 1
        elif wanted is not None and wanted.fullmatch(names[name]):
            part, name = part + 1, name + 1
        elif any_depth >= 0:
            taken += 1
            part, name = any_depth + 1, taken
        else:
            return False
    return all(rest is None for rest in pattern[part:])


def _compile(pattern: str) -> Glob:
    parts = pattern.strip("/").split("/") if not pattern.startswith("/") else []
    if not parts or any(part in ("", ".", "..") for part in parts):
        raise GlobSyntaxError(
            f"{_quoted(pattern)}: a pattern is a path relative to the root, without empty parts, `.` and `..`"
        )
    if "***" in pattern:
        raise GlobSyntaxError(f"{_quoted(pattern)}: write `**` for any depth, `*` within one name")
    if any("[" in re.sub(r"\[[^\]]+\]", "", part) for part in parts):
        raise GlobSyntaxError(
            f"{_quoted(pattern)}: a `[` has no `]` in the same name; write `[[]` for the character itself"
        )
    return tuple(None if part == "**" else re.compile(_translate(part)) for part in parts)


def _quoted(pattern: str) -> str:
    return repr(pattern[:_LONGEST_QUOTE])


def _translate(part: str) -> str:
    """One part. What follows a star is looked for once, at its first place (an atomic group): no star is tried again
    for the sake of a later one, which is never needed and takes exponential time.
    """
    chunks = [""]
    for piece in re.split(r"(\*+|\?|\[[^\]]+\])", part):
        if piece.startswith("*"):
            chunks.append("")
        elif piece == "?":
            chunks[-1] += "."
        elif piece.startswith("[") and piece.endswith("]"):
            chunks[-1] += fnmatch.translate(piece)[4:-3]
        else:
            chunks[-1] += re.escape(piece)
    first, *rest = chunks
    if not rest:
        return f"(?s:{first})"
    middle = "".join(f"(?>.*?{chunk})" for chunk in rest[:-1] if chunk)
    return f"(?s:{first}{middle}.*{rest[-1]})"
