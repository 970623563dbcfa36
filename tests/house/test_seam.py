"""The seam between the core and the kinds of stores (docs/adr/0270-the-seam.md): nothing outside of a kind knows which
kind it is, every door leads to what its Protocol says, and what an image lacks is not loaded behind the doors it opens.

What belongs to a kind is read from the registry: a kind that is added is checked without a change here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import click
import pytest
from pydantic.alias_generators import to_camel

from compaction.blocks.errors import BlockStoreError
from compaction.cli.local.run_view import OpenOthers, RunTables
from compaction.core.doors import Door
from compaction.core.kind import Kind
from compaction.errors import CompactionError
from compaction.registry import KINDS
from compaction.segments.errors import SegmentLogError
from compaction.staging.errors import StagingStoreError
from compaction.storage.adapter import OpenAdapter, StoreAdapter
from compaction.wings import SHIPPED
from compaction.worker.ports import JobRunner, OpenRewriter
from house.sources import Module, imports_of

ERRORS: dict[str, type[CompactionError]] = {
    "SegmentLogs": SegmentLogError,
    "BlockStore": BlockStoreError,
    "StagingArea": StagingStoreError,
}
"""The base of a kind's own errors."""
UNIONS = frozenset(
    {
        "compaction.api.policy.store",
        "compaction.api.job.job",
        "compaction.api.job.job_status",
        "compaction.registry",
        "compaction.wings",
    }
)
"""Where the kinds are put together: the unions of the resources, and the registry."""


def api_module(kind: Kind) -> str:
    """Where the kind's part of the resources is."""
    return kind.member.model.__module__


def rooms_of(kind: Kind) -> list[str]:
    """The kind's wing."""
    return [type(kind).__module__.rpartition(".")[0]]


