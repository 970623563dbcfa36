"""Measures ours beside a rival, round by round in turn, on a machine that other work shares.

What is reported, and why:

* The *ratio* of each round, because both sides of a round met the same neighbours; the median over the rounds.
* CPU seconds (user + system, children that were waited for included) beside wall seconds: a busy neighbour stretches
  the latter only.
* A curve over sizes with its fitted exponent, where the question is whether cost grows like the work.

A benchmark is a module `tests/bench/<name>.py` with `measure(workspace)`, a generator: what it yields is measured in
that order, and what stands between two yields is preparation, which nobody measures.
"""

from __future__ import annotations

import math
import os
import pickle
import resource
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from compaction.local.cluster.control_plane import RunningControlPlane

T = TypeVar("T")


class Size(StrEnum):
    """FULL is what figures are taken at; TINY only shows that the benchmark still runs."""

    FULL = "full"
    TINY = "tiny"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a benchmark works: an empty directory of its own, and a control plane started when first asked for. `sizes`
    and `only` were asked for by whoever runs it: figures whose titles hold one of these texts.
    """

    directory: Path
    size: Size
    control_plane: Callable[[], RunningControlPlane]
    sizes: tuple[int, ...] = ()
    only: tuple[str, ...] = ()

    def wants(self, title: str) -> bool:
        """Whether this figure is asked for; all are, unless some are named."""
        return not self.only or any(text in title for text in self.only)

    def pick(self, full: Any, tiny: Any) -> Any:
        """The value for this size."""
        return full if self.size is Size.FULL else tiny


def nothing() -> None:
    """The preparation of a side that needs none."""


@dataclass(frozen=True, slots=True)
class Side:
    """One competitor. `prepare` runs before each measured `run`; its time does not count."""

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing


@dataclass(frozen=True, slots=True)
class Target:
    """A promise in words, and whether a result keeps it."""

    text: str
    met: Callable[[RaceResult], bool]


def least_ratio(times: float) -> Target:
    """So many times as fast as the rival (wall)."""
    return Target(f">= {times:g}x", lambda result: result.ratio >= times)


def most_seconds(seconds: float) -> Target:
    """So many seconds at most (wall)."""
    return Target(f"<= {seconds:g} s", lambda result: result.ours.wall <= seconds)


@dataclass(frozen=True, slots=True)
class Race:
    """Ours against a rival on the same `work` (in `unit`s). `isolated`: each run in a forked process, which gives its
    peak memory; else in this one, which may keep what `prepare` made.
    """

    title: str
    unit: str
    work: float
    ours: Side
    rival: Side
    target: Target | None = None
    rounds: int = 5
    isolated: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost over sizes. `ours(n)` and `rival(n)` prepare size n and return what is measured.

    `most_exponent`: the promise; a rival that is too slow has fewer sizes.
    """

    title: str
    unit: str
    sizes: Sequence[int]
    ours: Callable[[int], Callable[[], object]]
    rival_name: str
    rival: Callable[[int], Callable[[], object]]
    rival_sizes: Sequence[int]
    most_exponent: float
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure that the benchmark took itself (a count, a size), with the promise about it."""

    title: str
    value: str
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: seconds, and the peak memory in bytes when it had a process of its own."""

    wall: float
    cpu: float
    peak: int = 0


