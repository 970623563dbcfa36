"""Equal dictionaries of successive batches are one; the rows stay as they are."""

from __future__ import annotations

import io
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge.columns import SteadyDictionaries, coded_texts, not_repeating
from compaction.blocks.merge.footers import MergeSettings
from compaction.blocks.merge.kernel import merge
from compaction.blocks.registration.describe import describe
from compaction.storage.objects.store import open_objects
from support.stores.block_rows import block, parquet
from support.stores.blocks import PATH


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
    found = [steady.of(item) for item in batches]
    assert [item.to_pylist() for item in found] == [item.to_pylist() for item in batches]
    places = [item["name"].dictionary.buffers()[2].address for item in found]
    assert places[0] == places[1]
    assert places[2] == places[3] != places[0]


JSON_COLUMNS = """
    select timestamp '2026-01-01' + i * interval 1 second as ts, ('{"a":' || i % 3 || '}')::json as j,
           {'x': ('[' || i % 3 || ']')::json} as s, [('[' || i % 3 || ']')::json, null] as l
    from range(3000) r(i)
"""


def duckdb_file(path: Path, query: str) -> bytes:
    with duckdb.connect() as connection:
        connection.execute(f"copy ({query}) to '{path}' (format parquet)")
    return path.read_bytes()


def test_texts_that_never_come_as_dictionaries_are_read_as_they_come(tmp_path: Path) -> None:
    """JSON, of which the library makes an extension type: in a column, a struct and a list."""
    data = duckdb_file(tmp_path / "a.parquet", JSON_COLUMNS)
    file = pq.ParquetFile(io.BytesIO(data), read_dictionary=coded_texts(pq.read_metadata(io.BytesIO(data))))
    assert {"j", "s.x", "l.list.element"} <= set(coded_texts(file.metadata))
    assert not_repeating(file, 0, ["j", "no such column"]) == set()
    objects = open_objects(str(tmp_path / "objects"))
    objects.put(PATH, data)
    described = describe(objects, PATH, tenant="acme", shard=0, level=0)
    sink = io.BytesIO()
    merged = merge([block(data, "a"), block(data, "b")], sink, MergeSettings(sort_key=("ts",)))
    assert merged.read == described.fingerprint + described.fingerprint
    assert read_back("output", lambda: io.BytesIO(sink.getvalue())) == merged.read
    assert fingerprint(pq.read_table(io.BytesIO(data))) == described.fingerprint


def test_an_extension_type_over_other_storage_is_read_by_its_texts() -> None:
    """It has none of the kernels that its storage has."""
    texts = pa.array(["[1]", "[2]", None] * 400)
    tables = [pa.table({"k": range(1200), "c": texts.cast(pa.json_(kind()))}) for kind in (pa.string, pa.large_string)]
    sink = io.BytesIO()
    merged = merge([block(parquet(table, key=("k",))) for table in tables], sink, MergeSettings(sort_key=("k",)))
    assert merged.read == fingerprint(tables[0]) + fingerprint(tables[1])
    assert read_back("output", lambda: io.BytesIO(sink.getvalue())) == merged.read
