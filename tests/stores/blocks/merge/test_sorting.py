"""Inputs in no order: as many rows as there is room for are sorted and stay in memory, the others are spilled; of very
many all are.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.merge.columns import Columns, MemoLimits, Rows
from compaction.blocks.merge.footers import MEBIBYTE, MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.sorting import sorted_rows


@pytest.mark.parametrize(("megabytes", "held"), [(4, True), (24, False)])
def test_rows_that_were_sorted_stay_in_memory_while_there_is_room(megabytes: int, held: bool, tmp_path: Path) -> None:
    """In no order, in two files: a third of 32 MiB is for them."""
    rows = megabytes * MEBIBYTE // 32
    order = np.random.default_rng(1).permutation(2 * rows)
    inputs = []
    for number, part in enumerate(np.split(order, 2)):
        path = str(tmp_path / f"{number}.parquet")
        pq.write_table(pa.table({"ts": part, "a": part, "b": part, "c": part}), path)
        inputs.append(MergeInput(name=f"{number}.parquet", open=lambda path=path: path))  # type: ignore[misc]
    settings = MergeSettings(sort_key=("ts",), memory_bytes=32 * MEBIBYTE)
    result = merge(inputs, str(tmp_path / "out.parquet"), settings)
    assert (result.spilled == 0) is held
    assert result.sorted_first == ("0.parquet", "1.parquet")
    assert np.array_equal(pq.read_table(tmp_path / "out.parquet")["c"].to_numpy(), np.arange(2 * rows))


def test_of_many_rows_none_stay_in_memory(tmp_path: Path) -> None:
    """Eight times what may be held: what stayed would be in the way of the merge, and be merged once more."""
    rows, limit = 88 * MEBIBYTE // 32, 32 * MEBIBYTE
    order = np.random.default_rng(2).permutation(rows)
    path = str(tmp_path / "in.parquet")
    pq.write_table(pa.table({"ts": order, "a": order, "b": order, "c": order}), path, row_group_size=1 << 16)
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        settings = MergeSettings(sort_key=("ts",), memory_bytes=limit, scratch=tmp_path)
        result = merge([MergeInput(name="in", open=lambda: path, sort_key=())], str(tmp_path / "out.parquet"), settings)
    finally:
        pa.set_memory_pool(before)
    assert result.passes == 1
    assert pool.max_memory() <= limit // 2, f"{pool.max_memory() / MEBIBYTE:.1f} MiB"
    assert np.array_equal(pq.read_table(tmp_path / "out.parquet")["c"].to_numpy(), np.arange(rows))


def test_sorting_takes_two_words_for_a_row_besides_the_rows() -> None:
    """They are not of Arrow's pool, so nothing else counts them: a round of narrow rows has millions."""
    rows, part = 1 << 20, 1 << 15
    order = np.random.default_rng(3).permutation(rows)
    columns = Columns.of(pa.schema([("ts", pa.int64())]), ("ts",), coded=(), most=MemoLimits(0, 0))
    parts = [Rows((pa.array(order[start : start + part]),), part) for start in range(0, rows, part)]
    tracemalloc.start()
    try:
        found = sorted_rows(parts, columns)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most <= 2.5 * 8 * rows, f"{most / rows:.1f} bytes for a row"
    assert np.array_equal(found.columns[0].to_numpy(), np.arange(rows))
