"""Equal dictionaries of successive batches are one; the rows stay as they are."""

from __future__ import annotations

import pyarrow as pa

from compaction.stores.blocks.merge.dictionaries import SteadyDictionaries


def batch(names: list[str], codes: list[int | None]) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names))
    return pa.record_batch({"name": column, "value": pa.array(range(len(codes)))})


def test_rows_stay_and_equal_dictionaries_share_memory() -> None:
    steady = SteadyDictionaries()
    batches = [
        batch(["a", "b"], [0, 1, None]),
        batch(["a", "b"], [1, 1]),
        batch(["b", "a"], [0]),
        batch(["b", "a"], [1]),
    ]
    found = [steady.of(one) for one in batches]
    assert [one.to_pylist() for one in found] == [one.to_pylist() for one in batches]
    places = [one["name"].dictionary.buffers()[2].address for one in found]
    assert places[0] == places[1]
    assert places[2] == places[3] != places[0]