def belongs_to(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def core(modules: Iterable[Module]) -> list[Module]:
    rooms = [room for kind in KINDS for room in (*rooms_of(kind), api_module(kind))]
    return [module for module in modules if not belongs_to(module.name, rooms) and module.name not in UNIONS]


@functools.cache
def names_of(kind: Kind) -> set[str]:
    """Every name that only this kind has: of members, types, models, errors, and its own classes."""
    member = kind.member
    found = {member.name, member.member, type(kind).__name__}
    for job in member.jobs:
        found |= {job.name, job.member, job.sources.__name__, job.parameters.__name__}
    source, errors = inspect.getmodule(member.model), inspect.getmodule(ERRORS[kind.name])
    assert source is not None
    assert errors is not None
    found |= {name for name, value in vars(source).items() if getattr(value, "__module__", "") == api_module(kind)}
    found |= {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    return found | {to_camel(name) for name in found if "_" in name}


@functools.cache
def tokens(identifier: str) -> list[str]:
    """`debtSegments` and `debt_segments`: debt, segments."""
    return [item.lower() for item in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", identifier)]


def is_named_after(identifier: str, kind: Kind) -> bool:
    """Whether an identifier is about the kind's sources: it has their plural, or ends with the noun."""
    noun, parts = kind.nouns.source, tokens(identifier)
    return f"{noun}s" in parts or (bool(parts) and parts[-1] == noun)


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Name():
                yield node.id, line
            case ast.Attribute():
                yield node.attr, line
            case ast.arg():
                yield node.arg, line
            case ast.keyword() if node.arg:
                yield node.arg, line
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, line
            case ast.alias():
                yield node.name.rpartition(".")[2], line


def words(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Texts that a program compares with, or looks something up by: whole words, no sentences."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


@functools.cache
def names_in(text: str) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Identifiers and words of a source; the same for every kind."""
    tree = ast.parse(text)
    return list(identifiers(tree)), list(words(tree))


def found_in(text: str, kind: Kind) -> list[str]:
    names, noun = names_of(kind), kind.nouns.source
    own_identifiers, own_words = names_in(text)
    wrong = [f"{line}: {item}" for item, line in own_identifiers if item in names or is_named_after(item, kind)]
    return wrong + [f"{line}: {item!r}" for item, line in own_words if item in names | {noun, f"{noun}s"}]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_outside_of_a_kind_names_it(modules: list[Module], kind: Kind) -> None:
    """Zero exceptions. A module that needs one asks the kind instead (`registry`)."""
    inhabitants = core(modules)
    assert len(inhabitants) > 150, "the rule would check nothing"
    wrong = [f"{inhabitant.name}:{where}" for inhabitant in inhabitants for where in found_in(inhabitant.text, kind)]
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_nothing_outside_of_a_kind_imports_its_rooms(modules: list[Module], kind: Kind) -> None:
    """Neither the core nor another kind."""
    rooms = (*rooms_of(kind), api_module(kind))
    strangers = [module for module in modules if not belongs_to(module.name, rooms) and module.name not in UNIONS]
    wrong = [
        f"{stranger.name} imports {name}"
        for stranger in strangers
        for name in sorted(stranger.imports)
        if belongs_to(name, rooms)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "if policy.spec.store.block_store is not None:\n    pass\n",
        "noun = 'block' if store.name == 'BlockStore' else 'segment'\n",
        "debt_blocks = 1\n",
        "def merged_block(job): ...\n",
        "columns = {'segment': 1, 'block': 2}\n",
        "counted(blocks=3)\n",
        "from compaction.blocks.errors import BlockStoreError\n",
        "kind = spec['blockStore']\n",
        "merged = [block for block in found]\n",
    ],
)
def test_a_name_of_a_kind_is_seen(source: str) -> None:
    """Otherwise the rule above could not fail."""
    (blocks,) = [kind for kind in KINDS if kind.name == "BlockStore"]
    assert found_in(source, blocks)


def test_what_is_like_a_name_of_a_kind_is_none() -> None:
    (blocks,) = [kind for kind in KINDS if kind.name == "BlockStore"]
    source = "reference(block_owner_deletion=True)\nblocked = 'the blocks of a store'\nblocking = unblock(it)\n"
    assert found_in(source, blocks) == []


def test_every_room_of_a_kind_exists(modules: list[Module]) -> None:
    rooms = [room for kind in KINDS for room in rooms_of(kind)]
    assert [room for room in rooms if not any(belongs_to(module.name, (room,)) for module in modules)] == []
    assert len(set(rooms)) == len(KINDS)


# --- doors ----------------------------------------------------------------------------------------------------------


def parameters_of(function: Any) -> list[tuple[str, Any]]:
    found = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.name != "self"]
    return [(item.name, item.kind) for item in found]


def lacks(thing: Any, protocol: type) -> list[str]:
    """What a thing has not, or has with other parameters, of what a Protocol asks for."""
    if "__call__" in vars(protocol):
        wanted = parameters_of(vars(protocol)["__call__"])
        return [] if callable(thing) and parameters_of(thing) == wanted else [f"{thing}: parameters are not {wanted}"]
    wrong = []
    for name, asked in vars(protocol).items():
        if name.startswith("_"):
            continue
        if not hasattr(thing, name):
            wrong.append(f"{name}: missing")
        elif inspect.isfunction(asked) and parameters_of(getattr(thing, name)) != parameters_of(asked):
            wrong.append(f"{name}: parameters are not {parameters_of(asked)}")
    return wrong + [
        f"{name}: missing" for name in vars(protocol).get("__annotations__", {}) if not hasattr(thing, name)
    ]


def returned(function: Any) -> str:
    return str(inspect.signature(function).return_annotation)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_door_resolves_and_satisfies_its_protocol(kind: Kind) -> None:
    doors = kind.doors
    assert lacks(doors.adapter.open(), OpenAdapter) == []
    assert returned(doors.adapter.open()) == StoreAdapter.__name__
    assert set(doors.rewriters) == {job.name for job in kind.member.jobs}
    for door in doors.rewriters.values():
        assert lacks(door.open(), OpenRewriter) == []
        assert returned(door.open()) == JobRunner.__name__
    assert lacks(doors.tables.open(), RunTables) == []
    assert doors.open_jobs is None or lacks(doors.open_jobs.open(), OpenOthers) == []
    for command in (*doors.commands, *((doors.drill,) if doors.drill is not None else ())):
        assert isinstance(command.door.open(), click.Command)


def test_a_door_that_leads_elsewhere_is_seen() -> None:
    class Asked(Protocol):
        NAME: str

        def said(self, one: int) -> str: ...

    class Given:
        def said(self, other: int) -> str:
            return ""

    assert len(lacks(Given(), Asked)) == 2
    assert lacks(lambda: None, OpenAdapter)
    with pytest.raises(ImportError):
        Door("compaction.core.nowhere:open").open()


def test_the_command_line_and_the_registry_know_the_same_kinds() -> None:
    assert [kind.doors for kind in KINDS] == list(SHIPPED)


def test_doors_start_nothing(modules: list[Module]) -> None:
    """`compactor --help` reads them: neither models nor anything else of a kind is loaded for it."""
    light = [module for module in modules if module.name.endswith(".doors")]
    assert len(light) == len(KINDS) + 1
    allowed = {"compaction.core", "compaction.core.doors"}
    for item in light:
        ours = {name for name in imports_of(ast.parse(item.text), package="") if name.startswith("compaction.")}
        assert {name for name in ours if not belongs_to(name, allowed)} == set()


LOADED = """
import importlib, sys
for name in {missing}:
    sys.modules[name] = None
from compaction.registry import KINDS
for module in {modules}:
    importlib.import_module(module)
for kind in KINDS:
    for door in {doors}:
        door.open()
"""
OPERATOR = [
    "compaction.cli.cluster.operator",
    "compaction.catalogs.operator.controller",
    "compaction.kube.controller",
    "compaction.kube.launchers.backends",
    "compaction.kube.replica.operator",
    "compaction.cli.cluster.status",
]
WORKER = ["compaction.cli.cluster.worker", "compaction.kube.assignments", "compaction.kube.launchers.pods"]


@pytest.mark.parametrize(
    ("missing", "modules", "doors"),
    [
        (["pyspark", "py4j"], OPERATOR, "(kind.doors.adapter,)"),
        (["kopf", "kubernetes"], WORKER, "(kind.doors.adapter, *kind.doors.rewriters.values())"),
    ],
    ids=["operator", "worker"],
)
def test_what_an_image_lacks_is_not_loaded(missing: list[str], modules: list[str], doors: str) -> None:
    """The operator's has no Spark, the worker's no Kopf: an import of either ends with an error here."""
    program = LOADED.format(missing=missing, modules=modules, doors=doors)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
