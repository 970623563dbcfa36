"""`make quick`: the tests nearest to what was changed, by the graph of imports, for a verdict in two minutes.

Changed is what differs from the last commit; in a clean tree, the last commit itself. Test files are taken by how many
imports lie between them and a change, the cheap ones first, until the time is used up; what they cost is in
`tests/costs.json`. Tests that start servers or Spark are taken only when they themselves were changed. What is left out
is said: `make test` is the verdict on all of it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from house.sources import ROOT, imports_of
from support.timing import APART, COSTS, Costs

PROCESSES: Final = 2
SECONDS: Final = 120.0
"""Of tests, in all processes; collecting them and the rules of the house take the rest of the two minutes."""
UNKNOWN: Final = 1.0
"""What a file is taken to cost that was in no recorded run."""
PLACES: Final = (("operator", "operator"), ("tests", "tests"), ("examples", "examples/replicated-kv"))
"""Folder of sources -> the folder in which its packages begin."""
SERVERS: Final = ("apiserver", "spark", "control_plane", "postgres", "s3", "block_store", "kubectl", "own_plane")
"""Markers and fixtures that start something."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Python file of the checkout, by its path from there. `servers`: its tests start some."""

    path: str
    module: str
    imports: frozenset[str]
    servers: bool

    @property
    def is_test(self) -> bool:
        parts = self.path.split("/")
        return parts[0] == "tests" and parts[1] not in APART and parts[-1].startswith("test_")


@dataclass(frozen=True, slots=True)
class Selection:
    """Test files to run, and how many that a change reaches are left to `make test`."""

    chosen: tuple[str, ...]
    left: int


def read_source(path: Path, root: Path = ROOT) -> Source:
    """SyntaxError: it is no Python."""
    relative = path.relative_to(root).as_posix()
    base = next(base for folder, base in PLACES if relative.startswith(f"{folder}/"))
    parts = path.relative_to(root / base).with_suffix("").parts
    package = parts[:-1]
    text = path.read_text()
    tree = ast.parse(text)
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    words |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return Source(
        relative,
        ".".join(package if parts[-1] == "__init__" else parts),
        imports_of(tree, package=".".join(package)),
        not words.isdisjoint(SERVERS),
    )


def read_sources(root: Path = ROOT) -> list[Source]:
    """All of the package, the tests and the examples."""
    return [read_source(path, root) for folder, _ in PLACES for path in sorted((root / folder).rglob("*.py"))]


def distances(sources: Iterable[Source], changed: Collection[str]) -> dict[str, int]:
    """How many imports lie between each file and a changed one, by path; files that reach none are not there.

    A conftest.py is imported by what lies beside and below it; other files that are no Python concern nobody here.
    """
    known = list(sources)
    by_module = {source.module: source for source in known}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for source in known:
        for name in source.imports & by_module.keys():
            importers[by_module[name].path].add(source.path)
        if source.path.endswith("/conftest.py"):
            folder = source.path.removesuffix("conftest.py")
            importers[source.path] |= {item.path for item in known if item.path.startswith(folder)}
    found = {source.path: 0 for source in known if source.path in changed}
    waiting = deque(found)
    while waiting:
        path = waiting.popleft()
        for importer in importers[path] - found.keys():
            found[importer] = found[path] + 1
            waiting.append(importer)
    return found


def select(
    sources: Sequence[Source], changed: Collection[str], costs: Mapping[str, float], *, seconds: float = SECONDS
) -> Selection:
    """The nearest tests that fit into so many seconds. A test file that was changed is always among them."""
    far = distances(sources, changed)
    reached = [source for source in sources if source.is_test and source.path in far]
    price = {item.path: costs.get(item.path.removeprefix("tests/"), UNKNOWN) for item in reached}
    chosen: list[str] = []
    spent = 0.0
    for item in sorted(reached, key=lambda source: (far[source.path], price[source.path], source.path)):
        if far[item.path] and (item.servers or spent + price[item.path] > seconds):
            continue
        chosen.append(item.path)
        spent += price[item.path]
    return Selection(tuple(sorted(chosen)), len(reached) - len(chosen))


def changed_files(root: Path = ROOT) -> set[str]:
    """Paths from the checkout. CalledProcessError: it is no checkout of git."""
    here = _git(root, "diff", "--name-only", "HEAD") | _git(root, "ls-files", "--others", "--exclude-standard")
    return here or _git(root, "show", "--first-parent", "-m", "--name-only", "--format=", "HEAD")


def _git(root: Path, *arguments: str) -> set[str]:
    answer = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines())


def main(arguments: Sequence[str]) -> int:
    """The rules of the house and the nearest tests; pytest's exit code."""
    changed = changed_files()
    costs = Costs.read().files if COSTS.exists() else {}
    selection = select(read_sources(), changed, costs)
    print(
        f"{len(changed)} files changed: {len(selection.chosen)} files of tests are nearest; "
        f"{selection.left} that a change reaches are left to `make test`",
        flush=True,
    )
    house = [] if any(path.startswith("tests/house/") for path in selection.chosen) else ["tests/house"]
    # Test files one after the other in two processes, as `make test` has them in more.
    beside = ["--numprocesses", str(PROCESSES), "--dist", "loadscope", "--no-loadscope-reorder"]
    return int(pytest.main(["-q", *beside, *house, *selection.chosen, *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
