"""Which runs are spilled so that all can be merged at once: no more than must be, always neighbours, always an end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.blocks.errors import MergeMemoryError
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge import budget
from compaction.blocks.merge.budget import Budget, budget_for, most_at_once, open_at_once
from compaction.blocks.merge.columns import Columns, MemoLimits, Rows
from compaction.blocks.merge.footers import MEBIBYTE, MIN_MEMORY, OWN_MEMORY, MergeInput, MergeSettings, read_footer
from compaction.blocks.merge.rounds import MergeRounds
from compaction.blocks.merge.runs import Run
from support.blocks import block_shapes
from support.blocks.block_engines import KEY as RESIDENT_MEMORY_KEY
from support.blocks.block_engines import generate
from support.blocks.block_shapes import KEY, Arrangement
from support.timing import at_depth

MIB = 1 << 20
PAGES = 100
"""Everything here is in mebibytes."""
ROOM = Budget(limit=3 * PAGES * MIB, row_bytes=1, measured=True)


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

    def batches(self, rows: int, *, whole: bool = False) -> Iterator[Rows]:
        raise AssertionError("nothing is read to plan")


def inputs(*sizes: int) -> list[Run]:
    return [Planned(size * MIB, size, (number,)) for number, size in enumerate(sizes)]


def spilled(runs: list[Run]) -> Planned:
    parts = [run for run in runs if isinstance(run, Planned)]
    holds = tuple(number for run in parts for number in run.holds)
    return Planned(ROOM.spilled, sum(run.size for run in parts), holds, 1 + max(run.merged for run in parts))


def test_what_fits_is_merged_as_it_is() -> None:
    assert ROOM.to_spill(inputs(50, 25, 25)) is None
    assert ROOM.to_spill([]) is None


def test_what_does_not_overlap_is_never_spilled() -> None:
    runs = [Planned(60 * MIB, 60, (n,), least=10 * n, most=10 * n + 9) for n in range(1000)]
    with mock.patch.object(budget.Budget, "most_runs", 2):
        assert ROOM.to_spill(runs) is None
        assert ROOM.to_spill([*runs, Planned(60, 60, (1000,), least=5, most=9)]) is None
        assert ROOM.to_spill([*runs, Planned(60 * MIB, 60, (1000,), least=5, most=9)]) is not None


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
            assert sum(run.cost for run in runs[window]) <= PAGES * MIB
            runs[window] = [spilled(runs[window])]
        else:
            raise AssertionError("it does not end")
    assert [number for run in runs for number in run.holds] == list(range(len(sizes)))  # type: ignore[attr-defined]
    assert sum(run.cost for run in runs) <= PAGES * MIB
    assert len(runs) <= most
    assert max((run.merged for run in runs), default=0) <= 1 + len(sizes).bit_length()


@given(st.integers(32 * MIB, 8192 * MIB), st.integers(0, 5000))
def test_few_spilled_runs_are_read_in_large_batches_and_many_fit_together(limit: int, spills: int) -> None:
    room = Budget(limit=limit, row_bytes=1, measured=True, spills=spills)
    at_once = min(max(1, spills), room.most_runs)
    assert room.spilled * at_once <= room.pages or room.spilled == 64 << 10
    assert room.spilled >= Budget(limit=limit, row_bytes=1, measured=True).spilled
    assert spills > 8 or room.spilled >= min(8 * MIB, room.pages // 16)


@given(st.integers(32 * MIB, 8192 * MIB), st.integers(1, 5000), st.integers(0, 5000))
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


@pytest.mark.parametrize(("limit", "fits"), [(64 * MIB, False), (80 * MIB, True), (1024 * MIB, True)])
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
    assert (found.buffers < limit // 8) == (found.footers > limit // 6) == (limit < 1024 * MIB)


# What is open at once: as much as is granted memory, and no run before all that comes before it was emitted.

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
        keys = sorted(draw(st.lists(st.integers(begin, begin + 12), min_size=1, max_size=20)))
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


# The configured limit against what the operating system counts: a merge of far more data than it may hold.
#
# test_kernel.py measures Arrow's pool, which is most of it. Here is everything: numpy's arrays, codecs, what
# allocators keep. Besides its limit a merge takes a fixed amount (`OWN_MEMORY`), whatever the limit and the inputs.

TESTS = Path(__file__).resolve().parents[2]
FILES, ROWS = 24, 100_000
SHAPES = [("long lines", 12, 32), ("300 columns", 24, 36), ("nested", 16, 32)]
"""Each with the megabytes of its files and the least limit, in MiB."""
SHORT = {"long lines": Arrangement.UNSORTED, "300 columns": Arrangement.OVERLAPPING, "nested": Arrangement.UNSORTED}
"""In which arrangement a short run merges each shape: what is not sorted is sorted in runs first, and then merged."""


@dataclass(frozen=True)
class Inputs:
    """Files to merge. `content`: rows and fingerprint of all; `nbytes`: of their rows in memory."""

    files: list[Path]
    content: str
    nbytes: int

    @classmethod
    def of(cls, *files: Path) -> Self:
        tables = [pq.read_table(path) for path in files]
        content = sum((fingerprint(table) for table in tables), fingerprint([]))
        return cls(list(files), str(content), sum(table.nbytes for table in tables))


@pytest.fixture(scope="module")
def large_inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    directory = tmp_path_factory.mktemp("merge") / "in"
    generate(directory, files=FILES, rows=ROWS)
    return Inputs.of(*sorted(directory.iterdir()))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((*shape, arrangement), id="-".join(map(str, (*shape, arrangement))))
        for shape in SHAPES
        for arrangement in at_depth(short=(SHORT[shape[0]],), deep=(Arrangement.OVERLAPPING, Arrangement.UNSORTED))
    ],
)
def shape(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Inputs]:
    """The least limit of a shape, and files of it that overlap or have no order."""
    name, megabytes, least, arrangement = request.param
    directory = tmp_path_factory.mktemp("shape")
    block_shapes.generate(directory / "in", name, Arrangement.OVERLAPPING, files=8, megabytes=megabytes)
    inputs = Inputs.of(*sorted((directory / "in").iterdir()))
    return least * MEBIBYTE, inputs if arrangement is Arrangement.OVERLAPPING else shuffled(inputs, directory / "mixed")


def shuffled(inputs: Inputs, directory: Path) -> Inputs:
    """Files of the same rows, none in order."""
    directory.mkdir()
    files = [directory / path.name for path in inputs.files]
    for number, (path, other) in enumerate(zip(inputs.files, files, strict=True)):
        table = pq.read_table(path)
        order = pa.array(np.random.default_rng(number).permutation(table.num_rows))
        pq.write_table(
            table.take(order), other, compression="zstd", compression_level=block_shapes.LEVEL,
            row_group_size=block_shapes.GROUP_ROWS,
        )  # fmt: skip
    return replace(inputs, files=files)


@pytest.fixture(scope="module")
def merging() -> Iterator[subprocess.Popen[str]]:
    """The process that forks one for each merge."""
    with subprocess.Popen(
        [sys.executable, "-m", "blocks.merge.memory"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
    ) as process:  # fmt: skip
        yield process


def check(merging: subprocess.Popen[str], limit: int, key: tuple[str, ...], inputs: Inputs, output: Path) -> None:
    """A merge takes no more memory than it may, and all rows come out of it."""
    assert merging.stdin is not None
    assert merging.stdout is not None
    print(json.dumps([limit, ",".join(key), str(output), *map(str, inputs.files)]), file=merging.stdin)
    found = json.loads(merging.stdout.readline())
    assert found["rows"] == sum(pq.read_metadata(path).num_rows for path in inputs.files)
    assert found["read"] == inputs.content
    taken = found["peak"] - found["base"]
    assert taken <= limit + OWN_MEMORY, f"{taken / MEBIBYTE:.0f} MiB where {limit / MEBIBYTE:.0f} are allowed"


@pytest.mark.parametrize("limit", [16 * MEBIBYTE, *at_depth(short=[], deep=[48 * MEBIBYTE])])
def test_resident_memory_stays_within_the_limit(
    limit: int, large_inputs: Inputs, tmp_path: Path, merging: subprocess.Popen[str]
) -> None:
    """2.4 million rows of about 110 bytes: several times either limit. The smaller one takes two passes."""
    assert large_inputs.nbytes > 3 * limit
    check(merging, limit, RESIDENT_MEMORY_KEY, large_inputs, tmp_path / "out")


def test_so_it_does_on_every_shape(shape: tuple[int, Inputs], tmp_path: Path, merging: subprocess.Popen[str]) -> None:
    """Of each twice the limit, as rows in memory. A row group of 300 columns takes a third of its limit to be read."""
    limit, inputs = shape
    assert inputs.nbytes > 2 * limit
    check(merging, limit, block_shapes.KEY, inputs, tmp_path / "out")


def test_footers_of_many_columns(tmp_path: Path, merging: subprocess.Popen[str]) -> None:
    """2,000 columns in 20 row groups of what may be pending: their footers take a quarter of the limit."""
    limit, rows, files, columns = 160 * MEBIBYTE, 20_000, 2, 2000
    inputs = [tmp_path / f"{file}.parquet" for file in range(files)]
    for file, path in enumerate(inputs):
        values = np.random.default_rng(file).integers(0, 100, (columns, rows // files))
        values[0] = np.arange(rows // files) + file * rows // files
        table = pa.table({f"c{place}": column for place, column in enumerate(values)})
        order = pq.SortingColumn.from_ordering(table.schema, [("c0", "ascending")])
        pq.write_table(table, path, compression="zstd", sorting_columns=order)
    check(merging, limit, ("c0",), Inputs.of(*inputs), tmp_path / "out")


def test_one_large_value_among_small_ones(tmp_path: Path, merging: subprocess.Popen[str]) -> None:
    """It is there several times: as a page, read, gathered, encoded, compressed, and as the largest of its column."""
    limit = 512 * MEBIBYTE
    inputs = []
    for file in range(4):
        lines = [f"{n:>200}" for n in range(20_000)]
        lines[7_000] *= 50 * MEBIBYTE // 200 if file == 2 else 1
        inputs.append(tmp_path / f"{file}.parquet")
        table = pa.table({"ts": pa.array(range(file, 80_000, 4), pa.int64()), "line": lines})
        order = pq.SortingColumn.from_ordering(table.schema, [("ts", "ascending")])
        pq.write_table(table, inputs[-1], compression="zstd", sorting_columns=order, write_batch_size=256)
    check(merging, limit, ("ts",), Inputs.of(*inputs), tmp_path / "out")
