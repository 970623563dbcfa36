"""What the tests may cost, and what they did cost: `tests/budget.toml` and `tests/costs.json`.

The budget gives each area of the tests CPU seconds; all of them together are those of `make test`. A run with
`--costs` records what each area took. An area that took more than `ALLOWED` times its budget takes no further test
until it is cheaper: `make check` says so, with what is slowest there (house/test_budget.py).
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

TESTS: Final = Path(__file__).resolve().parents[1]
BUDGET: Final = TESTS / "budget.toml"
COSTS: Final = TESTS / "costs.json"
MINUTES: Final = 26
"""CPU minutes of `make test`, collecting and servers that tests share included. What is saved is taken from here and
from the areas, and never given back.
"""
ALLOWED: Final = 1.3
"""The same code takes a fifth more or less CPU, by what else the machine does."""
NAMED: Final = 3
APART: Final = ("node", "images")
"""Tests that `make test` does not run."""


@dataclass(frozen=True, slots=True)
class AreaCost:
    """`functions`: how many test functions, parameters not counted. `cpu`: seconds. `slowest`: ids of tests."""

    functions: int
    cpu: float
    slowest: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """A recorded run: by area, and seconds (those of the clock) by file, relative to the folder of the tests."""

    minutes: float
    cpu_minutes: float
    areas: Mapping[str, AreaCost]
    files: Mapping[str, float]

    @classmethod
    def read(cls, path: Path = COSTS) -> Self:
        found = json.loads(path.read_text())
        areas = {name: AreaCost(**item | {"slowest": tuple(item["slowest"])}) for name, item in found["areas"].items()}
        return cls(found["minutes"], found["cpu_minutes"], areas, found["files"])

    def write(self, path: Path = COSTS) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_budget(path: Path = BUDGET) -> dict[str, float]:
    """CPU seconds by area: a folder, or several that have no area of their own."""
    seconds: dict[str, float] = tomllib.loads(path.read_text())["cpu_seconds"]
    return seconds


def area_of(file: str, areas: Iterable[str]) -> str:
    """The longest area that a file, relative to the folder of the tests, is in; nothing when it is in none."""
    return max((area for area in areas if file.startswith(f"{area}/")), key=len, default="")


def costs_of(tests: Mapping[str, tuple[float, float]], areas: Iterable[str], *, wall: float, cpu: float) -> Costs:
    """Of a run: seconds of the clock and of the CPU by id of a test, `wall` and `cpu` seconds in all."""
    files: defaultdict[str, float] = defaultdict(float)
    by_area: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, (took, seconds) in tests.items():
        file = name.partition("::")[0].removeprefix("tests/")
        files[file] += took
        by_area[area_of(file, areas)][name.removeprefix("tests/")] = seconds
    made = {
        area: AreaCost(
            len({name.partition("[")[0] for name in inside}),
            round(sum(inside.values()), 1),
            tuple(sorted(inside, key=lambda name: -inside[name])[:NAMED]),
        )
        for area, inside in sorted(by_area.items())
    }
    return Costs(
        round(wall / 60, 1), round(cpu / 60, 1), made, {name: round(item, 1) for name, item in sorted(files.items())}
    )


def functions_now(areas: Iterable[str]) -> Counter[str]:
    """Test functions by area, as the sources have them."""
    found: Counter[str] = Counter()
    for path in sorted(TESTS.rglob("test_*.py")):
        file = path.relative_to(TESTS).as_posix()
        if file.partition("/")[0] not in APART:
            nodes = ast.walk(ast.parse(path.read_text()))
            found[area_of(file, areas)] += sum(
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
                for node in nodes
            )
    return found


def overdrawn(budget: Mapping[str, float], costs: Costs, functions: Mapping[str, int]) -> list[str]:
    """Areas above their budget that have more tests than when that was measured, each in a sentence."""
    return [
        f"tests/{area} took {cost.cpu:.0f} CPU seconds of {budget.get(area, 0.0):.0f} and has "
        f"{functions.get(area, 0) - cost.functions} more tests since: make room first, such as in "
        + ", ".join(cost.slowest)
        for area, cost in costs.areas.items()
        if cost.cpu > ALLOWED * budget.get(area, 0.0) and functions.get(area, 0) > cost.functions
    ]
