"""What a run of the tests costs: wall and CPU minutes in all and by folder, the slowest tests, what fixtures cost that
several tests share, and which programs were started; printed at its end.

A test's CPU is that of its process and of the children it waited for, without what making and ending fixtures takes
that outlive a test: those have a table of their own, where servers count when they end. What is neither CPU nor other
work of the machine is waiting: look there first.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import resource
import subprocess
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Any, Final, Self, TypeVar

import pytest
from hypothesis import HealthCheck, settings

# What the tests may cost, and what they did cost: `tests/budget.toml` and `tests/costs.json`.
#
# The budget gives each area of the tests CPU seconds; all of them together are those of `make test`. A run with
# `--costs` records what each area took. An area that took more than `ALLOWED` times its budget takes no further test
# until it is cheaper: `make check` says so, with what is slowest there (house/test_budget.py).

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


CPU, FIXTURES, PROGRAMS = "cpu_seconds", "fixtures", "programs"
SLOWEST = 20
FEWEST_SECONDS = 1.0
"""A fixture that costs less CPU in all is not worth a line."""
MOST_PROGRAMS = 12
_SINCE = pytest.StashKey[float]()


@dataclass(slots=True)
class Cost:
    """Seconds of wall and CPU time, and of how many tests."""

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, tests: int, wall: float, cpu: float) -> None:
        self.tests += tests
        self.wall += wall
        self.cpu += cpu


def cpu_seconds() -> float:
    """User and system time of this process and of the children it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


