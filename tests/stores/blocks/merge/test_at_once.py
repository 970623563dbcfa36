"""What is open at once: as much as is granted memory, and no run before all that comes before it was emitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.merge.budget import most_at_once, open_at_once
from compaction.blocks.merge.columns import Columns, MemoLimits, Rows
from compaction.blocks.merge.rounds import MergeRounds
from compaction.blocks.merge.runs import Run

SCHEMA = pa.schema([("key", pa.int64()), ("name", pa.string())])


@dataclass
class Counted:
    """A run of these keys; `open` holds the runs that are being read, `most_open` how many there were at most."""

    keys: list[int | None]
    bounds: tuple[int | None, int | None]
    open: list[Counted]
    most_open: list[int]
    weight: int = 1
    name: str = "block"
    cost: int = 0
    whole_cost: int = 0
    size: int = 0
    merged: int = 0
    group_rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.group_rows = len(self.keys)

    @property
    def least(self) -> int | None:
        return self.bounds[0]

    @property
    def most(self) -> int | None:
        return self.bounds[1]

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        self.open.append(self)
        self.most_open.append(len(self.open))
        step = max(1, len(self.keys)) if whole else rows
        for start in range(0, len(self.keys), step):
            part = self.keys[start : start + step]
            yield Rows((pa.array(part, pa.int64()), pa.array([f"{key}" for key in part])), len(part))
        self.open.remove(self)


@st.composite
def runs(draw: st.DrawFn) -> list[Counted]:
    """Sorted runs whose bounds are exact, wider, or not known."""
    being_read: list[Counted] = []
    most: list[int] = []
    made = []
    for _ in range(draw(st.integers(1, 7))):
        begin = draw(st.integers(0, 60))
        keys: list[int | None] = sorted(draw(st.lists(st.integers(begin, begin + 12), min_size=1, max_size=20)))
        nulls = draw(st.integers(0, 1))
        least = draw(st.sampled_from([keys[0], keys[0], begin, None]))
        upper = None if nulls or least is None else draw(st.sampled_from([keys[-1], begin + 12, None]))
        made.append(Counted(keys + [None] * nulls, (least, upper), being_read, most, draw(st.integers(0, 5))))
    return made


def at_point(found: list[Counted], point: int) -> int:
    """By definition: the weight of all that may have rows there, or whose place is not known."""
    return sum(
        run.weight
        for run in found
        if run.least is None or (run.least <= point and (run.most is None or point <= run.most))
    )


@given(runs())
def test_the_most_is_that_of_the_worst_point(found: list[Counted]) -> None:
    assert most_at_once(as_runs(found), weight_of) == max(at_point(found, point) for point in range(-1, 75))


@given(runs(), st.integers(1, 25), st.booleans())
def test_no_more_are_open_than_may_be_and_rows_come_in_order(found: list[Counted], window: int, whole: bool) -> None:
    merged = _rounds(found, batch=window, round_rows=window, whole=whole)
    keys = [key for emitted in merged for key in emitted.rows.columns[0].to_pylist()]
    expected = sorted((key for run in found for key in run.keys), key=lambda key: (key is None, key or 0))
    assert keys == expected
    assert max(found[0].most_open) <= open_at_once(as_runs(found))


def test_files_in_a_row_are_open_one_at_a_time() -> None:
    being_read: list[Counted] = []
    most: list[int] = []
    found = [Counted([n, n + 8], (n, n + 8), being_read, most) for n in range(0, 90, 9)]
    rounds = _rounds(found, batch=50)
    assert sum(emitted.rows.count for emitted in rounds) == 20
    assert most == [1] * 10


@pytest.mark.parametrize("large", [0, 25, 50])
def test_a_large_run_among_small_ones_does_not_make_small_rounds(large: int) -> None:
    """With windows of one size each round would emit two rows of each small run for the hundred of the large one."""
    sizes = [1000] * 51
    sizes[large] = 50_000
    found = [Counted([row * 50_000 // size for row in range(size)], (None, None), [], []) for size in sizes]
    batch = 100
    counts = [emitted.rows.count for emitted in _rounds(found, batch=batch)]
    assert sum(counts) == sum(sizes)
    assert len(counts) < 2 * sum(sizes) / (batch * len(sizes)) + 8


def test_a_run_that_gives_nothing_for_long_and_then_all() -> None:
    """Its window grows again in a few rounds."""
    steady = [Counted(list(range(0, 100_000, 10)), (None, None), [], []) for _ in range(5)]
    burst = Counted([0, *range(90_000, 100_000)], (None, None), [], [])
    counts = [emitted.rows.count for emitted in _rounds([*steady, burst], batch=100)]
    assert sum(counts) == 5 * 10_000 + 10_001
    assert len(counts) < 2 * sum(counts) / 600 + 30


def _rounds(found: list[Counted], *, batch: int, round_rows: int = 1 << 20, whole: bool = False) -> MergeRounds:
    columns = Columns.of(SCHEMA, ["key"], coded=[], most=MemoLimits(0, 0))
    return MergeRounds(
        columns,
        as_runs(found),
        batch=batch,
        ahead=batch * len(found),
        ahead_bytes=1 << 20,
        round_bytes=1 << 20,
        round_rows=round_rows,
        whole=whole,
    )


def as_runs(found: list[Counted]) -> list[Run]:
    return list(found)


def weight_of(run: Run) -> int:
    assert isinstance(run, Counted)
    return run.weight
