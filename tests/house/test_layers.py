"""Which room may know which: the imports say whether the house still stands (docs/architecture.md#walls)."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from compaction.cli.main import COMMANDS
from house.sources import PACKAGE, ROOT, Module, imports_of

CLUSTER = ("kopf", "kubernetes", "aiohttp", "compaction.kube")
SPARK = ("pyspark", "py4j", "compaction.worker")
INPUT_OUTPUT = (
    "asyncio", "fcntl", "http", "mmap", "multiprocessing", "os", "pathlib.Path", "shutil", "signal", "socket", "ssl",
    "subprocess", "tempfile", "threading", "urllib", "click", "rich", "requests",
)  # fmt: skip
CLOCKS = ("time", "random", "secrets")


@dataclass(frozen=True, slots=True)
class Layer:
    """`room` imports nothing of `forbidden`, except what `allowed` names with the reason beside it."""

    room: str
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    """Parts of the room that this does not hold for; they have rules of their own."""


WINGS = ("compaction.segments", "compaction.blocks", "compaction.staging", "compaction.catalogs")
PURE = (*CLUSTER, *SPARK, *INPUT_OUTPUT, *CLOCKS)
SERVICE = (
    "compaction.core.planning",
    "compaction.core.reconcile",
    "compaction.core.explain",
    "compaction.leases",
    "compaction.cli",
    "compaction.local",
)
"""What runs policies: a library of a wing knows nothing of it."""
LIBRARY = (*CLUSTER, *SPARK, "compaction.core.reconcile", "compaction.cli", "compaction.local")

# What import-linter says better stands in pyproject.toml: which libraries only one part imports, and that wings do not
# know each other (`test_walls_stand`).
LAYERS = (
    Layer("compaction.api", (*PURE, *WINGS, "compaction.storage", "compaction.core.planning")),
    Layer("compaction.core", (*PURE, *WINGS, "compaction.storage", "compaction.cli", "compaction.local")),
    *(
        Layer(f"compaction.core.{module}", ("compaction.core.reconcile", "compaction.core.explain"))
        for module in ("kind", "doors", "meaning", "planning")
    ),
    Layer(
        "compaction.core.planning",
        ("compaction.registry", *(f"compaction.core.{module}" for module in ("kind", "doors", "meaning"))),
    ),
    Layer("compaction.core.explain", ("compaction.core.reconcile",)),
    Layer("compaction.core.collecting", ("compaction",)),
    # What the core may know about a kind of store: decisions from plain data, and dotted names of everything else.
    *(
        Layer(
            f"compaction.{wing}.{module}",
            (*PURE, "compaction.storage", *SERVICE),
            allowed=("compaction.core.planning",),
        )
        for wing in ("segments", "blocks", "staging")
        for module in ("kind", "doors", "reasons")
    ),
    # The rules by which blocks are planned: the store's own, and as pure as those of all stores.
    Layer("compaction.blocks.planning", PURE),
    # What a write-ahead log takes, what its records are, what is in memory, what is flushed: decisions from plain data.
    Layer("compaction.segments.memtable", (*INPUT_OUTPUT, *CLOCKS)),
    Layer("compaction.segments.wal.codec", (*INPUT_OUTPUT, *CLOCKS)),
    # What the rules of an owner are, and whether facts keep them; what changed between two listings. Paths are names.
    *(
        Layer(f"compaction.segments.{module}", (*INPUT_OUTPUT, *CLOCKS), allowed=("pathlib.Path",))
        for module in (
            "checking.facts",
            "checking.checks",
            "checking.growth",
            "following.changes",
            # When an owner writes, flushes and compacts.
            "system.rules",
        )
    ),
    # What an owner reports.
    Layer("compaction.segments.system.segment_changes", (*INPUT_OUTPUT, *CLOCKS)),
    # Both sides of an installation, what they say and how it is encoded.
    *(
        Layer(f"compaction.segments.install.{module}", (*INPUT_OUTPUT, *CLOCKS))
        for module in ("messages", "sender", "receiver")
    ),
    # Plays coordinator and worker with their own parts; Spark and the reconciler are no part of fencing.
    Layer("compaction.segments.drill", ("pyspark", "py4j", "compaction.core.reconcile", "compaction.cli")),
    # A wing is a library, but for its rewriting, its endpoint, its commands and what the operator does with it.
    *(
        Layer(f"compaction.{wing}", LIBRARY, besides=("rewriting", "serving", "cli", "drill"))
        for wing in ("segments", "blocks", "staging")
    ),
    # Of catalogs it knows the errors only, and the reasons that resources show.
    Layer(
        "compaction.catalogs",
        (*LIBRARY, *SERVICE, "compaction.api", "compaction.core", "compaction.storage", "compaction.serving"),
        allowed=(
            "compaction.api.catalog.reasons",
            "compaction.api.catalog.reasons",
            "compaction.core.collecting",
            "compaction.storage.connector",
        ),
        besides=("compaction", "operator", "running", "serving", "cli", "explaining"),
    ),
    Layer("compaction.catalogs.model", (*INPUT_OUTPUT, *CLOCKS, "compaction.catalogs.codec")),
    Layer("compaction.catalogs.codec", (*INPUT_OUTPUT, *CLOCKS, "compaction.catalogs.commands")),
    Layer("compaction.catalogs.compaction", (*PURE, "compaction.catalogs.codec")),
    *(
        Layer(
            f"compaction.{wing}.rewriting",
            (*CLUSTER, "compaction.core.reconcile", "compaction.cli", "compaction.local"),
        )
        for wing in ("segments", "blocks", "staging")
    ),
    Layer("compaction.storage", (*LIBRARY, *WINGS), besides=("connector",)),
    # Of HTTP clients in every part.
    Layer("compaction.storage.connector", ("kopf", "kubernetes", "compaction", *SPARK)),
    Layer("compaction.worker", (*CLUSTER, *WINGS, "compaction.core.reconcile", "compaction.cli", "compaction.local")),
    Layer("compaction.leases", ("kopf", *SPARK, *WINGS, "compaction.storage", "compaction.cli")),
    # An edge of its own: HTTP outwards, a store as a library; who a token belongs to is asked through a port.
    Layer("compaction.serving", ("kopf", "kubernetes", "compaction.kube", *SPARK, *WINGS, *SERVICE)),
    *(
        Layer(f"compaction.{wing}.serving", ("kopf", "kubernetes", "compaction.kube", *SPARK, *SERVICE))
        for wing in ("blocks", "staging", "catalogs")
    ),
    # The one place that knows all kinds, and the doors of them for what must start at once.
    Layer("compaction.registry", (*PURE, "compaction.storage", "compaction.core.reconcile", "compaction.cli")),
    Layer("compaction.wings", (*PURE, "compaction.storage", "compaction.api", "compaction.cli")),
    Layer("compaction.errors", ("compaction", *CLUSTER, *SPARK)),
    # What every boundary says of an exception that nothing expects: it knows the errors only.
    Layer(
        "compaction.unexpected",
        (*CLUSTER, *SPARK, *CLOCKS, *WINGS, "compaction.api", "compaction.core", "compaction.storage"),
        allowed=("compaction.storage.errors",),
    ),
)


def reaches(name: str, forbidden: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in forbidden)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.room)
def test_room_knows_only_what_it_may(modules: list[Module], layer: Layer) -> None:
    besides = tuple(f"{layer.room}.{part}" for part in layer.besides)
    inhabitants = [m for m in modules if reaches(m.name, (layer.room,)) and not reaches(m.name, besides)]
    assert inhabitants, f"{layer.room} has no module: the rule checks nothing"
    wrong = [
        f"{module.name} imports {name}"
        for module in inhabitants
        for name in sorted(module.imports)
        if reaches(name, layer.forbidden) and not reaches(name, layer.allowed)
    ]
    assert wrong == []


def test_no_room_is_forgotten(modules: list[Module]) -> None:
    """A new folder must be given a rule, or be named here as one that may know everything."""
    free = {"compaction.cli", "compaction.local", "compaction.kube"}
    rooms = {".".join(m.name.split(".")[:2]) for m in modules} - {"compaction"}
    assert rooms - free == {".".join(layer.room.split(".")[:2]) for layer in LAYERS}


COMPOSED = (
    "compaction.registry",
    "compaction.wings",
    # Commands for a cluster or a file, which show policies and catalogs side by side, and start the operator of both.
    "compaction.cli.main",
    "compaction.cli.cluster",
    "compaction.cli.local.run",
    "compaction.kube.metrics.registry",
)
"""Where wings are put together; all else is of one wing, or of all."""


def test_wings_are_put_together_in_few_places(modules: list[Module]) -> None:
    users = {m.name for m in modules if any(reaches(name, WINGS) for name in m.imports)}
    assert {name for name in users if not reaches(name, (*WINGS, *COMPOSED))} == set()
    assert {room for room in COMPOSED if not any(reaches(name, (room,)) for name in users)} <= {"compaction.cli.main"}


EXAMPLE = "replicated_kv"
OF_EXAMPLES = (EXAMPLE, "compaction.errors", "compaction.segments")
"""Of the project an example uses one library, as its copy elsewhere would."""


def test_examples_use_libraries_and_only_a_demo_uses_them(
    modules: list[Module], beside: list[Module], examples: list[Module]
) -> None:
    users = {m.name for m in (*modules, *beside) if any(reaches(name, (EXAMPLE,)) for name in m.imports)}
    assert users
    assert {name for name in users if not reaches(name, ("demos.segments", EXAMPLE))} == set()
    ours = {(m.name, name) for m in examples for name in m.imports if reaches(name, ("compaction", EXAMPLE))}
    assert len(ours) > 20
    assert {pair for pair in ours if not reaches(pair[1], OF_EXAMPLES)} == set()


def test_every_form_of_import_is_seen() -> None:
    """Otherwise the rules above could not fail."""
    source = (
        "import kopf.on\nfrom kubernetes import client\ndef f():\n    from ..kube import queue\n    from . import x\n"
    )
    names = imports_of(ast.parse(source), package="compaction.segments.wal")
    assert {"kopf.on", "kubernetes.client", "compaction.segments.kube.queue", "compaction.segments.wal.x"} <= names
    assert reaches("kopf.on", CLUSTER)
    assert not reaches("kopfish", CLUSTER)


def test_command_line_is_lazy(modules: list[Module]) -> None:
    """`compactor segments` must start without Kopf and Spark: `cli.main` imports no command module itself."""
    main = next(m for m in modules if m.name == "compaction.cli.main")
    targets = {target.split(":")[0] for target, _ in COMMANDS.values()}
    assert not main.imports & targets
    assert not any(reaches(name, ("kopf", "kubernetes", "pyspark")) for name in main.imports)


HEAVY = ("kopf", "kubernetes", "pyspark", "aiohttp")
LIGHT = "import sys, compaction.{module}; sys.exit(str(found) if (found := {heavy} & set(sys.modules)) else 0)"


@pytest.mark.parametrize(
    "module",
    [
        "cli.main",
        "segments.cli.commands",
        "blocks.cli.listing",
        "blocks.cli.compact",
        "core.planning.scheduler",
        "api.policy.policy",
    ],
)
def test_light_commands_stay_light(module: str) -> None:
    """What is loaded in the end, through all the rooms on the way: the static rules see one step only."""
    answer = subprocess.run(
        [sys.executable, "-c", LIGHT.format(module=module, heavy=set(HEAVY))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr


def test_control_plane_programs_need_the_standard_library_only() -> None:
    """`make setup` prepares them while pip still fills the environment, so nothing from it may be imported."""
    source = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import compaction.local.programs.binaries"
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", source], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_walls_stand() -> None:
    """What import-linter finds by pyproject.toml: which libraries one part imports alone, and that wings are apart."""
    linter = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout
    assert ", 0 broken." in answer.stdout


# Kopf is known in two places (docs/adr/0301-kopf-beside-our-own-watch.md).


def test_two_modules_import_kopf(modules: list[Module]) -> None:
    importers = [module.name.rpartition(".")[2] for module in modules if "kopf" in module.imports]
    assert sorted(importers) == ["handlers", "term"]


ACROSS = {
    "bench",
    "chaos",
    "conformance",
    "contract",
    "crash",
    "e2e",
    "fuzz",
    "house",
    "images",
    "manifests",
    "mutation",
}
ACROSS |= {"node", "simulation", "support", "catalogs/simulation"}
"""Folders of tests that cross the whole package, or drive a part of it in a world of their own (tests/README.md)."""


def test_tests_mirror_the_package() -> None:
    """A folder of tests is a package, or a module, of the same name; its tests are found where a reader looks."""
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path()}
    rooms = [PACKAGE, ROOT, ROOT / "examples" / "replicated-kv"]

    def is_known(folder: Path) -> bool:
        inside = Path(*folder.parts[1:]) if folder.parts[0] == "examples" else folder
        return any((room / inside).is_dir() or (room / inside).with_suffix(".py").is_file() for room in rooms)

    crossing = {folder for folder in folders if folder.parts[0] in ACROSS or folder.as_posix() in ACROSS}
    assert sorted(folder.as_posix() for folder in folders - crossing if not is_known(folder)) == []
