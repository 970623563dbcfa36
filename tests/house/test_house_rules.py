"""Rules of style that a formatter does not know, and the one trap of the folder named `operator`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Container
from functools import cache
from pathlib import Path

import pytest

from house.sources import BESIDE, PACKAGE, ROOT, Module

LONGEST_FUNCTION = 70
"""Lines from `def` to the end, docstring not counted: what fits on a screen."""


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    """With operator/__init__.py on the path, not even `import collections` works any more."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    answer = subprocess.run(
        [sys.executable, "-c", "import collections, operator; operator.itemgetter"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_functions_fit_on_a_screen(modules: list[Module], examples: list[Module]) -> None:
    too_long = [
        f"{module.name}.{node.name}: {_lines(node)} lines"
        for module in modules + examples
        for node in ast.walk(ast.parse(module.text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > LONGEST_FUNCTION
    ]
    assert too_long == []


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if documented else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def test_every_module_says_what_it_is_for(modules: list[Module], examples: list[Module]) -> None:
    silent = [m.name for m in modules + examples if m.text.strip() and not ast.get_docstring(ast.parse(m.text))]
    assert silent == []


def test_nothing_is_left_for_later(modules: list[Module], examples: list[Module]) -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
    assert [f"{m.name}: {found.group()}" for m in modules + examples if (found := marks.search(m.text))] == []


def test_no_test_is_skipped_or_timed() -> None:
    """The only skip is the one for reference files outside CI; a wall clock says nothing about correctness."""
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert len(tests) > 10
    marks = re.compile(r"mark\.(skip|xfail)|pytest\.(skip|xfail|importorskip)\(")
    found = [str(path.relative_to(ROOT)) for path in tests if marks.search(path.read_text())]
    assert found == ["tests/conftest.py"]


def test_names_that_tests_take_from_modules_exist() -> None:
    """mypy reads what tests share, not the tests, and no program of the images: a name that moved would fail in the
    long run of all tests only, or on a node.
    """
    roots = (PACKAGE.parent, ROOT / "tests", *(package.parent for package in BESIDE))
    files = {path.relative_to(root).with_suffix("").parts: path for root in roots for path in root.rglob("*.py")}
    files |= {parts[:-1]: path for parts, path in files.items() if parts[-1] == "__init__"}
    tests = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "spark-images").glob("*.py")]
    taken = [(path, use) for path in tests for use in _uses_of_modules(ast.parse(path.read_text()), files)]
    assert len(taken) > 5000, "or the rule sees nothing"
    missing = [
        f"{path.relative_to(ROOT)}:{line} {'.'.join(module)}.{name}"
        for path, (module, name, line) in taken
        if (*module, name) not in files and (module not in files or name not in _names_of(files[module]))
    ]
    assert missing == []


def _uses_of_modules(tree: ast.AST, files: Container[tuple[str, ...]]) -> list[tuple[tuple[str, ...], str, int]]:
    """Module, name and line of each `from module import name`, and of each `module.name` whose module the file has by
    `from package import module`; and of names that are put in the place of others: `setattr(module, "name", ...)` of
    pytest, and `(module, "name", ...)` of the simulator.
    """
    imported: dict[str, tuple[str, ...]] = {}
    variables: set[str] = set()
    uses: list[tuple[str, str, int]] = []
    taken: list[tuple[tuple[str, ...], str, int]] = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(package), names=names):
                parts = tuple(package.split("."))
                imported.update((alias.asname or alias.name, (*parts, alias.name)) for alias in names)
                taken += [
                    (parts, alias.name, node.lineno) for alias in names if parts in files or parts[0] == "compaction"
                ]
            case ast.Attribute(value=ast.Name(id=variable), attr=name) if not name.startswith("__"):
                uses.append((variable, name, node.lineno))
            case (
                ast.Call(
                    func=ast.Attribute(attr="setattr"), args=[ast.Name(id=variable), ast.Constant(value=str(name)), *_]
                )
                | ast.Tuple(elts=[ast.Name(id=variable), ast.Constant(value=str(name)), *_])
            ) if name.isidentifier():
                uses.append((variable, name, node.lineno))
            case ast.Name(id=variable, ctx=ast.Store()) | ast.arg(arg=variable):
                variables.add(variable)
    # Which of the two a function means is not seen here.
    modules = {name: module for name, module in imported.items() if module in files and name not in variables}
    return taken + [(modules[variable], name, line) for variable, name, line in uses if variable in modules]


@cache
def _names_of(path: Path) -> frozenset[str]:
    """What a module defines or imports, in whatever block."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return frozenset(names)


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt",
        "requirements-dev.txt",
        "requirements-build.txt",
        "requirements-fuzz.txt",
        "requirements-operator.txt",
        "requirements-worker.txt",
    ],
)
def test_requirements_are_pinned_by_hash_and_name_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    pins = re.findall(r"^([a-z0-9][a-z0-9._-]*)==\S+", text, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(pins) == len(blocks) > 0
    assert all("--hash=sha256:" in block for block in blocks)
    assert not re.search(r"https?://|--index|--find-links|--extra-index", text)


def test_package_is_complete_without_the_checkout() -> None:
    """Data files that the code opens are named in the package's metadata, or an installed package lacks them."""
    declared = re.search(r"compaction = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert declared is not None
    patterns = re.findall(r'"([^"]+)"', declared[1])
    data = [p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in {".py", ".pyc"}]
    missing = [str(p) for p in data if not any(p.relative_to(PACKAGE).match(pattern) for pattern in patterns)]
    assert missing == []


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    records = [path.name for path in (ROOT / "docs" / "adr").glob("0*.md")]
    assert len(records) > 10
    assert [name for name in records if f"({name})" not in index] == []
