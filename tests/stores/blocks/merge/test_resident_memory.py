"""The configured limit against what the operating system counts: a merge of far more data than it may hold.

test_kernel.py measures Arrow's pool, which is most of it. Here is everything: numpy's arrays, codecs, what allocators
keep. Besides its limit a merge takes a fixed amount (`OWN_MEMORY`), whatever the limit and the inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge.footers import MEBIBYTE, OWN_MEMORY
from support.depth import at_depth
from support.stores import block_shapes
from support.stores.block_engines import KEY, generate
from support.stores.block_shapes import Arrangement

TESTS = Path(__file__).resolve().parents[3]
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
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
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
        [sys.executable, "-m", "stores.blocks.merge.memory"],
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
    limit: int, inputs: Inputs, tmp_path: Path, merging: subprocess.Popen[str]
) -> None:
    """2.4 million rows of about 110 bytes: several times either limit. The smaller one takes two passes."""
    assert inputs.nbytes > 3 * limit
    check(merging, limit, KEY, inputs, tmp_path / "out")


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
