"""Programs of the tests on a fresh machine: built beside the tests that need none of them, once, and never in vain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.local.errors import BinaryError
from support import programs
from support.clocks import eventually
from support.parallel import TESTS, next_of
from support.programs import ENDED, PROGRAMS, Builder, Outcomes, Program, build_all, later, needs

GO = f"""#!{sys.executable} -I
import pathlib, sys, time
command, arguments = sys.argv[1], sys.argv[2:]
if command == "env":
    print("go1.99.0")
elif command == "list":
    print("a")
elif command == "build":
    place = pathlib.Path(__file__).parent
    name = arguments[-1].rpartition("/")[2]
    (place / f"{{name}}.begun").touch()
    while not (place / "go-on").exists():
        time.sleep(0.05)
    if name == "promtool":
        sys.exit("no compiler today")
    made = pathlib.Path(arguments[arguments.index("-o") + 1]) / name
    made.write_text("")
    made.chmod(0o755)
"""
"""A Go that builds when it is told to, and promtool never."""
PROJECT = {
    "pytest.ini": "[pytest]\nmarkers = programs(name): needs programs\n",
    "conftest.py": """
from pathlib import Path
pytest_plugins = ("support.programs", "support.parallel")
def pytest_configure(config):
    import support.parallel
    support.parallel.TESTS = Path(__file__).parent
