"""Schedules of an owner, a compactor and power failures; and defects, each of which they find (docs/simulation.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.exceptions import SegmentLogError
from simulation.logs.defects import DEFECTS, FOUND_BY, applied
from simulation.logs.life import Schedule
from support.depth import at_depth

FOUND_IN = 400
"""Schedules within which every defect is found; the search begins with the seeds that found it before."""


def run(seed: int, root: Path) -> list[str]:
    root.mkdir()
    schedule = Schedule(seed, root, [])
    try:
        schedule.run()
    except BaseException as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(schedule.trace[-60:]))
        raise
    return schedule.trace


def test_nothing_is_lost(tmp_path: Path) -> None:
    for seed in range(at_depth(short=25, deep=3000)):
        run(seed, tmp_path / str(seed))


def test_the_same_seed_gives_the_same_schedule(tmp_path: Path) -> None:
    assert run(7, tmp_path / "one") == run(7, tmp_path / "two")
    assert run(7, tmp_path / "again") != run(8, tmp_path / "other")


@pytest.mark.parametrize("what", DEFECTS)
def test_every_defect_is_found(what: str, tmp_path: Path) -> None:
    with applied(what):
        for number, seed in enumerate((FOUND_BY.get(what, 0), *range(FOUND_IN))):
            try:
                run(seed, tmp_path / str(number))
            except (AssertionError, SegmentLogError, OSError):
                return
    pytest.fail(f"none of {FOUND_IN} schedules sees it")
