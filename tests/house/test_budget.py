"""What the tests may cost is kept: an area that took too much takes no further test until it is cheaper."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.budget import (
    APART,
    COSTS,
    MINUTES,
    TESTS,
    AreaCost,
    Costs,
    area_of,
    costs_of,
    functions_now,
    overdrawn,
    read_budget,
)


def test_the_budget_is_that_of_the_suite_and_leaves_no_test_out() -> None:
    budget = read_budget()
    assert sum(budget.values()) <= MINUTES * 60
    files = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]
    # Two lie beside the folders.
    paid = [file for file in files if "/" in file and file.partition("/")[0] not in APART]
    assert [file for file in paid if not area_of(file, budget)] == []
    assert [area for area in budget if not (TESTS / area).is_dir()] == []


def test_no_area_above_its_budget_has_more_tests_than_when_it_was_measured() -> None:
    budget = read_budget()
    assert overdrawn(budget, Costs.read(), functions_now(budget)) == []


def test_what_was_recorded_is_of_files_that_are_there() -> None:
    costs = Costs.read()
    gone = [file for file in costs.files if not (TESTS / file).exists()]
    assert len(gone) < len(costs.files) // 10, f"record the costs again (tests/README.md): {gone}"


def test_an_area_above_its_budget_takes_no_further_test() -> None:
    slow = AreaCost(10, 131.0, ("a/x.py::t",))
    costs = Costs(1.0, 1.0, {"a": slow, "b": AreaCost(5, 10.0)}, {})
    budget = {"a": 100.0, "b": 100.0}
    (said,) = overdrawn(budget, costs, {"a": 12, "b": 50})
    assert "tests/a took 131 CPU seconds of 100 and has 2 more tests since" in said
    assert "a/x.py::t" in said
    assert overdrawn(budget, costs, {"a": 10, "b": 50}) == []
    assert overdrawn(budget | {"a": 101.0}, costs, {"a": 12}) == []


def test_costs_are_those_of_the_nearest_area(tmp_path: Path) -> None:
    tests = {
        "tests/a/x.py::t[1]": (9.0, 1.0),
        "tests/a/x.py::t[2]": (9.5, 3.0),
        "tests/a/b/y.py::u": (2.0, 2.0),
        "tests/z.py::v": (1.0, 1.0),
    }
    costs = costs_of(tests, ["a", "a/b"], wall=60.0, cpu=120.0)
    assert costs.areas["a"] == AreaCost(1, 4.0, ("a/x.py::t[2]", "a/x.py::t[1]"))
    assert costs.areas["a/b"] == AreaCost(1, 2.0, ("a/b/y.py::u",))
    assert costs.areas[""].functions == 1
    assert costs.files == {"a/b/y.py": 2.0, "a/x.py": 18.5, "z.py": 1.0}
    costs.write(tmp_path / COSTS.name)
    assert Costs.read(tmp_path / COSTS.name) == costs


@pytest.mark.parametrize(("file", "area"), [("a/b/c.py", "a/b"), ("a/bc.py", "a"), ("d/e.py", "")])
def test_areas_are_whole_names_of_folders(file: str, area: str) -> None:
    assert area_of(file, ["a", "a/b"]) == area
