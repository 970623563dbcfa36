"""The configured limit against what the operating system counts: a merge of far more data than it may hold.

test_kernel.py measures Arrow's pool, which is most of it. Here is everything: numpy's arrays, codecs, what allocators
keep. Besides its limit a merge takes a fixed amount (`OWN_MEMORY`), whatever the limit and the inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.stores.blocks.fingerprint.rows import fingerprint
from compaction.stores.blocks.merge.settings import MEBIBYTE, OWN_MEMORY
from support.stores import block_shapes
from support.stores.block_engines import KEY, generate
from support.stores.block_shapes import Arrangement

TESTS = Path(__file__).resolve().parents[3]
FILES, ROWS = 24, 100_000


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("merge") / "in"
    generate(directory, files=FILES, rows=ROWS)
    return sorted(directory.iterdir())


def taken(limit: int, key: tuple[str, ...], inputs: list[Path], output: Path) -> int:
    """Bytes of memory that the merge took, of which all rows came out."""
    said = [str(limit), ",".join(key), str(output), *map(str, inputs)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    answer = subprocess.run(
        [sys.executable, "-m", "stores.blocks.merge.memory", *said],
        check=True, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    found = json.loads(answer.stdout)
    assert found["rows"] == sum(pq.read_metadata(path).num_rows for path in inputs)
    assert found["read"] == str(sum((fingerprint(pq.read_table(path)) for path in inputs), fingerprint([])))
    return int(found["peak"] - found["base"])


@pytest.mark.parametrize("limit", [16 * MEBIBYTE, 48 * MEBIBYTE])
def test_resident_memory_stays_within_the_limit(limit: int, inputs: list[Path], tmp_path: Path) -> None:
    """2.4 million rows of about 110 bytes: several times either limit. The smaller one takes two passes."""
    assert FILES * pq.read_table(inputs[0]).nbytes > 3 * limit
    found = taken(limit, KEY, inputs, tmp_path / "out")
    assert found <= limit + OWN_MEMORY, f"{found / MEBIBYTE:.0f} MiB where {limit / MEBIBYTE:.0f} are allowed"


@pytest.mark.parametrize("arrangement", [Arrangement.OVERLAPPING, Arrangement.UNSORTED])
@pytest.mark.parametrize(
    ("shape", "megabytes", "least"), [("long lines", 12, 32), ("300 columns", 24, 36), ("nested", 16, 32)]
)
def test_so_it_does_on_every_shape(
    shape: str, megabytes: float, least: int, arrangement: Arrangement, tmp_path: Path
) -> None:
    """Of each twice the limit, as rows in memory. A row group of 300 columns takes a third of its limit to be read."""
    limit = least * MEBIBYTE
    block_shapes.generate(tmp_path / "in", shape, arrangement, files=8, megabytes=megabytes)
    inputs = sorted((tmp_path / "in").iterdir())
    assert sum(pq.read_table(path).nbytes for path in inputs) > 2 * limit
    found = taken(limit, block_shapes.KEY, inputs, tmp_path / "out")
    assert found <= limit + OWN_MEMORY, f"{found / MEBIBYTE:.0f} MiB where {limit / MEBIBYTE:.0f} are allowed"


def test_footers_of_many_columns(tmp_path: Path) -> None:
    """2,000 columns in 20 row groups of what may be pending: their footers take a quarter of the limit."""
    limit, rows, files, columns = 160 * MEBIBYTE, 20_000, 2, 2000
    inputs = [tmp_path / f"{file}.parquet" for file in range(files)]
    for file, path in enumerate(inputs):
        values = np.random.default_rng(file).integers(0, 100, (columns, rows // files))
        values[0] = np.arange(rows // files) + file * rows // files
        table = pa.table({f"c{place}": column for place, column in enumerate(values)})
        order = pq.SortingColumn.from_ordering(table.schema, [("c0", "ascending")])
        pq.write_table(table, path, compression="zstd", sorting_columns=order)
    found = taken(limit, ("c0",), inputs, tmp_path / "out")
    assert found <= limit + OWN_MEMORY, f"{found / MEBIBYTE:.0f} MiB where {limit / MEBIBYTE:.0f} are allowed"


def test_one_large_value_among_small_ones(tmp_path: Path) -> None:
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
    found = taken(limit, ("ts",), inputs, tmp_path / "out")
    assert found <= limit + OWN_MEMORY, f"{found / MEBIBYTE:.0f} MiB where {limit / MEBIBYTE:.0f} are allowed"
