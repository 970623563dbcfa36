"""The run of the tests itself: how files are shared out between workers, and what the summary says of their cost."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

from support.parallel import COMPUTING, TESTS, TOGETHER, WAITING, compile_ahead, compiled, group, in_turns, next_of
from support.timing import Cost, Timing, program, report_lines, shared_lines, sum_by


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
    assert [folder for folder in (*WAITING, *COMPUTING) if not (TESTS / folder).is_dir()] == []


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
    assert [file for file in named if not (TESTS / file).is_file()] == []
    assert {group(f"tests/{file}::test_it[a::b]") for file in named} == set(TOGETHER)
    assert group("tests/api/test_text.py::Test::test_it") == "api/test_text.py"
