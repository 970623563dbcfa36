"""Which runs are spilled so that all can be merged at once: no more than must be, always neighbours, always an end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.errors import MergeMemoryError
from compaction.blocks.merge import budget
from compaction.blocks.merge.budget import Budget, budget_for
from compaction.blocks.merge.footers import MIN_MEMORY, MergeInput, MergeSettings, read_footer
from compaction.blocks.merge.runs import Run
from support.stores import block_shapes
from support.stores.block_shapes import KEY, Arrangement

MEBIBYTE = 1 << 20
PAGES = 100
"""Everything here is in mebibytes."""
ROOM = Budget(limit=3 * PAGES * MEBIBYTE, row_bytes=1, measured=True)


@dataclass
class Planned:
    """A run of which only its figures are there; `holds`: numbers of the inputs that are in it."""

    cost: int
    size: int
    holds: tuple[int, ...]
    merged: int = 0
    name: str = "block"
    least: int | None = None
    most: int | None = None
    group_rows: int = 0
    whole_cost: int = 0

    def batches(self, rows: int, *, whole: bool = False) -> None:
        raise AssertionError("nothing is read to plan")


def inputs(*sizes: int) -> list[Run]:
    return [Planned(size * MEBIBYTE, size, (number,)) for number, size in enumerate(sizes)]  # type: ignore[list-item,misc]


def spilled(runs: list[Run]) -> Planned:
    parts = [run for run in runs if isinstance(run, Planned)]
    holds = tuple(number for run in parts for number in run.holds)
    return Planned(ROOM.spilled, sum(run.size for run in parts), holds, 1 + max(run.merged for run in parts))


def test_what_fits_is_merged_as_it_is() -> None:
    assert ROOM.to_spill(inputs(50, 25, 25)) is None
    assert ROOM.to_spill([]) is None


def test_what_does_not_overlap_is_never_spilled() -> None:
    runs = [Planned(60 * MEBIBYTE, 60, (n,), least=10 * n, most=10 * n + 9) for n in range(1000)]
    with mock.patch.object(budget.Budget, "most_runs", 2):
        assert ROOM.to_spill(runs) is None  # type: ignore[arg-type]
        assert ROOM.to_spill([*runs, Planned(60, 60, (1000,), least=5, most=9)]) is None  # type: ignore[list-item]
        assert ROOM.to_spill([*runs, Planned(60 * MEBIBYTE, 60, (1000,), least=5, most=9)]) is not None  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ((60, 30, 30), slice(1, 2)),
        ((30, 30, 60), slice(0, 1)),
        ((40, 40, 40, 40), slice(0, 2)),
        ((90, 10, 10, 10), slice(1, 4)),
        ((100, 100), slice(0, 1)),
    ],
)
def test_the_fewest_bytes_are_spilled(sizes: tuple[int, ...], chosen: slice) -> None:
    assert ROOM.to_spill(inputs(*sizes)) == chosen


def test_a_run_that_is_too_large_is_named() -> None:
    with pytest.raises(MergeMemoryError, match="block"):
        ROOM.to_spill(inputs(10, PAGES + 1))


@given(st.lists(st.integers(0, PAGES), max_size=40), st.integers(2, 6))
def test_it_ends_with_neighbours_in_their_order_and_never_merges_more_than_fits(sizes: list[int], most: int) -> None:
    runs = inputs(*sizes)
    with mock.patch.object(budget.Budget, "most_runs", most):
        for _ in range(2 * len(sizes) + 1):
            if (window := ROOM.to_spill(runs)) is None:
                break
            assert len(runs[window]) <= most
            assert sum(run.cost for run in runs[window]) <= PAGES * MEBIBYTE
            runs[window] = [spilled(runs[window])]  # type: ignore[list-item]
        else:
            raise AssertionError("it does not end")
    assert [number for run in runs for number in run.holds] == list(range(len(sizes)))  # type: ignore[attr-defined]
    assert sum(run.cost for run in runs) <= PAGES * MEBIBYTE
    assert len(runs) <= most
    assert max((run.merged for run in runs), default=0) <= 1 + len(sizes).bit_length()


@given(st.integers(32 * MEBIBYTE, 8192 * MEBIBYTE), st.integers(0, 5000))
def test_few_spilled_runs_are_read_in_large_batches_and_many_fit_together(limit: int, spills: int) -> None:
    room = Budget(limit=limit, row_bytes=1, measured=True, spills=spills)
    at_once = min(max(1, spills), room.most_runs)
    assert room.spilled * at_once <= room.pages or room.spilled == 64 << 10
    assert room.spilled >= Budget(limit=limit, row_bytes=1, measured=True).spilled
    assert spills > 8 or room.spilled >= min(8 * MEBIBYTE, room.pages // 16)


@given(st.integers(32 * MEBIBYTE, 8192 * MEBIBYTE), st.integers(1, 5000), st.integers(0, 5000))
def test_a_spilled_batch_has_many_rows_however_wide_they_are(limit: int, row_bytes: int, spills: int) -> None:
    room = Budget(limit=limit, row_bytes=row_bytes, measured=True, spills=spills)
    assert room.spilled // row_bytes >= 512
    assert room.spilled * min(max(1, spills), room.most_runs) <= room.pages


@pytest.mark.parametrize("arrangement", [Arrangement.OVERLAPPING, Arrangement.UNSORTED])
def test_only_unsorted_files_make_more_runs_with_their_rows(arrangement: Arrangement, tmp_path: Path) -> None:
    """A sorted file is one run however many rows it has: spilled batches do not become smaller with the size."""
    block_shapes.generate(tmp_path / "in", "numbers", arrangement, files=3, megabytes=16)
    blocks = [MergeInput(name=str(path), open=lambda path=path: str(path)) for path in (tmp_path / "in").iterdir()]  # type: ignore[misc]
    footers = [read_footer(block, KEY) for block in blocks]
    found = budget_for(MergeSettings(sort_key=KEY, memory_bytes=MIN_MEMORY), footers[0].schema, [], footers)
    rows = sum(footer.rows for footer in footers)
    more = rows * found.row_bytes // found.round if arrangement is Arrangement.UNSORTED else 0
    assert found.spills == len(footers) + more
    assert rows * found.row_bytes // found.round > 4


@pytest.mark.parametrize(("limit", "fits"), [(64 * MEBIBYTE, False), (80 * MEBIBYTE, True), (1024 * MEBIBYTE, True)])
def test_footers_of_many_columns_leave_less_for_the_rest(limit: int, fits: bool, tmp_path: Path) -> None:
    columns, rows = 1000, 20_000
    table = pa.table({f"c{place}": pa.nulls(rows, pa.int64()) for place in range(columns)})
    pq.write_table(table, tmp_path / "wide.parquet", row_group_size=rows // 10)
    footers = [read_footer(MergeInput(name="wide", open=lambda: str(tmp_path / "wide.parquet")), ("c0",))]
    settings = MergeSettings(sort_key=("c0",), memory_bytes=limit)
    if not fits:
        with pytest.raises(MergeMemoryError, match=r"^wide: takes \d+ bytes of memory for footers, "):
            budget_for(settings, table.schema, [], footers)
        return
    found = budget_for(settings, table.schema, [], footers)
    groups = 10 + rows * found.row_bytes // found.pending
    assert found.footers == groups * columns << 10
    held = found.buffers + found.round + found.pending + found.memos
    assert found.pages + held + max(found.footers, limit // 6) <= limit
    assert (found.buffers < limit // 8) == (found.footers > limit // 6) == (limit < 1024 * MEBIBYTE)
