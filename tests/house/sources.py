"""The project's own sources as data: house rules are checked on the text of the files, nothing is imported for it."""

from __future__ import annotations

import ast
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
