"""Inputs in no order: as many rows as there is room for are sorted and stay in memory, the others are spilled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.stores.blocks.merge.kernel import merge
from compaction.stores.blocks.merge.settings import MEBIBYTE, MergeInput, MergeSettings


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
