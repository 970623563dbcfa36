"""What a run of the tests costs: wall and CPU minutes in all and by folder, the slowest tests, what fixtures cost that
several tests share, and which programs were started; printed at its end.

A test's CPU is that of its process and of the children it waited for, without what making and ending fixtures takes
that outlive a test: those have a table of their own, where servers count when they end. What is neither CPU nor other
work of the machine is waiting: look there first.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import pytest

from support.budget import ALLOWED, MINUTES, Costs, costs_of, read_budget

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
