"""Rules of style that a formatter does not know, and the one trap of the folder named `operator`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from house.english import found_in, of_module, of_page, public
from house.sources import PACKAGE, ROOT, Module

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
    """Outside CI tests are skipped without the reference files, and without a browser; a wall clock says nothing about
    correctness.
    """
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert len(tests) > 10
    marks = re.compile(r"mark\.(skip|xfail)|pytest\.(skip|xfail|importorskip)\(")
    found = [str(path.relative_to(ROOT)) for path in tests if marks.search(path.read_text())]
    assert sorted(found) == ["tests/cli/cluster/console/conftest.py", "tests/conftest.py"]


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


# What the package says about itself: its license, and that the license travels with it.

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_license_is_named_and_its_files_exist() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "Apache License, Version 2.0" in (ROOT / "NOTICE").read_text()


@pytest.mark.parametrize("recipe", ["Dockerfile", "spark-images/Dockerfile"])
def test_an_image_is_built_with_the_license_files(recipe: str) -> None:
    """The package cannot be built without them; .dockerignore keeps out what it does not name."""
    packaged = [line for line in (ROOT / recipe).read_text().splitlines() if line.startswith("COPY pyproject.toml")]
    assert [set(PROJECT["license-files"]) <= set(line.split()) for line in packaged] == [True]
    let_in = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in PROJECT["license-files"]} <= set(let_in)


def test_the_repository_has_one_url() -> None:
    assert list(PROJECT["urls"]) == ["Repository"]
    assert PROJECT["urls"]["Repository"].startswith("https://")


# Public sentences use the words of kubectl, Kueue and cert-manager, not those of a translation.


def test_public_sentences_hold_no_banned_word() -> None:
    texts = list(public())
    assert len(texts) > 5000, "or the check reads nothing"
    assert [line for text in texts for line in found_in(text)] == []


def test_banned_words_are_found_in_every_form_of_text(tmp_path: Path) -> None:
    """A docstring, a string of two lines, an f-string; not what stands in backticks or is the name of a page."""
    module = tmp_path / "module.py"
    module.write_text(
        '"""Is told\nto nobody."""\n'
        'raise E(\n    "mend "\n    f"job {one}: gives {two} back "\n    "as far\\n as known")\n'
        'named = "`told` by docs/adr/0235-a-policy-rests.md: the rest"\n'
    )
    found = [line.partition("; write ")[0] for item in of_module(module) for line in found_in(item)]
    assert sorted(found) == [
        'module.py:1: "told"',
        'module.py:2: "nobody"',
        'module.py:4: "as far as"',
        'module.py:4: "mend"',
        'module.py:5: "gives {} back"',
    ]
    page = tmp_path / "page.md"
    page.write_text("# Page\n[The policy](a-policy-rests.md) is\nset\naside.\n")
    assert [line.partition(";")[0] for line in found_in(of_page(page))] == ['page.md:3: "set aside"']
