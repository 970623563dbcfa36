"""What the tests may cost is kept: an area that took too much takes no further test until it is cheaper."""

from __future__ import annotations

import importlib.util
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

from support.parallel import COMPUTING, TOGETHER, WAITING, compile_ahead, compiled, group, in_turns, next_of
from support.parallel import TESTS as RUNNING_TESTS
from support.quick import Source, changed_files, distances, read_source, select
from support.timing import (
    APART,
    COSTS,
    MINUTES,
    TESTS,
    AreaCost,
    Cost,
    Costs,
    Timing,
    area_of,
    costs_of,
    functions_now,
    overdrawn,
    program,
    read_budget,
    report_lines,
    shared_lines,
    sum_by,
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


# The run of the tests itself: how files are shared out between workers, and what the summary says of their cost.


def test_each_file_has_its_turn_once_and_the_long_ones_come_first() -> None:
    files = ["api/a.py", "chaos/b.py", "crash/c.py", "e2e/d.py", "e2e/e.py", "kube/f.py", "simulation/g.py"]
    turns = in_turns(files)
    assert turns == ["e2e/d.py", "simulation/g.py", "e2e/e.py", "crash/c.py", "chaos/b.py", "kube/f.py", "api/a.py"]


def test_half_of_the_workers_take_what_needs_an_api_server_as_long_as_there_is_any() -> None:
    served = {"kube/b.py", "e2e/c.py"}
    assert next_of(["api/a.py", "kube/b.py", "e2e/c.py"], served, first_half=True, later={}) == "kube/b.py"
    assert next_of(["kube/b.py", "e2e/c.py", "api/a.py", "fuzz/d.py"], served, first_half=False, later={}) == "api/a.py"
    assert next_of(["kube/b.py", "e2e/c.py"], served, first_half=False, later={}) == "kube/b.py"
    assert next_of(["api/a.py", "fuzz/d.py"], served, first_half=True, later={}) == "api/a.py"


def test_the_folders_that_are_long_are_still_there() -> None:
    assert [folder for folder in (*WAITING, *COMPUTING) if not (RUNNING_TESTS / folder).is_dir()] == []


def test_what_is_compiled_before_the_workers_start_is_what_pytest_looks_for(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    test, module = tmp_path / "test_it.py", tmp_path / "it.py"
    test.write_text("def test_it():\n    one = 1\n    assert one == 2\n")
    module.write_text("ONE = 1\n")
    compile_ahead(pytestconfig, [test, module])
    code = rewrite._read_pyc(test, compiled(test))
    assert code is not None
    names: dict[str, Any] = {}
    exec(code, names)
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        names["test_it"]()
    assert Path(importlib.util.cache_from_source(str(module))).is_file()
    test.write_text("changed = True\n")
    assert rewrite._read_pyc(test, compiled(test)) is None


def test_costs_add_up_by_folder() -> None:
    costs = {"a/x.py::one": Cost(1, 2.0, 1.0), "a/x.py::two[b/c]": Cost(1, 3.0, 0.5), "b/y.py::one": Cost(1, 1.0, 1.0)}
    folders = sum_by(costs.items(), lambda name: str(Path(name.partition("::")[0]).parent))
    assert folders == {"a": Cost(2, 5.0, 1.5), "b": Cost(1, 1.0, 1.0)}


def test_the_summary_says_what_all_of_it_took_and_names_the_slowest() -> None:
    costs = {f"a/x.py::test_{index}": Cost(1, float(index), 0.25) for index in range(100)}
    *_, last = lines = list(report_lines(costs.items(), wall=90.0, cpu=30.0))
    assert last == "100 tests took 1.5 minutes and 0.5 CPU minutes"
    named = [line.split("::")[1] for line in lines if "::" in line]
    assert named == [f"test_{index}" for index in range(99, 79, -1)]


def test_the_summary_says_what_is_shared_and_what_was_started() -> None:
    fixtures = {"spark": Cost(3, 9.0, 6.0), "plane": Cost(1, 5.0, 7.0), "cheap": Cost(80, 1.0, 0.5)}
    *lines, last = shared_lines(fixtures, Counter({"etcd": 2, "python -m compaction": 40}))
    assert [line.split()[-1] for line in lines[2:]] == ["plane", "spark"]
    assert last.endswith(": python -m compaction 40, etcd 2")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/usr/bin/etcd", "--data-dir", "x"], "etcd"),
        (["/venv/bin/python3.11", "-m", "compaction.cli.main", "operator"], "python -m compaction.cli.main"),
        (["python", "-X", "dev", "/tests/support/light_operator.py"], "python light_operator.py"),
        (["python", "-c", "print()"], "python -c"),
    ],
)
def test_programs_have_the_names_that_people_call_them_by(arguments: list[str], name: str) -> None:
    assert program(arguments[0], arguments) == name