""",
    "test_a.py": "def test_with_a_fixture(versitygw_program):\n    assert versitygw_program.name == 'versitygw'\n",
    "test_b.py": "import pytest\n@pytest.mark.programs('promtool')\ndef test_marked():\n    pass\n",
    "test_c.py": "from pathlib import Path\ndef test_without():\n    Path('go-on').touch()\n",
}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Go and no programs."""
    go = tmp_path / "go"
    go.write_text(GO)
    go.chmod(0o755)
    for name, value in {"PATH": tmp_path, "COMPACTION_CACHE": tmp_path / "cache", "TMPDIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


def run_project(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name, text in PROJECT.items():
        (place / name).write_text(text)
    command = [sys.executable, "-m", "pytest", *arguments]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


def test_what_would_wait_for_a_program_is_handed_out_last() -> None:
    needed = {"kube/a.py": {"versitygw"}, "crash/b.py": {"versitygw"}, "e2e/e.py": {"promtool", "versitygw"}}
    assert set(later(needed, {"promtool"})) == {"e2e/e.py"}
    assert later(needed, set()) == {}
    waiting, served = ["kube/a.py", "crash/b.py", "api/c.py", "kube/d.py"], {"kube/a.py", "kube/d.py", "e2e/e.py"}
    missing = later(needed, {"versitygw"})
    assert next_of(waiting, served, first_half=True, later=missing) == "kube/d.py"
    assert next_of(waiting, served, first_half=False, later=missing) == "api/c.py"
    assert next_of(waiting[:3], served, first_half=True, later=missing) == "api/c.py"
    assert next_of(waiting[:2], served, first_half=True, later=missing) == "kube/a.py"
    assert next_of(waiting[:2], served, first_half=False, later=missing) == "crash/b.py"


def test_of_those_that_wait_come_first_whose_programs_are_built_first() -> None:
    needed = {"e2e/a.py": {"promtool", "versitygw"}, "crash/b.py": {"versitygw"}, "kube/c.py": {"prometheus-operator"}}
    missing, waiting = later(needed, set(PROGRAMS)), list(needed)
    taken: list[str] = []
    while left := [item for item in waiting if item not in taken]:
        taken.append(next_of(left, {"e2e/a.py"}, first_half=True, later=missing))
    assert taken == ["kube/c.py", "crash/b.py", "e2e/a.py"]


def test_others_run_while_it_compiles_and_a_build_that_fails_is_the_reason_of_its_tests(fresh: Path) -> None:
    """One worker: were the file that needs a program the first, as by name, both would wait for each other."""
    answer = run_project(fresh, "-n", "1", "--dist", "loadscope", "--no-loadscope-reorder")
    assert "2 passed, 1 error in" in answer.stdout, answer.stdout + answer.stderr
    assert "ERROR at setup of test_marked" in answer.stdout
    assert "promtool cannot be built: compiling promtool failed:\nno compiler today\n" in answer.stdout
    assert "building versitygw, promtool beside the tests" in answer.stderr


def test_in_one_process_a_program_is_built_for_the_first_test_that_needs_it(fresh: Path) -> None:
    (fresh / "go-on").touch()
    answer = run_project(fresh, "test_a.py", "test_b.py")
    assert "1 passed, 1 error in" in answer.stdout, answer.stdout + answer.stderr
    assert "promtool cannot be built: compiling promtool failed:\nno compiler today\n" in answer.stdout
    assert "\ntest_a.py::test_with_a_fixture: compiling versitygw: 1 packages" in answer.stderr
    assert not list(fresh.glob("compaction-programs-*"))


def test_a_builder_ends_with_the_run_and_no_test_goes_on_in_its_place(fresh: Path) -> None:
    outcomes = Outcomes(fresh)
    builder = Builder.start(outcomes, {"promtool", "versitygw"})
    try:
        assert builder.names == ("versitygw", "promtool")
        eventually((fresh / "versitygw.begun").exists, "Go to compile")
    finally:
        builder.stop()
    assert builder.process.poll() is not None
    assert list((fresh / "cache" / "control-plane").iterdir()) == []
    for name in builder.names:
        assert outcomes.provide(name, print) == f"{name} cannot be built: {ENDED}"


def test_a_builder_that_is_killed_leaves_its_work_to_the_first_test_that_needs_it(fresh: Path) -> None:
    outcomes = Outcomes(fresh)
    builder = Builder.start(outcomes, {"versitygw"})
    eventually((fresh / "versitygw.begun").exists, "Go to compile")
    os.killpg(builder.process.pid, signal.SIGKILL)
    builder.process.wait()
    (fresh / "go-on").touch()
    assert outcomes.provide("versitygw", print) == ""
    assert PROGRAMS["versitygw"].find() is not None


def test_what_is_here_is_taken_and_what_cannot_be_built_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def refuse(report: Callable[[str], None]) -> Path:
        tried.append("versitygw")
        raise BinaryError("no module proxy answers")

    there = Program(lambda: tmp_path, refuse)
    monkeypatch.setattr(programs, "PROGRAMS", {"promtool": there, "versitygw": Program(lambda: None, refuse)})
    outcomes = Outcomes(tmp_path)
    assert outcomes.missing(["promtool", "versitygw"]) == {"versitygw"}
    assert outcomes.provide("promtool", print) == ""
    said: list[str] = []
    build_all(outcomes, ["versitygw"], ready=lambda: None, report=said.append)
    reason = "versitygw cannot be built: no module proxy answers"
    assert said == [f"versitygw: {reason}"]
    assert outcomes.provide("versitygw", print) == reason
    assert tried == ["versitygw"]
    assert outcomes.missing(["promtool", "versitygw"]) == set()


def test_a_test_waits_before_its_time_limit_begins(pytestconfig: pytest.Config) -> None:
    order = [hookimpl.plugin_name for hookimpl in pytestconfig.hook.pytest_runtest_protocol.get_hookimpls()]
    assert order.index("timeout") < order.index("support.programs"), "the last one is called first"


def test_a_test_says_what_it_needs_by_a_marker_or_a_fixture(request: pytest.FixtureRequest) -> None:
    """The rules of the house need nothing, so this one says so when it is too late to be given it."""
    item = request.node
    assert programs.needs_of(item) == set()
    item.add_marker(needs("versitygw"))
    assert programs.needs_of(item) == {"versitygw"}
    item.fixturenames.append("promtool_program")
    assert programs.needs_of(item) == {"versitygw", "promtool"}
