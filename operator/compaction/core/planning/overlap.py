"""Overlap of paths and patterns: which directory lies in which, and whether two policies can select the same one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

# Paths as plain text: which directory lies in which. Every reconcile asks this of every job; no file is touched.


def first_below(root: str, path: str) -> str:
    """The first directory below `root` on the way to a path; "" for what lies directly in it, or elsewhere."""
    first, slash, _ = (relative_to(root, path) or "").partition("/")
    return first if slash else ""


def relative_to(root: str, path: str) -> str | None:
    """A path as seen from a directory it lies in ("" for that directory itself); None when it lies elsewhere.

    Both are absolute and without `..`. Every reconcile asks this of every job: `pathlib` takes ten times as long.
    """
    root, path = plain_path(root), plain_path(path)
    if path == root:
        return ""
    inside = f"{root.rstrip('/')}/"
    return path[len(inside) :] if path.startswith(inside) else None


def plain_path(path: str) -> str:
    """Without what means nothing: `//`, `/./` and a slash at the end."""
    if "//" in path or "/." in path or path.endswith("/"):
        return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return path


# The check whether two policies can select the same directory: a question about patterns alone, asked before anything
# is read.
#
# The patterns of both are run side by side over all paths at once, a character at a time, as sets of places in the
# patterns (a product of automata). A place where both have an include that is satisfied, and neither an exclude, is a
# directory that both select. Characters that no pattern can tell apart are one character, so the sets are few.

MOST_STATES: Final = 2000
"""So many different sets are compared; patterns that need more are taken for apart (the store's fences still hold)."""
_PIECES: Final = re.compile(r"(\*+|\?|\[[^\]]+\])|(.)", re.DOTALL)
_ANY_DEPTH: Final = "**"
_FRESH: Final = "\ue000"
"""Stands for all characters that no pattern names."""

Place = tuple[int, int, int]
"""(pattern, part, piece): before that piece; piece -1 is before the part, -2 inside a name that `**` takes."""
State = frozenset[Place]


@dataclass(frozen=True, slots=True)
class Selection:
    """The directories that a policy selects, relative to a root that is shared: patterns of names, part by part."""

    include: tuple[tuple[str, ...], ...]
    exclude: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, include: Iterable[str], exclude: Iterable[str], *, below: Sequence[str] = ()) -> Selection:
        """Patterns as a policy has them; `below` are the names that lead from the shared root to the policy's own."""
        quoted = tuple(re.sub(r"([*?[])", r"[\1]", name) for name in below)
        return cls(
            *(
                tuple((*quoted, *pattern.strip("/").split("/")) for pattern in patterns)
                for patterns in (include, exclude)
            )
        )


def overlap(selection: Selection, other: Selection) -> bool:
    """True when some directory is selected by both."""
    machines = [_Machine(patterns) for patterns in (selection.include, other.include, selection.exclude, other.exclude)]
    letters = sorted({letter for machine in machines for letter in machine.letters} | {_FRESH})
    start = tuple(machine.start for machine in machines)
    seen, todo = {start}, [start]
    while todo and len(seen) <= MOST_STATES:
        states = todo.pop()
        wanted, refused = zip(machines[:2], states[:2], strict=True), zip(machines[2:], states[2:], strict=True)
        selected = all(machine.accepts(state) for machine, state in wanted)
        if selected and not any(machine.accepts(state) for machine, state in refused):
            return True
        for letter in (*letters, "/"):
            after = tuple(machine.step(state, letter) for machine, state in zip(machines, states, strict=True))
            if after[0] and after[1] and after not in seen:
                seen.add(after)
                todo.append(after)
    return False


class _Machine:
    """Several patterns at once. A path is a sequence of names, each followed by `/`; that of the root is empty."""

    def __init__(self, patterns: tuple[tuple[str, ...], ...]) -> None:
        self._parts = [
            [None if part == _ANY_DEPTH else [found.group() for found in _PIECES.finditer(part)] for part in pattern]
            for pattern in patterns
        ]
        texts = [piece for parts in self._parts for part in parts if part is not None for piece in part]
        self.letters = {letter for text in texts for letter in _named(text)}
        self.start = self._closed({(pattern, 0, -1) for pattern in range(len(patterns))})

    def accepts(self, state: State) -> bool:
        """True when one of the patterns is satisfied by the names so far."""
        return any(part == len(self._parts[pattern]) for pattern, part, _ in state)

    def step(self, state: State, letter: str) -> State:
        """The places after one more character; `/` ends a name."""
        found: set[Place] = set()
        for pattern, part, piece in state:
            if part == len(self._parts[pattern]):
                continue
            pieces = self._parts[pattern][part]
            if letter == "/":
                if pieces is None and piece == -2:
                    found.add((pattern, part, -1))
                elif pieces is not None and piece == len(pieces):
                    found.add((pattern, part + 1, -1))
            elif pieces is None:
                found.add((pattern, part, -2))
            else:
                found.update(self._in_name(pattern, part, max(0, piece), pieces, letter))
        return self._closed(found)

    def _in_name(self, pattern: int, part: int, piece: int, pieces: list[str], letter: str) -> Iterable[Place]:
        """From before a piece: what it takes, and what the pieces behind a star that takes nothing do."""
        while piece < len(pieces) and pieces[piece].startswith("*"):
            yield pattern, part, piece
            piece += 1
        if piece < len(pieces) and _takes(pieces[piece], letter):
            yield pattern, part, piece + 1

    def _closed(self, places: set[Place]) -> State:
        """With the places that follow without a character: behind `**`, and at the end of a name behind stars."""
        closed, todo = set(places), list(places)
        while todo:
            pattern, part, piece = todo.pop()
            parts = self._parts[pattern]
            if part == len(parts):
                continue
            pieces = parts[part]
            if pieces is None and piece == -1:
                following = (pattern, part + 1, -1)
            elif (
                pieces is not None and 0 <= piece < len(pieces) and all(item.startswith("*") for item in pieces[piece:])
            ):
                following = (pattern, part, len(pieces))
            else:
                continue
            if following not in closed:
                closed.add(following)
                todo.append(following)
        return frozenset(closed)


def _takes(piece: str, letter: str) -> bool:
    if len(piece) == 1:
        return piece in ("?", letter)
    return fnmatch.fnmatchcase(letter, piece)


def _named(piece: str) -> Iterable[str]:
    """The characters that a piece tells from others: of a set also the neighbours of its own, where ranges end."""
    if piece == "?" or piece.startswith("*"):
        return ()
    if len(piece) == 1:
        return (piece,)
    near = {chr(code) for letter in piece for code in (ord(letter) - 1, ord(letter), ord(letter) + 1) if code > 0}
    return near - {"/"}
