"""The project's public sentences as data: docstrings and messages of the package, definitions, manifests, pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from house.sources import BESIDE, PACKAGE, ROOT

PAGES = ("README.md", "docs/*.md", "docs/design/*.md", "docs/runbooks/*.md", "examples/*/*.md")
GENERATED = ("crds/*.yaml", "manifests/**/*.yaml", "manifests/**/*.json", "manifests/**/*.md")

BANNED = {
    r"anew": '"again", or the verb says it: retry, rebuild, restart',
    r"mend(s|ed|ing)?": '"fix" or "repair"',
    r"(un)?told": '"report", "read from", "distinguish"; or name who reports what',
    r"some(body|one)": "the subject: a user, another process, a worker",
    r"whoever": "the subject: the caller, the user who",
    r"nobody": 'the subject: "no user", "no reader", "no worker"',
    r"the case": "the fact itself",
    r"look(s|ed|ing)? (again )?at": '"scan", "read", "check"',
    r"(an?|one|no|the|this|that|last|next|first|every|each|later|another|full|whole|such|fresh) look|two looks": (
        '"a scan", "a read", "a check"'
    ),
    r"g(ive|ives|iven|ave|iving)( [\w{}]+){0,3} back": '"reclaim", "release", "return"',
    r"th(at|ing|ings|ey) (is|are|was|were|has been|have been) made": '"create"',
    r"as far as": "the limit itself: what is known, what is allowed",
    r"(set|sets|setting|left|leaves?) ([\w{}]+ )?aside": '"quarantine"; "skip" where nothing is damaged',
    r"rest(s|ed|ing)": '"is suspended", "is idle", "depends on"',
    r"in (the|this|that|its|their|one|a) rooms?": '"in the package", "in memory"',
}
"""Words that a translation leaves behind, as regular expressions of whole words, and what to write instead. Words
inside of backticks are names and not checked.
"""
MEASURED = "docs/benchmarks.md"
"""The one exception: rows of its tables bear the names that the benchmarks print."""
_BANNED = tuple(
    (re.compile(rf"\b(?:{word})\b".replace(" ", r"\s+"), re.IGNORECASE), better) for word, better in BANNED.items()
)
_NAMES = re.compile(r"(?<!`)`[^`\n]+`(?!`)|\]\([^)]*\)|\bdocs/[\w./#-]+")


@dataclass(frozen=True, slots=True)
class Sentences:
    """Public text and where it stands; `lines` are the numbered lines of the file that hold it."""

    file: Path
    text: str
    lines: tuple[tuple[int, str], ...]


def found_in(one: Sentences) -> list[str]:
    """`file:line: "word"; write ...` for each banned word of the text."""
    text = _NAMES.sub(_blank, one.text)
    file = one.file.relative_to(ROOT) if one.file.is_relative_to(ROOT) else one.file.name
    return [
        f'{file}:{_line(one, pattern, text, match)}: "{" ".join(match[0].split())}"; write {better}'
        for pattern, better in _BANNED
        for match in pattern.finditer(text)
    ]


def _blank(match: re.Match[str]) -> str:
    """A name keeps its length and loses its words."""
    return re.sub(r"\S", "`", match[0])


def _line(one: Sentences, pattern: re.Pattern[str], text: str, match: re.Match[str]) -> int:
    """The line of a match: counted where the text is as the file has it, else the first line that holds the words."""
    first = one.lines[0][0]
    counted = first + text.count("\n", 0, match.start())
    source = dict(one.lines).get(counted, "")
    if match[0].splitlines()[0] in source:
        return counted
    return next((number for number, line in one.lines if pattern.search(line)), first)


def of_module(path: Path) -> Iterator[Sentences]:
    """Docstrings and all other strings of a module that hold a space. An f-string is one text, `{}` for its values."""
    lines = path.read_text().splitlines()
    tree = ast.parse("\n".join(lines))
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in parts:
                pass
            case ast.JoinedStr(values=values):
                text = "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in values)
            case _:
                continue
        if " " in text:
            numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            yield Sentences(path, text, tuple((number, lines[number - 1]) for number in numbers))


def of_page(path: Path) -> Sentences:
    """A page, a definition or a manifest as one text."""
    text = path.read_text(encoding="utf-8")
    if path == ROOT / MEASURED:
        text = re.sub(r"^\|.*", "", text, flags=re.MULTILINE)
    return Sentences(path, text, tuple(enumerate(text.splitlines(), 1)))


def public() -> Iterator[Sentences]:
    """All public sentences of the project, by file."""
    for root in (PACKAGE, *BESIDE):
        for path in sorted(root.rglob("*.py")):
            yield from of_module(path)
    for pattern in (*PAGES, *GENERATED):
        yield from map(of_page, sorted(ROOT.glob(pattern)))
