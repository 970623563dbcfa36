"""What of the package is in the images, computed as a build does: what a cluster runs, and nothing for workstations."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from compaction.cli.main import COMMANDS
from house.sources import PACKAGE, read_modules
from tools.images.build import CHECKOUT, IGNORED, Image, reaches_build, sources

WORKSTATION = (
    "compaction.segments.drill", "compaction.local.cluster", "compaction.local.programs", "compaction.local.tenants",
)  # fmt: skip
"""Parts of the package for a local cluster, drills, and programs that are built here."""
AWAY = ("local", "drill")
"""Commands that an image does not have."""
ENTRY_POINTS = (
    "compaction.cli.main", "compaction.cli.main",
    "compaction.segments.adapter", "compaction.blocks.adapter",
)  # fmt: skip
START = """
import importlib, sys
import compaction
assert compaction.__file__.startswith(sys.argv[1]), compaction.__file__
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def within(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Module -> what it imports of the package; a package counts as imported with what is in it."""
    found = read_modules()
    names = {module.name for module in found}
    graph = {}
    for module in found:
        reached = module.imports & names
        for name in {module.name, *reached}:
            parts = name.split(".")
            reached |= {".".join(parts[:end]) for end in range(1, len(parts))}
        graph[module.name] = set(reached)
    return graph


@pytest.fixture(scope="module")
def kept() -> set[str]:
    """The modules that both images hold."""
    files = {path for path in sources(Image.OPERATOR) if path.suffix == ".py" and PACKAGE in path.parents}
    assert files == {path for path in sources(Image.WORKER) if path.suffix == ".py" and PACKAGE in path.parents}
    return {module.name for module in read_modules() if module.path in files}


def python(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with that package instead of the checkout's."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-W", "ignore", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=installed)


def test_rooms_for_workstations_are_in_no_image(kept: set[str], imports: dict[str, set[str]]) -> None:
    assert [room for room in WORKSTATION if room not in imports] == []
    assert sorted(name for name in kept if within(name, WORKSTATION)) == []
    assert [path for path in sources(Image.OPERATOR) if "gomodules" in path.parts] == [], "data files go with them"


def test_every_rule_leaves_something_out() -> None:
    """A file that moved would slip into the images, and its old rule would say nothing."""
    rules = (CHECKOUT / IGNORED).read_text().splitlines()
    named = [rule for rule in rules if rule.startswith("operator/compaction")]
    assert len(named) > len(WORKSTATION)
    assert [rule for rule in named if not (CHECKOUT / rule).exists()] == []


def test_nothing_that_stays_imports_what_is_left_out(kept: set[str], imports: dict[str, set[str]]) -> None:
    wrong = {name: sorted(imports[name] - kept) for name in sorted(kept) if not imports[name] <= kept}
    assert wrong == {}


def test_what_stays_of_the_local_rooms_is_used_by_a_command_that_stays(
    kept: set[str], imports: dict[str, set[str]]
) -> None:
    """Otherwise it is something else for workstations only, and belongs on the list."""
    found, ahead = set[str](), [name for name in kept if within(name, ["compaction.cli"])]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += imports[name]
    rooms, used = ({".".join(name.split(".")[:3]) for name in names} for names in (kept, found))
    assert sorted(room for room in rooms - used if within(room, ["compaction.local"])) == []


def test_every_command_is_in_an_image_or_only_for_workstations(kept: set[str]) -> None:
    missing = [name for name, (where, _) in COMMANDS.items() if where.partition(":")[0] not in kept]
    assert sorted(missing) == sorted(AWAY)


def test_entry_points_start_without_what_is_left_out(installed: Path) -> None:
    modules = {where.partition(":")[0] for name, (where, _) in COMMANDS.items() if name not in AWAY}
    answer = python(installed, "-c", START, str(installed), *ENTRY_POINTS, *sorted(modules))
    assert answer.returncode == 0, answer.stderr


def test_a_command_for_workstations_says_where_it_is_available(installed: Path) -> None:
    listed = python(installed, "-m", "compaction.cli.main", "--help")
    commands = {line.split()[0] for line in listed.stdout.partition("Commands:")[2].splitlines() if line.strip()}
    assert {"operator", "worker", "run", "segments", "blocks"} <= commands
    assert not commands & set(AWAY)
    for name in AWAY:
        answer = python(installed, "-m", "compaction.cli.main", name, "--help")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr == (
            f"error: `compactor {name}` is not available in this image: it runs on workstations only; install the "
            "package there (docs/images.md)\n"
        )


RULES = ["# said", "*", "", "!operator", "operator/build", "operator/a/b.py", "**/__pycache__", "**/*.egg-info"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Makefile", False), ("operator/a/c.py", True), ("operator/a/b.py", False), ("operator/a/b.pyi", True),
        ("operator/build/lib/x.py", False), ("operator/a/build/x.py", True), ("operator/__pycache__/x.pyc", False),
        ("operator/a/b/c/__pycache__/x.pyc", False), ("operator/x.egg-info/PKG", False), ("operatorx/a.py", False),
    ],
)  # fmt: skip
def test_the_last_rule_that_matches_decides(path: str, expected: bool) -> None:
    assert reaches_build(Path(path), RULES) is expected


# What the images hold is what runs in them imports: tried with everything else of this installation hidden, and
# without the parts of the package for workstations.

RUNS = {
    "operator": (
        "compaction.cli.cluster.operator",
        "compaction.catalogs.operator.controller",
        "compaction.kube.controller",
        "compaction.kube.launchers.backends",
        "compaction.kube.replica.operator",
        "compaction.segments.adapter",
        "compaction.blocks.adapter",
    ),
    "worker": (
        "compaction.cli.cluster.worker",
        "compaction.kube.assignments",
        "compaction.kube.launchers.pods",
        "compaction.blocks.rewriting.task",
        "compaction.blocks.store",
    ),
}
"""What the image's containers import at the least."""
HIDE = """
import importlib, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"{name} is not in the image", name=name)
hidden = set(sys.argv[2].split(","))
sys.meta_path.insert(0, Hidden())
for module in sys.argv[1].split(","):
    importlib.import_module(module)
import sqlalchemy
sqlalchemy.create_engine("postgresql+psycopg://nowhere/index").dialect.dbapi.connect
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.store import ensure_schema
database = IndexDatabase.open("sqlite://" + sys.argv[3])
ensure_schema(database, identity="01ARZ3NDEKTSV4RRFFQ69G5FAV")
database.close()
"""


def held_by(image: str) -> set[str]:
    """Names of the distributions that the image's list pins, as Python compares them."""
    lines = (CHECKOUT / f"requirements-{image}.txt").read_text().splitlines()
    return {line.partition("==")[0].replace("_", "-").lower() for line in lines if line[:1].isalpha()}


@pytest.mark.parametrize("image", RUNS)
def test_an_image_holds_what_it_imports(image: str, installed: Path, tmp_path: Path) -> None:
    held = held_by(image)
    hidden = {
        module
        for module, names in packages_distributions().items()
        if not {name.replace("_", "-").lower() for name in names} & (held | {"compaction-operator"})
    }
    assert {"duckdb", "polars", "kubernetes"} <= hidden, "what tests and people need is hidden"
    words = [",".join(RUNS[image]), ",".join(sorted(hidden)), f"/{tmp_path}/index.db"]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HIDE, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )
    assert answer.returncode == 0, answer.stderr


def test_what_both_images_hold_is_of_one_version() -> None:
    """They read and write the same index and the same blocks."""
    pins = {
        image: {
            line.partition("==")[0]: line.split()[0]
            for line in (CHECKOUT / f"requirements-{image}.txt").read_text().splitlines()
            if "==" in line and line[:1].isalpha()
        }
        for image in RUNS
    }
    for name in ("alembic", "obstore", "psycopg", "pyarrow", "python-ulid", "sqlalchemy", "xxhash"):
        assert pins["operator"][name] == pins["worker"][name]
