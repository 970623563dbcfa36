"""Timestamps as Spark writes them, in INT96: none changes, and what is merged is stored so again."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.exceptions import SortKeyError, UnsuitableBlockError
from compaction.stores.blocks.fingerprint.rows import fingerprint
from compaction.stores.blocks.fingerprint.verify import read_back
from compaction.stores.blocks.format.int96 import READING_KEY
from compaction.stores.blocks.merge.kernel import merge
from compaction.stores.blocks.merge.settings import MergeInput, MergeSettings
from compaction.stores.blocks.registration.describe import describe
from compaction.stores.objects.store import open_objects
from support.stores.blocks import PATH

SPARK: Final = {b"org.apache.spark.version": b"4.3.0"}
MOMENTS: Final = (-62_135_596_800_000_000, -1, 253_402_297_200_000_000)
"""Microseconds: the first day of the year 1, the last one of 1969, 9999-12-31 23:00."""


def spark_file(
    moments: tuple[int, ...] = MOMENTS, *, metadata: Mapping[bytes, bytes] = SPARK, int96: bool = True, unit: str = "us"
) -> bytes:
    """A file as Spark writes it: no Arrow schema, its own keys."""
    rows = pa.table({"ts": pa.array(moments, pa.timestamp(unit)), "n": range(len(moments))})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, use_deprecated_int96_timestamps=int96, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(dict(metadata))
    return sink.getvalue()


def merged(*files: bytes, by: str = "ts") -> bytes:
    sink = io.BytesIO()
    inputs = [MergeInput(name=str(n), open=lambda data=data: io.BytesIO(data)) for n, data in enumerate(files)]  # type: ignore[misc]
    result = merge(inputs, sink, MergeSettings(sort_key=(by,)))
    data = sink.getvalue()
    assert read_back("output", lambda: io.BytesIO(data)) == result.written
    return data


def physical(data: bytes) -> str:
    return str(pq.read_metadata(io.BytesIO(data)).schema.column(0).physical_type)


def moments_in(data: bytes) -> list[Any]:
    found = pq.read_table(io.BytesIO(data), coerce_int96_timestamp_unit="us")["ts"]
    return list(found.cast(pa.int64()).to_pylist())


def test_no_moment_changes_and_it_is_stored_as_it_was() -> None:
    once = merged(spark_file(MOMENTS[1:]), spark_file(MOMENTS[:1]))
    assert (moments_in(once), physical(once)) == (list(MOMENTS), "INT96")
    again = merged(once, spark_file())
    assert (moments_in(again), physical(again)) == (sorted(MOMENTS * 2), "INT96")


def test_of_several_versions_of_spark_one_is_kept() -> None:
    """Without it, Spark reads old dates as those of another calendar, and we could not tell its files."""
    other = {b"org.apache.spark.version": b"4.2.1", b"other": b"x"}
    data = merged(spark_file(), spark_file(metadata=other))
    metadata = pq.read_metadata(io.BytesIO(data)).metadata
    assert metadata == {b"org.apache.spark.version": b"4.2.1", READING_KEY: b'{"unit": "us", "raw": []}'}
    assert moments_in(data) == sorted(MOMENTS * 2)


def test_beside_other_timestamps_it_becomes_microseconds() -> None:
    """One way of storing them is all that the writer knows for a file."""
    data = merged(spark_file(), spark_file(int96=False))
    assert (moments_in(data), physical(data)) == (sorted(MOMENTS * 2), "INT64")


def test_nanoseconds_of_other_writers_stay() -> None:
    data = merged(spark_file((1, 1_700_000_000_123_456_789), metadata={}, unit="ns"))
    assert physical(data) == "INT96"
    assert pq.read_table(io.BytesIO(data))["ts"].cast(pa.int64()).to_pylist() == [1, 1_700_000_000_123_456_789]


def int96_file(values: list[tuple[int, int] | None], *, nested: bool = False) -> bytes:
    """A file of another writer: days since 1970 and nanoseconds of the day, as 12 bytes. pyarrow writes what it has as
    64-bit nanoseconds, so the values are put in by hand: in a page of PLAIN values they stand one after the other.
    """
    moments = pa.array([None if one is None else number for number, one in enumerate(values)], pa.timestamp("ns"))
    column = pa.StructArray.from_arrays([moments], ["t"]) if nested else moments
    sink = io.BytesIO()
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False, "use_dictionary": False}
    pq.write_table(pa.table({"k": range(len(values)), "ts": column}), sink, compression="none", **options)
    data = sink.getvalue()
    stored = [(2_440_588, number) for number, one in enumerate(values) if one is not None]
    wanted = [(2_440_588 + one[0], one[1]) for one in values if one is not None]
    before, after = (b"".join(struct.pack("<qi", nanos, day) for day, nanos in which) for which in (stored, wanted))
    assert not before or data.count(before) == 1
    return data.replace(before, after)


def stored_values(data: bytes, column: str) -> list[Any]:
    """As DuckDB reads them."""
    with NamedTemporaryFile(suffix=".parquet") as file, duckdb.connect() as connection:
        Path(file.name).write_bytes(data)
        query = f"select {column}::varchar, epoch_us({column}) from '{file.name}' order by k"
        return connection.sql(query).fetchall()


FAR = 2_932_896
"""The days from 1970 to 9999-12-31."""


RAW = "the 12 bytes"


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("values", "reading"),
    [
        ([(FAR, 0), None, (-719_162, 3_600_000_000_000), (1, 1000)], "us"),
        ([(1, 1), (20_000, 86_399_999_999_999), None], "ns"),
        ([(1, 1000), (20_000, 0)], "us"),
        ([None, None], "us"),
        ([(FAR, 0), (1, 1), None], RAW),
        ([(1 << 30, 0), (0, 5)], RAW),
    ],
)
def test_values_of_any_writer_are_what_they_are(
    values: list[tuple[int, int] | None], reading: str, nested: bool, tmp_path: Path
) -> None:
    """Also 9999-12-31 without a word of Spark in the footer: which nanoseconds take for a day in 1816."""
    data, column = int96_file(values, nested=nested), "ts.t" if nested else "ts"
    sink = io.BytesIO()
    source = MergeInput(name="a", open=lambda: io.BytesIO(data))
    result = merge([source, source], sink, MergeSettings(sort_key=("k",)))
    output = sink.getvalue()
    said = json.loads(pq.read_metadata(io.BytesIO(output)).metadata[READING_KEY])
    assert said == {"unit": "us" if reading == RAW else reading, "raw": [column] if reading == RAW else []}
    assert pq.read_metadata(io.BytesIO(output)).schema.column(1).physical_type == "INT96"
    assert read_back("output", lambda: io.BytesIO(output)) == result.written
    found = stored_values(data, column)
    assert stored_values(output, column) == [one for one in found for _ in range(2)]
    again = merged(output, output, by="k")
    assert stored_values(again, column) == [one for one in found for _ in range(4)]
    objects = open_objects(str(tmp_path / "objects"))
    for each in (data, output):
        objects.put(PATH, each)
        described = describe(objects, PATH, tenant="acme", shard=0, level=0, time_column="k")
        assert described.fingerprint in (result.read, read_back("a", source.open))


def test_bytes_are_no_order_of_times() -> None:
    data = int96_file([(FAR, 0), (1, 1)])
    with pytest.raises(SortKeyError, match="sort key column ts: values of type INT96 have no order"):
        merged(data)


def test_what_microseconds_do_not_hold_is_not_of_spark(tmp_path: Path) -> None:
    """Apache's example: a time that overflowed when it was written, which each reader takes for another one."""
    objects = open_objects("../shared/fixtures/parquet-testing/data")
    with pytest.raises(UnsuitableBlockError, match=r"column a: times \(INT96\) that microseconds do not hold"):
        describe(objects, "int96_from_spark.parquet", tenant="acme", shard=0, level=0, time_column="a")


@pytest.mark.parametrize("data", [spark_file(), merged(spark_file())], ids=["of Spark", "of ours"])
def test_a_block_is_registered_with_its_moments(tmp_path: Path, data: bytes) -> None:
    objects = open_objects(str(tmp_path / "objects"))
    objects.put(PATH, data)
    found = describe(objects, PATH, tenant="acme", shard=0, level=0)
    assert (found.min_time, found.max_time) == (MOMENTS[0], MOMENTS[2])
    assert found.fingerprint == fingerprint(pa.table({"ts": pa.array(MOMENTS, pa.timestamp("us")), "n": range(3)}))
    assert found.sort_key == ("ts",)
