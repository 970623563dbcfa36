"""How deep the tests go: short as in `make test`, or deep as in `make test-deep`, which a release runs.

Nothing is left out of a short run: every test is in it, every kind of crash point, every defect that the simulator
must find. It tries fewer examples of each, and the same ones in every run, so the same code gets the same verdict. A
deep run tries all, and other examples each time.

The variable of the environment is read when this module is imported, since settings of Hypothesis are made then;
whatever the tests start, workers of pytest-xdist too, inherits it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings

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