@dataclass(frozen=True, slots=True)
class RaceResult:
    """All rounds of a race; the properties are medians."""

    race: Race
    rounds: tuple[tuple[Sample, Sample], ...]

    @property
    def ours(self) -> Sample:
        """Medians of ours."""
        return _median([ours for ours, _ in self.rounds])

    @property
    def rival(self) -> Sample:
        """Medians of the rival."""
        return _median([rival for _, rival in self.rounds])

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios of wall time: how many times as fast ours is."""
        return statistics.median(_ratio(rival.wall, ours.wall) for ours, rival in self.rounds)

    @property
    def cpu_ratio(self) -> float:
        """The same of CPU seconds."""
        return statistics.median(_ratio(rival.cpu, ours.cpu) for ours, rival in self.rounds)

    def rate(self, sample: Sample) -> float:
        """Units per second."""
        return self.race.work / max(sample.wall, 1e-9)


@dataclass(frozen=True, slots=True)
class CurveResult:
    """CPU seconds by size (the best of the rounds), and the exponents that fit them."""

    curve: Curve
    ours: dict[int, float]
    rival: dict[int, float]

    @property
    def exponent(self) -> float:
        """Of ours: 1 = cost grows like the size, 2 = like its square."""
        return fitted_exponent(self.ours)

    @property
    def rival_exponent(self) -> float:
        """Of the rival."""
        return fitted_exponent(self.rival)


Result = RaceResult | CurveResult | Fact


class BenchmarkModule(Protocol):
    """What a benchmark module offers."""

    def measure(self, workspace: Workspace) -> Iterator[Race | Curve | Fact]: ...


def run_benchmark(module: BenchmarkModule, workspace: Workspace, say: Callable[[str], None]) -> list[Result]:
    """Measure everything a module yields; `say` gets each line as soon as it is known."""
    results: list[Result] = []
    for item in module.measure(workspace):
        match item:
            case Race():
                result: Result = run_race(item, rounds=workspace.pick(item.rounds, 1), say=say)
            case Curve():
                result = run_curve(item, rounds=workspace.pick(item.rounds, 1), say=say)
            case Fact():
                result = item
                say(f"  {item.title}: {item.value}{_promise(item.target, item.met)}")
        results.append(result)
    return results


def run_race(race: Race, *, rounds: int, say: Callable[[str], None]) -> RaceResult:
    """All rounds; who begins changes with each."""
    say(f"  {race.title}: {race.ours.name} against {race.rival.name}")
    samples: list[tuple[Sample, Sample]] = []
    for number in range(rounds):
        order = (race.ours, race.rival) if number % 2 == 0 else (race.rival, race.ours)
        taken = {side.name: _sample(side, isolated=race.isolated) for side in order}
        ours, rival = taken[race.ours.name], taken[race.rival.name]
        samples.append((ours, rival))
        ratios = f"{_ratio(rival.wall, ours.wall):.2f}x wall, {_ratio(rival.cpu, ours.cpu):.2f}x CPU"
        say(f"    round {number + 1}: ours {_seconds(ours)}, rival {_seconds(rival)}: {ratios}")
    result = RaceResult(race, tuple(samples))
    target = race.target
    promise = _promise(target.text, target.met(result)) if target is not None else ""
    say(f"    median: {_rates(result)}: {result.ratio:.2f}x wall, {result.cpu_ratio:.2f}x CPU{promise}")
    return result


def run_curve(curve: Curve, *, rounds: int, say: Callable[[str], None]) -> CurveResult:
    """Every size of both sides, small to large, the sides in turn."""
    say(f"  {curve.title}: ours against {curve.rival_name}, CPU seconds by size")
    ours: dict[int, float] = {}
    rival: dict[int, float] = {}
    for size in sorted({*curve.sizes, *curve.rival_sizes}):
        for _ in range(rounds):
            for sizes, side, best in ((curve.sizes, curve.ours, ours), (curve.rival_sizes, curve.rival, rival)):
                if size in sizes:
                    taken = _sample(Side("", side(size)), isolated=False).cpu
                    best[size] = min(taken, best.get(size, taken))
        mine = f"{ours[size]:.3f} s ({size / max(ours[size], 1e-9):,.0f} {curve.unit}/s)" if size in ours else "-"
        theirs = f"{rival[size]:.3f} s" if size in rival else "-"
        say(f"    {size:>9,} {curve.unit}: ours {mine}, rival {theirs}")
    result = CurveResult(curve, ours, rival)
    promise = _promise(f"<= {curve.most_exponent:g}", result.exponent <= curve.most_exponent)
    say(f"    exponent: ours {result.exponent:.2f}, rival {result.rival_exponent:.2f}{promise}")
    return result


def fitted_exponent(seconds: dict[int, float]) -> float:
    """The k of size**k that fits best (least squares of the logarithms); 0 with fewer than two sizes."""
    points = [(math.log(size), math.log(max(taken, 1e-6))) for size, taken in seconds.items()]
    if len(points) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _sample(side: Side, *, isolated: bool) -> Sample:
    side.prepare()
    return in_child(side.run) if isolated else sample(side.run)


def sample(run: Callable[[], object]) -> Sample:
    """One run in this process."""
    used, began = _cpu_seconds(), time.perf_counter()
    run()
    wall = time.perf_counter() - began
    return Sample(wall, _cpu_seconds() - used)


def _cpu_seconds() -> float:
    """User and system time of this process and the children it has waited for, to the microsecond."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def in_child(run: Callable[[], object]) -> Sample:
    """In a forked process, so that its memory and CPU time are its own. A failure there is an error here."""
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    if status:
        raise RuntimeError(f"a measured run ended with status {status}; its error is above")
    return Sample(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def answer_of_child(run: Callable[[], T]) -> tuple[Sample, T]:
    """As `in_child`, and what the run returned, which can be pickled."""
    with tempfile.TemporaryFile() as answer:

        def answered() -> None:
            pickle.dump(run(), answer)
            answer.flush()

        taken = in_child(answered)
        answer.seek(0)
        found: T = pickle.load(answer)
        return taken, found


def _median(samples: Iterable[Sample]) -> Sample:
    taken = list(samples)
    return Sample(
        statistics.median(s.wall for s in taken), statistics.median(s.cpu for s in taken), max(s.peak for s in taken)
    )


def _ratio(rival: float, ours: float) -> float:
    return rival / max(ours, 1e-9)


def _seconds(sample: Sample) -> str:
    peak = f", peak {sample.peak / 2**20:.0f} MiB" if sample.peak else ""
    return f"{sample.wall:.4g} s ({sample.cpu:.4g} s CPU{peak})"


def _rates(result: RaceResult) -> str:
    unit, ours, rival = result.race.unit, result.ours, result.rival
    return f"ours {result.rate(ours):,.4g} {unit}/s, rival {result.rate(rival):,.4g} {unit}/s"


def _promise(text: str, met: bool | None) -> str:
    return f" [target {text}: {'met' if met else 'NOT met'}]" if text else ""


# -- the machine, and tables ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """What has to be known to compare figures of two machines."""

    lines: tuple[str, ...] = field(default_factory=lambda: tuple(_machine()))


def _machine() -> Iterator[str]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else os.uname().machine
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"{os.cpu_count()} CPUs ({model}), {memory:.0f} GiB, Linux {os.uname().release}"
    yield f"Python {'.'.join(map(str, sys.version_info[:3]))}, load {', '.join(f'{x:.1f}' for x in os.getloadavg())}"


def table(results: Iterable[Result]) -> str:
    """The results as a table in Markdown."""
    rows = ["| work | ours | rival | ratio (wall, CPU) | target |", "|---|---|---|---|---|"]
    for result in results:
        match result:
            case RaceResult():
                rows.append(_race_row(result))
            case CurveResult():
                rows += _curve_rows(result)
            case Fact():
                rows.append(f"| {result.title} | {result.value} | | | {_cell(result.target, result.met)} |")
    return "\n".join(rows)


def _race_row(result: RaceResult) -> str:
    race, ours, rival = result.race, result.ours, result.rival
    target = _cell(race.target.text, race.target.met(result)) if race.target is not None else ""
    sides = [
        f"{side.name}: {result.rate(s):,.4g} {race.unit}/s, {_seconds(s)}"
        for side, s in ((race.ours, ours), (race.rival, rival))
    ]
    return f"| {race.title} | {sides[0]} | {sides[1]} | {result.ratio:.2f}, {result.cpu_ratio:.2f} | {target} |"


def _curve_rows(result: CurveResult) -> Iterator[str]:
    curve = result.curve
    for size in sorted({*result.ours, *result.rival}):
        mine = f"{result.ours[size]:.3f} s" if size in result.ours else ""
        theirs = f"{curve.rival_name}: {result.rival[size]:.3f} s" if size in result.rival else ""
        both = size in result.ours and size in result.rival
        ratio = f", {_ratio(result.rival[size], result.ours[size]):.2f}" if both else ""
        yield f"| {curve.title}, {size:,} {curve.unit} | {mine} | {theirs} | {ratio} | |"
    target = _cell(f"exponent <= {curve.most_exponent:g}", result.exponent <= curve.most_exponent)
    yield (
        f"| {curve.title}: fitted exponent | {result.exponent:.2f} | {curve.rival_name}: {result.rival_exponent:.2f} "
        f"| | {target} |"
    )


def _cell(text: str, met: bool | None) -> str:
    return f"{text}: {'met' if met else '**not met**'}" if text else ""
