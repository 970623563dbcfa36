"""What readers of Arrow are told that the columns are: what the inputs say, and nothing else."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge
from support.stores.block_rows import block, parquet
from support.stores.parquet_types import KEY, TYPES, merged, plain, table

ARROW_SCHEMA = b"ARROW:schema"


def out(*inputs: MergeInput) -> pq.ParquetFile:
    sink = io.BytesIO()
    merge(inputs, sink, MergeSettings(sort_key=(KEY,)))
    return pq.ParquetFile(io.BytesIO(sink.getvalue()))


def column(kind: pa.DataType, *, store_schema: bool = True, of: tuple[str, ...] = ("a", "b")) -> MergeInput:
    rows = pa.table({KEY: range(len(of)), "c": pa.array(of).cast(pa.string()).cast(kind)})
    return block(parquet(rows, key=(KEY,), store_schema=store_schema), str(kind))


@pytest.mark.parametrize("name", TYPES)
def test_a_column_stays_what_it_is(name: str) -> None:
    """Also its metadata, time zone, and whether it may be null: as pyarrow reads it from a file of its own."""
    field = pa.field(name, TYPES[name].type, metadata={"unit": "of the field"})
    rows = table((name,)).cast(pa.schema([pa.field(KEY, pa.int64(), nullable=False), field]))
    found, simply = pq.read_schema(io.BytesIO(merged(rows))), pq.read_schema(io.BytesIO(plain(rows)))
    assert found.equals(simply, check_metadata=True)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_where_files_disagree_it_is_the_plain_type(kind: pa.DataType) -> None:
    assert out(column(kind), column(kind)).schema_arrow.field("c").type == kind
    assert out(column(kind), column(pa.string())).schema_arrow.field("c").type == pa.string()
    unsaid = column(pa.large_string(), store_schema=False)
    assert out(column(kind), unsaid).schema_arrow.field("c").type == pa.string()


def test_files_without_an_arrow_schema_become_one_without() -> None:
    file = out(*(column(pa.large_string(), store_schema=False, of=(letter,)) for letter in "ab"))
    assert ARROW_SCHEMA not in (file.metadata.metadata or {})
    assert file.read()["c"].to_pylist() == ["a", "b"]


def test_the_order_of_a_dictionary_is_not_declared() -> None:
    """Values are written in the order of the row group: what was the order of categories is gone."""
    ordered = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    assert out(column(ordered)).schema_arrow.field("c").type == pa.dictionary(pa.int8(), pa.string())


def test_a_dictionary_can_be_read_as_one_however_it_is_written() -> None:
    """pyarrow cannot read DELTA_BYTE_ARRAY as a dictionary, though it would be smaller here."""
    texts = pa.array([f"a common beginning of all {number:07d}" for number in range(5000)])
    rows = pa.table({KEY: range(5000), "c": texts.dictionary_encode()})
    file = out(block(parquet(rows, key=(KEY,))))
    assert file.read()["c"].cast(pa.string()).to_pylist() == texts.to_pylist()


def test_a_column_of_nulls_only_says_nothing_of_the_type() -> None:
    nulls = block(parquet(pa.table({KEY: [5], "c": pa.nulls(1)}), key=(KEY,)))
    for name in ("uuid", "large_string", "dictionary of texts"):
        rows = pa.table({KEY: range(3), "c": TYPES[name].slice(0, 3)})
        file = out(nulls, block(parquet(rows, key=(KEY,))))
        assert file.schema_arrow.field("c").type == TYPES[name].type, name