@dataclass(eq=False)
class Timing:
    """One in each process: workers measure and send with their reports, the process that prints adds up."""

    config: pytest.Config
    began: float = field(default_factory=time.monotonic)
    tests: defaultdict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    fixtures: defaultdict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    programs: Counter[str] = field(default_factory=Counter)
    ending: dict[Any, tuple[float, float]] = field(default_factory=dict)
    spared: float = 0.0
    """CPU seconds since the last report that were those of fixtures."""
    workers_cpu: float = 0.0

    def count_programs(self) -> None:
        """Those that are started by `subprocess`, and forks that run none, from now on.

        Not by an audit hook: Python calls one for each file that is opened and each folder that is listed, and where a
        test does nothing else, that was 3 % of its CPU seconds.
        """
        start = subprocess.Popen.__init__

        @functools.wraps(start)
        def counted(popen: Any, args: Any, *more: Any, **options: Any) -> None:
            given = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
            if given:
                named = [os.fsdecode(item) for item in given]
                self.programs[program(os.fsdecode(options.get("executable") or given[0]), named)] += 1
            start(popen, args, *more, **options)

        subprocess.Popen.__init__ = counted  # type: ignore[assignment,method-assign]
        os.register_at_fork(before=lambda: self.programs.update(["(fork)"]))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Of fixtures that outlive a test: what making and ending one costs. Of those that one asks for, too."""
        if fixturedef.scope == "function":
            return (yield)
        name, began, cpu = fixturedef.argname, time.monotonic(), cpu_seconds()
        result = yield
        self._add(name, 1, began, cpu)
        # Finalizers run last in, first out: this one before the fixture's own, and the hook below after it.
        fixturedef.addfinalizer(lambda: self.ending.__setitem__(fixturedef, (time.monotonic(), cpu_seconds())))
        return result

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        if (since := self.ending.pop(fixturedef, None)) is not None:
            self._add(fixturedef.argname, 0, *since)

    def _add(self, fixture: str, starts: int, began: float, cpu: float) -> None:
        took = cpu_seconds() - cpu
        self.fixtures[fixture].add(starts, time.monotonic() - began, took)
        self.spared += took

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[_SINCE] = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = cpu_seconds()
        report.user_properties.append((CPU, max(0.0, now - item.stash.get(_SINCE, now) - self.spared)))
        item.stash[_SINCE], self.spared = now, 0.0
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cpu = dict(report.user_properties).get(CPU, 0.0)
        assert isinstance(cpu, float)
        self.tests[report.nodeid].add(report.when == "call", report.duration, cpu)

    def pytest_sessionfinish(self) -> None:
        sent: dict[str, Any] | None = getattr(self.config, "workeroutput", None)
        if sent is not None:
            sent[CPU] = cpu_seconds()
            sent[FIXTURES] = {name: [item.tests, item.wall, item.cpu] for name, item in self.fixtures.items()}
            sent[PROGRAMS] = dict(self.programs)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        got = getattr(node, "workeroutput", None) or {}
        self.workers_cpu += got.get(CPU, 0.0)
        self.programs.update(got.get(PROGRAMS, {}))
        for name, cost in got.get(FIXTURES, {}).items():
            self.fixtures[name].add(*cost)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        wall = time.monotonic() - self.began
        # The workers are children of this process: where it waited for them, their time is in its own already.
        cpu = max(cpu_seconds(), self.workers_cpu)
        path: Path | None = self.config.getoption("--timings")
        if path is not None:
            path.write_text(json.dumps({name: [item.wall, item.cpu] for name, item in self.tests.items()}, indent=0))
        budget = read_budget()
        costs = costs_of({name: (item.wall, item.cpu) for name, item in self.tests.items()}, budget, wall=wall, cpu=cpu)
        if self.config.getoption("--costs"):
            costs.write()
        if sum(test.tests for test in self.tests.values()) > SLOWEST:
            for line in shared_lines(self.fixtures, self.programs):
                terminalreporter.write_line(line)
            for line in report_lines(self.tests.items(), wall, cpu):
                terminalreporter.write_line(line)
            for line in budget_lines(budget, costs):
                terminalreporter.write_line(line)


def report_lines(tests: Iterable[tuple[str, Cost]], wall: float, cpu: float) -> Iterable[str]:
    """The table by folder, the slowest tests, and last the totals (`wall`, `cpu`: seconds of the whole run)."""
    costs = list(tests)
    yield "====== what the tests cost: by folder, in the order of their wall time ======"
    yield f"{'tests':>6} {'wall s':>8} {'CPU s':>8}  folder"
    folders = sum_by(costs, lambda name: "/".join(name.partition("::")[0].split("/")[:-1]))
    for name, item in sorted(folders.items(), key=lambda pair: -pair[1].wall):
        yield f"{item.tests:>6} {item.wall:>8.1f} {item.cpu:>8.1f}  {name}"
    yield f"====== the {SLOWEST} slowest ======"
    for name, item in sorted(costs, key=lambda pair: -pair[1].wall)[:SLOWEST]:
        yield f"{'':>6} {item.wall:>8.1f} {item.cpu:>8.1f}  {name}"
    count = sum(item.tests for _, item in costs)
    yield f"{count} tests took {wall / 60:.1f} minutes and {cpu / 60:.1f} CPU minutes"


def budget_lines(budget: Mapping[str, float], costs: Costs) -> Iterable[str]:
    """Areas above their budget, and all of it beside the sum. A part of the tests is above nothing."""
    for area, item in sorted(costs.areas.items(), key=lambda pair: -pair[1].cpu):
        if item.cpu > ALLOWED * budget.get(area, 0.0) and area:
            yield f"above its budget: tests/{area}, {item.cpu:.0f} CPU seconds of {budget[area]:.0f}; slowest: " + (
                ", ".join(item.slowest)
            )
    yield f"budget: {costs.cpu_minutes:.1f} of {MINUTES} CPU minutes (tests/budget.toml)"


def shared_lines(fixtures: Mapping[str, Cost], programs: Counter[str]) -> Iterable[str]:
    """Fixtures that several tests share, by what making and ending them costs, and the programs started most often."""
    yield "====== what fixtures cost that several tests share ======"
    yield f"{'starts':>6} {'wall s':>8} {'CPU s':>8}  fixture"
    for name, item in sorted(fixtures.items(), key=lambda pair: -pair[1].cpu):
        if item.cpu >= FEWEST_SECONDS:
            yield f"{item.tests:>6} {item.wall:>8.1f} {item.cpu:>8.1f}  {name}"
    most = ", ".join(f"{name} {count}" for name, count in programs.most_common(MOST_PROGRAMS))
    yield f"programs that tests started, most often: {most}"


def program(executable: str, arguments: Sequence[str]) -> str:
    """What is started, as a person would call it: of Python the module or the script."""
    name = PurePath(executable or (arguments or [""])[0]).name
    if not name.startswith("python"):
        return name
    if "-m" in arguments[:-1]:
        return f"python -m {arguments[arguments.index('-m') + 1]}"
    script = next((argument for argument in arguments[1:] if argument.endswith(".py")), "")
    return f"python {PurePath(script).name}" if script else f"python {' '.join(arguments[1:2])}"


def sum_by(tests: Iterable[tuple[str, Cost]], key: Callable[[str], str]) -> dict[str, Cost]:
    """The tests' costs added up by a part of their names."""
    sums: defaultdict[str, Cost] = defaultdict(Cost)
    for name, item in tests:
        sums[key(name)].add(item.tests, item.wall, item.cpu)
    return dict(sums)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--timings", type=Path, help="write each test's wall and CPU seconds to this file, as JSON")
    parser.addoption("--costs", action="store_true", help="record in tests/costs.json what each area has cost")


