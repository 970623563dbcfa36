"""Schedules of an owner, a compactor and power failures; and defects, each of which they find (docs/simulation.md)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.segments.errors import SegmentLogError
from simulation.logs.defects import DEFECTS, FOUND_BY, applied
from simulation.logs.life import Schedule
from support.timing import at_depth

FOUND_IN = 400
"""Schedules within which every defect is found; the search begins with the seeds that found it before."""


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where possible: what is synced does not wait, and numbers of inodes are not used again."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="compaction-simulation-", dir=base) as directory:
        yield Path(directory)


def run(seed: int, root: Path) -> list[str]:
    root.mkdir()
    schedule = Schedule(seed, root, [])
    try:
        schedule.run()
    except BaseException as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(schedule.trace[-60:]))
        raise
    return schedule.trace


def test_nothing_is_lost(root: Path) -> None:
    for seed in range(at_depth(short=12, deep=3000)):
        run(seed, root / str(seed))


def test_the_same_seed_gives_the_same_schedule(root: Path) -> None:
    assert run(7, root / "one") == run(7, root / "two")
    assert run(7, root / "again") != run(8, root / "other")


@pytest.mark.parametrize("what", DEFECTS)
def test_every_defect_is_found(what: str, root: Path) -> None:
    with applied(what):
        for number, seed in enumerate((FOUND_BY.get(what, 0), *range(FOUND_IN))):
            try:
                run(seed, root / str(number))
            except (AssertionError, SegmentLogError, OSError):
                return
    pytest.fail(f"none of {FOUND_IN} schedules sees it")
