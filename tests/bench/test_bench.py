"""Every benchmark runs at a tiny size, so that none can rot; and the harness counts, fits and writes what it should."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import PAGE, benchmark_names, with_table
from bench.harness import (
    CurveResult,
    Fact,
    Machine,
    Race,
    RaceResult,
    Sample,
    Side,
    Size,
    Workspace,
    fitted_exponent,
    least_ratio,
    run_benchmark,
    run_race,
    table,
)
from support.timing import at_depth

ENVIRONMENT = os.environ | {"PYTHONPATH": str(PAGE.parents[1] / "tests")}
FORKING = ("staging_reads", "staging_scale", "staging_trees")
"""They measure in forks. Libraries that other tests have started threads of do not survive one."""
QUICK = {"block_reading", "catalog_log", "planning", "segments", "sensor"}
"""A second together, a race, a curve and facts among them. A deep run has all benchmarks; what they call is checked
with the types of all else.
"""

ONE_AFTER_ANOTHER = """
import os, sys
from bench import __main__, staging_reads, staging_scale, staging_trees
for name in sys.argv[2:]:
    child = os.fork()
    if not child:
        code = __main__.main(["--size", sys.argv[1], name])
        sys.stdout.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(code)
"""


def test_benchmarks_that_fork_still_run() -> None:
    """Each in a fork of one process, which has loaded what they need."""
    names = at_depth(short=FORKING[-1:], deep=FORKING)
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, Size.TINY, *names]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=PAGE.parents[1], env=ENVIRONMENT)
    assert answer.returncode == 0, answer.stderr
    said = answer.stdout
    for name, following in itertools.pairwise([*names, None]):
        said = said.partition(f"\n{name}\n")[2]
        lines = (said if following is None else said.partition(f"\n{following}\n")[0]).splitlines()
        assert len([line for line in lines if line.startswith("  ")]) >= 5, name


@pytest.mark.parametrize("name", sorted(at_depth(short=QUICK, deep={*benchmark_names()} - {*FORKING})))
def test_benchmark_still_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    workspace = Workspace(tmp_path, Size.TINY, lambda: request.getfixturevalue("control_plane").running)
    lines: list[str] = []
    results = run_benchmark(importlib.import_module(f"bench.{name}"), workspace, lines.append)
    assert results
    for result in results:
        match result:
            case RaceResult():
                assert all(sample.wall > 0 for pair in result.rounds for sample in pair)
            case CurveResult():
                assert result.ours
                assert result.rival
            case Fact():
                assert result.value
    assert len(table(results).splitlines()) >= 2 + len(results)


def test_figures_are_taken_that_were_asked_for(tmp_path: Path) -> None:
    everything = Workspace(tmp_path, Size.TINY, lambda: None)  # type: ignore[arg-type,return-value]
    some = replace(everything, only=("nested, unsorted", "1 MB"))
    asked = [title for title in ("nested, unsorted, 50 MB", "numbers, disjoint, 1 MB", "nested") if some.wants(title)]
    assert asked == ["nested, unsorted, 50 MB", "numbers, disjoint, 1 MB"]
    assert everything.wants("nested")


def test_every_benchmark_has_its_place_on_the_page() -> None:
    page = PAGE.read_text()
    for name in benchmark_names():
        assert "| a | 1 " in with_table(page, name, Machine(("m",)), [Fact("a", "1")])


def test_sides_take_turns_in_beginning_and_are_prepared_unmeasured() -> None:
    seen: list[str] = []

    def side(name: str) -> Side:
        return Side(name, lambda: seen.append(name), prepare=lambda: seen.append(f"prepare {name}"))

    result = run_race(Race("t", "things", 10, side("a"), side("b")), rounds=2, say=lambda _: None)
    assert seen == ["prepare a", "a", "prepare b", "b", "prepare b", "b", "prepare a", "a"]
    assert len(result.rounds) == 2


def test_the_ratio_is_that_of_the_rounds_not_of_the_medians() -> None:
    """A slow machine slows both sides of a round: the ratio of medians would mix rounds."""
    rounds = ((Sample(1, 1), Sample(2, 3)), (Sample(10, 1), Sample(20, 3)), (Sample(3, 1), Sample(6, 3)))
    result = RaceResult(Race("t", "u", 6, Side("a", list), Side("b", list), target=least_ratio(2)), rounds)
    assert (result.ratio, result.cpu_ratio) == (2, 3)
    assert result.rate(result.ours) == 2
    assert result.race.target is not None
    assert result.race.target.met(result)


def test_an_isolated_run_has_its_own_peak_memory() -> None:
    def big() -> Any:
        return bytearray(80 << 20).find(b"x")

    result = run_race(Race("t", "u", 1, Side("a", list), Side("b", big), isolated=True), rounds=1, say=lambda _: None)
    ours, rival = result.rounds[0]
    assert 0 < ours.peak < rival.peak - (60 << 20)


def test_an_exponent_is_fitted() -> None:
    assert fitted_exponent({n: 3e-6 * n**2 for n in (10, 100, 1000)}) == pytest.approx(2)
    assert fitted_exponent({n: 0.5 * n for n in (10, 100, 1000)}) == pytest.approx(1)
