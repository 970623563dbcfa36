"""An output is never larger than what DuckDB makes of the same blocks with zstd, on any shape of data."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.output import ColumnEncoding, choose
from support.stores.block_shapes import KEY, SHAPES, Arrangement, generate


@pytest.mark.parametrize("shape", SHAPES)
def test_no_larger_than_duckdbs(shape: str, tmp_path: Path) -> None:
    generate(tmp_path / "files", shape, Arrangement.OVERLAPPING, files=4, megabytes=4)
    files = sorted(map(str, (tmp_path / "files").iterdir()))
    ours, theirs = tmp_path / "ours.parquet", tmp_path / "theirs.parquet"
    inputs = [MergeInput(name=file, open=lambda file=file: file) for file in files]  # type: ignore[misc]
    merge(inputs, str(ours), MergeSettings(sort_key=KEY))
    rows = f"SELECT * FROM read_parquet({files!r}) ORDER BY ts"
    duckdb.connect().execute(f"COPY ({rows}) TO '{theirs}' (FORMAT parquet, COMPRESSION zstd)")
    assert ours.stat().st_size <= theirs.stat().st_size


def chosen(**columns: pa.Array) -> dict[str, ColumnEncoding]:
    table = pa.table(columns)
    return choose(table, table.schema, level=1)


RANDOM = np.random.default_rng(1)
NOISE = pa.array(RANDOM.lognormal(9, 2, 40_000))
"""Doubles that zstd makes smaller by a twentieth."""


def test_alone_nothing_is_larger_than_as_everybody_writes_it() -> None:
    assert str(chosen(value=NOISE)["value"]) == "PLAIN+ZSTD"


def test_where_others_make_room_what_is_hardly_smaller_is_not_paid_for() -> None:
    times = pa.array(np.sort(RANDOM.integers(0, 1 << 40, 40_000)))
    together = chosen(ts=times, value=NOISE)
    assert {name: str(item) for name, item in together.items()} == {"ts": "DELTA_BINARY_PACKED", "value": "PLAIN"}