def pytest_configure(config: pytest.Config) -> None:
    timing = Timing(config)
    config.pluginmanager.register(timing, "timing")
    timing.count_programs()


# How deep the tests go: short as in `make test`, or deep as in `make test-deep`, which a release runs.
#
# Nothing is left out of a short run: every test is in it, every kind of crash point, every defect that the simulator
# must find. It tries fewer examples of each, and the same ones in every run, so the same code gets the same verdict.
# A deep run tries all, and other examples each time.
#
# The variable of the environment is read when this module is imported, since settings of Hypothesis are made then;
# whatever the tests start, workers of pytest-xdist too, inherits it.

VARIABLE: Final = "COMPACTION_TEST_DEPTH"
T = TypeVar("T")


class Depth(StrEnum):
    """How much of each test is tried."""

    SHORT = "short"
    DEEP = "deep"


DEPTH: Final = Depth(os.environ.get(VARIABLE) or Depth.SHORT)
SHARE: Final = 4
"""A short run tries one of so many examples of Hypothesis."""
FEWEST: Final = 8
"""And never fewer than this, where a deep run tries more."""
SCHEDULES: Final = 2000
"""So many schedules of the simulator make a deep run."""


def at_depth(*, short: T, deep: T) -> T:
    """One of the two, by the depth of this run."""
    return deep if DEPTH is Depth.DEEP else short


def examples(deep: int) -> int:
    """How many examples Hypothesis tries of a property for which a deep run tries `deep`."""
    return at_depth(short=min(deep, max(FEWEST, deep // SHARE)), deep=deep)


def seeds(deep: int) -> range:
    """Seeds of histories that chance makes, where a deep run lives through `deep`."""
    return range(at_depth(short=-(-deep // SHARE), deep=deep))


def schedules() -> int:
    """How many schedules of the simulator run."""
    return at_depth(short=SCHEDULES // 32, deep=SCHEDULES)


def one_of_each(points: Iterable[T], kind: Callable[[T], Hashable]) -> list[T]:
    """All points in a deep run; in a short one the last of each kind, where most has happened already."""
    found = list(points)
    return at_depth(short=list({kind(point): point for point in found}.values()), deep=found)


def each_call(calls: Sequence[str]) -> list[int]:
    """Numbers of all calls in a deep run; in a short one each call after each other once."""
    return one_of_each(range(len(calls)), lambda number: tuple(calls[max(number - 1, 0) : number + 1]))


# A loaded machine must not fail a test: no example has a deadline, and slow ones are no fault.
_UNHURRIED: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile(Depth.SHORT, _UNHURRIED, max_examples=examples(100), derandomize=True)
settings.register_profile(Depth.DEEP, _UNHURRIED, max_examples=100, derandomize=False)
settings.load_profile(DEPTH)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The run says at its end how deep it went."""
    terminalreporter.write_line(f"depth: {described()}")


def described() -> str:
    """The depth of this run in a sentence."""
    if DEPTH is Depth.DEEP:
        return f"deep: all examples of Hypothesis, {schedules()} schedules of the simulator, every crash point"
    return (
        f"short: one in {SHARE} of the examples of Hypothesis, the same in each run, {schedules()} schedules of the "
        "simulator, one crash point of each kind; `make test-deep` tries all"
    )