def test_tests_of_several_folders_may_run_together(pytestconfig: pytest.Config) -> None:
    """Where their conftest files differ, pytest looks each plugin up in a set."""
    assert {Timing(pytestconfig), Timing(pytestconfig)}


def test_the_files_that_run_together_are_still_there_and_all_others_are_groups_of_their_own() -> None:
    named = [file for files in TOGETHER.values() for file in files]
    assert [file for file in named if not (RUNNING_TESTS / file).is_file()] == []
    assert {group(f"tests/{file}::test_it[a::b]") for file in named} == set(TOGETHER)
    assert group("tests/api/test_values.py::Test::test_it") == "api/test_values.py"


# What `make quick` runs: the tests nearest to a change, without servers, within its time.


def source(path: str, *imports: str, servers: bool = False) -> Source:
    module = path.partition("/")[2].removesuffix(".py").replace("/", ".")
    return Source(path, module, frozenset(imports), servers)


SOURCES = [
    source("operator/compaction/fence.py"),
    source("operator/compaction/commit.py", "compaction.fence"),
    source("operator/compaction/job.py", "compaction.commit"),
    source("tests/conftest.py"),
    source("tests/a/test_fence.py", "compaction.fence"),
    source("tests/a/test_job.py", "compaction.job"),
    source("tests/b/conftest.py"),
    source("tests/b/test_cluster.py", "compaction.fence", servers=True),
    source("tests/b/test_other.py"),
    source("tests/node/test_node.py", "compaction.fence"),
]
FENCE = {"operator/compaction/fence.py"}


def test_the_nearest_tests_are_taken_and_none_that_starts_servers() -> None:
    found = select(SOURCES, FENCE, {})
    assert found.chosen == ("tests/a/test_fence.py", "tests/a/test_job.py")
    assert found.left == 1
    assert distances(SOURCES, FENCE)["tests/a/test_job.py"] == 3


def test_what_does_not_fit_into_the_time_is_left() -> None:
    found = select(SOURCES, FENCE, {"a/test_job.py": 119.5, "a/test_fence.py": 1.0})
    assert found.chosen == ("tests/a/test_fence.py",)


def test_a_changed_test_is_always_run_and_a_conftest_changes_what_is_below_it() -> None:
    costly = {"b/test_cluster.py": 500.0}
    assert select(SOURCES, {"tests/b/test_cluster.py"}, costly).chosen == ("tests/b/test_cluster.py",)
    assert select(SOURCES, {"tests/b/conftest.py"}, {}).chosen == ("tests/b/test_other.py",)
    assert select(SOURCES, {"README.md"}, {}).chosen == ()


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("import compaction.api\ndef test_it(): pass\n", False),
        ("def test_it(control_plane): pass\n", True),
        ("import pytest\npytestmark = pytest.mark.spark\n", True),
    ],
)
def test_a_file_says_whether_its_tests_start_servers(tmp_path: Path, text: str, servers: bool) -> None:
    path = tmp_path / "tests" / "a" / "test_it.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = read_source(path, tmp_path)
    assert (found.module, found.servers, found.is_test) == ("a.test_it", servers, True)


def test_changes_are_those_since_the_last_commit_or_in_it(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    git("init", "-q")
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        git("add", name)
        git("commit", "-q", "-m", name)
    assert changed_files(tmp_path) == {"two"}
    (tmp_path / "one").write_text("changed")
    (tmp_path / "three").write_text("new")
    assert changed_files(tmp_path) == {"one", "three"}
