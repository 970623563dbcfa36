"""The project's own sources as data: house rules are checked on the text of the files, nothing is imported for it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "compaction"
EXAMPLES = (ROOT / "examples" / "replicated-kv" / "replicated_kv",)
"""Packages of examples: the same style, other imports (`test_layers`)."""
BESIDE = (*EXAMPLES, ROOT / "tools", ROOT / "demos")
"""Packages in no wheel."""


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: its dotted name, its text, and the full names of all modules it imports, wherever in the file."""

    name: str
    path: Path
    text: str
    imports: frozenset[str]


def imports_of(tree: ast.AST, *, package: str) -> frozenset[str]:
    """Full names imported in `tree`, also inside functions and `if TYPE_CHECKING`; relative ones seen from `package`.

    `from a import b` yields both `a` and `a.b`: which of the two is the module cannot be seen from the text.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(names)


def read_module(path: Path, root: Path = PACKAGE) -> Module:
    dotted = path.relative_to(root.parent).with_suffix("").parts
    package = dotted[:-1]
    name = ".".join(package if dotted[-1] == "__init__" else dotted)
    text = path.read_text()
    return Module(name=name, path=path, text=text, imports=imports_of(ast.parse(text), package=".".join(package)))


@cache
def read_modules() -> list[Module]:
    """All modules of the package, ordered by path; they are read once."""
    return [read_module(path) for path in sorted(PACKAGE.rglob("*.py"))]


def read_beside(*roots: Path) -> list[Module]:
    """All modules of packages in no wheel, ordered by path."""
    return [read_module(path, root) for root in roots for path in sorted(root.rglob("*.py"))]


# The project's pages as data: links, headings and anchors as a forge renders them.

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")
_INLINE_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file; `name` is relative to the checkout."""

    name: str
    path: Path
    text: str

    @property
    def links(self) -> list[str]:
        """Targets of all links to files and anchors of this repository, in their order."""
        return [target for target in _LINK.findall(_FENCE.sub("", self.text)) if not _OUTSIDE.match(target)]

    @property
    def anchors(self) -> set[str]:
        """What `#...` may name on this page: one per heading, a number behind the second of the same words."""
        found: dict[str, int] = {}
        for heading in _HEADING.findall(_FENCE.sub("", self.text)):
            anchor = anchor_of(heading)
            found[anchor] = found.get(anchor, -1) + 1
        return {
            anchor if number == 0 else f"{anchor}-{number}"
            for anchor, last in found.items()
            for number in range(last + 1)
        }


def anchor_of(heading: str) -> str:
    """`#5-the-life-of-a-job` of `5. The life of a job`, without the `#`."""
    plain = _INLINE_LINK.sub(r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def page_at(path: Path) -> Page:
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return Page(str(name), path, path.read_text(encoding="utf-8"))


def read_pages() -> list[Page]:
    """README, the other pages at the root, docs, examples and tests/README, ordered by path."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "README.md"]
    paths += (ROOT / "examples").rglob("*.md")
    return [page_at(path) for path in sorted(paths)]


def broken_links(page: Page) -> list[str]:
    """Links of the page whose file, or whose anchor in it, does not exist."""
    broken = []
    for target in page.links:
        file, _, anchor = target.partition("#")
        path = (page.path.parent / file).resolve() if file else page.path
        if not path.exists() or (anchor and (path.suffix != ".md" or anchor not in page_at(path).anchors)):
            broken.append(target)
    return broken
