"""Timestamps as Spark writes them, in INT96: none changes, and what is merged is stored so again."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, permutations
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.blocks.errors import SchemaConflictError, SortKeyError, UnreadableBlockError, UnsuitableBlockError
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.format.footer_shape import FIXED
from compaction.blocks.format.int96 import READING_KEY, Int96Reading, with_physical_type
from compaction.blocks.format.logical import EITHER, RAW
from compaction.blocks.merge.footers import MergeInput, MergeSettings, OpenedFooter, read_footer
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.schema import unified
from compaction.blocks.model import RowFingerprint
from compaction.blocks.reader import BlockReader
from compaction.blocks.registration.describe import describe
from compaction.blocks.schema.classes import classes_of
from compaction.blocks.store import BlockStore, BlockStoreConnection
from compaction.storage.objects.store import open_objects
from support.blocks.blocks import PATH
from support.timing import examples

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
    assert metadata == {b"org.apache.spark.version": b"4.2.1", READING_KEY: b'{"ts": "us"}'}
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
    moments = pa.array([None if item is None else number for number, item in enumerate(values)], pa.timestamp("ns"))
    column = pa.StructArray.from_arrays([moments], ["t"]) if nested else moments
    sink = io.BytesIO()
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False, "use_dictionary": False}
    pq.write_table(pa.table({"k": range(len(values)), "ts": column}), sink, compression="none", **options)
    data = sink.getvalue()
    stored = [(2_440_588, number) for number, item in enumerate(values) if item is not None]
    wanted = [(2_440_588 + value[0], value[1]) for value in values if value is not None]
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


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("values", "reading"),
    [
        ([(FAR, 0), None, (-719_162, 3_600_000_000_000), (1, 1000)], "us"),
        ([(1, 1), (20_000, 86_399_999_999_999), None], "ns"),
        ([(1, 1000), (20_000, 0)], EITHER),
        ([None, None], EITHER),
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
    assert said == {column: reading}
    assert pq.read_metadata(io.BytesIO(output)).schema.column(1).physical_type == "INT96"
    assert read_back("output", lambda: io.BytesIO(output)) == result.written
    found = stored_values(data, column)
    assert stored_values(output, column) == [item for item in found for _ in range(2)]
    again = merged(output, output, by="k")
    assert stored_values(again, column) == [item for item in found for _ in range(4)]
    objects = open_objects(str(tmp_path / "objects"))
    for each in (data, output):
        objects.put(PATH, each)
        described = describe(objects, PATH, tenant="acme", shard=0, level=0, time_column="k")
        assert described.fingerprint in (result.read, read_back("a", source.open))


def test_bytes_are_no_order_of_times() -> None:
    data = int96_file([(FAR, 0), (1, 1)])
    with pytest.raises(SortKeyError, match="sort key column ts: values of type INT96 that no unit holds have no order"):
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


Moment: TypeAlias = tuple[int, int]
"""Days since 1970, nanoseconds of the day."""
DAY: Final = 86_400 * 10**9
NANOSECONDS_HOLD: Final = 9_223_372_036 * 10**9
ORDINARY: Final[tuple[Moment, ...]] = ((0, 0), (20_000, 86_399_999_999_000), (-100_000, 1000))
DISTANT: Final[tuple[Moment, ...]] = ((FAR, 82_800_000_000_000), (-719_162, 0))
FINE: Final[tuple[Moment, ...]] = ((20_000, 1), (-1, 86_399_999_999_999))
CHOSEN: Final = st.sampled_from((EITHER, EITHER, EITHER, "us", "ns", RAW))
KINDS: Final = {EITHER: ORDINARY, "us": ORDINARY + DISTANT, "ns": ORDINARY + FINE, RAW: ORDINARY + DISTANT + FINE}


def times_file(columns: Mapping[str, list[Any]], keys: list[int], *, arrow: bool = False) -> bytes:
    """A file of another writer, whose columns hold moments, lists of them, or structs of them, as `int96_file`."""
    numbers, leaves = count(), dict[str, list[tuple[int, Moment]]]()

    def numbered(value: Any, path: str) -> Any:
        if isinstance(value, tuple):
            number = next(numbers)
            leaves.setdefault(path, []).append((number, value))
            return number
        if isinstance(value, dict):
            return {name: numbered(item, f"{path}.{name}") for name, item in value.items()}
        if isinstance(value, list):
            inside = [numbered(item, path) for item in value]
            return list(enumerate(inside)) if path == "map" else inside
        return value

    ns = pa.timestamp("ns")
    kinds = {
        "many": pa.list_(ns),
        "both": pa.struct([("name", pa.string()), ("t", ns), ("u", ns)]),
        "map": pa.map_(pa.int64(), ns),
    }
    arrays = [
        pa.array([numbered(value, name) for value in values], kinds.get(name, ns)) for name, values in columns.items()
    ]
    sink = io.BytesIO()
    options = {"use_deprecated_int96_timestamps": True, "store_schema": arrow, "use_dictionary": ["both.name"]}
    pq.write_table(pa.table([keys, *arrays], names=["k", *columns]), sink, compression="none", **options)
    data = sink.getvalue()
    for stored in leaves.values():
        before = b"".join(struct.pack("<qi", number, 2_440_588) for number, _ in stored)
        assert data.count(before) == 1
        data = data.replace(before, b"".join(struct.pack("<qi", nanos, 2_440_588 + day) for _, (day, nanos) in stored))
    return data


def rows_in(*files: bytes) -> list[dict[str, Any]]:
    """The rows, by their key if all have one. The moments are whole nanoseconds of any size: out of the 12 bytes, by no
    unit of Arrow.
    """

    def exact(value: Any) -> Any:
        if isinstance(value, bytes):
            nanos, day = struct.unpack("<qi", value)
            return (day - 2_440_588) * DAY + nanos
        if isinstance(value, dict):
            return {name: exact(item) for name, item in value.items()}
        return type(value)(map(exact, value)) if isinstance(value, list | tuple) else value

    rows = []
    for data in files:
        footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
        paths = {path for path, kind in types_in(data).items() if kind == "INT96"}
        changed = with_physical_type(footer, paths, FIXED)
        metadata = pq.read_metadata(io.BytesIO(b"PAR1" + changed + len(changed).to_bytes(4, "little") + b"PAR1"))
        rows += [exact(row) for row in pq.ParquetFile(io.BytesIO(data), metadata=metadata).read().to_pylist()]
    return rows if any(row.get("k") is None for row in rows) else sorted(rows, key=lambda row: int(row["k"]))


def types_in(data: bytes) -> dict[str, str]:
    schema = pq.read_metadata(io.BytesIO(data)).schema
    return {column.path: column.physical_type for column in map(schema.column, range(len(schema)))}


def duckdb_rows(*files: bytes) -> list[Any]:
    with TemporaryDirectory() as folder, duckdb.connect() as connection:
        for number, data in enumerate(files):
            Path(folder, f"{number}.parquet").write_bytes(data)
        return connection.sql(f"select columns(*)::varchar from '{folder}/*.parquet' order by k::bigint").fetchall()


def moments_of(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from moments_of(item)


def readings_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    """How each column must be read, by its values."""
    columns = {"a": [row["a"] for row in rows], "b": [row["b"] for row in rows]}
    columns["many.list.element"] = [row["many"] for row in rows]
    columns["map.key_value.value"] = [[value for _, value in row["map"] or []] for row in rows]
    columns |= {f"both.{item}": [(row["both"] or {}).get(item) for row in rows] for item in "tu"}
    found = {}
    for name, values in columns.items():
        moments = list(moments_of(values))
        us = all(moment % 1000 == 0 for moment in moments)
        ns = all(abs(moment // 10**9) < NANOSECONDS_HOLD // 10**9 for moment in moments)
        found[name] = EITHER if us and ns else "us" if us else "ns" if ns else RAW
    return found


def source_of(data: bytes, name: str = "a") -> MergeInput:
    return MergeInput(name=name, open=lambda: io.BytesIO(data))


def footer_of(data: bytes, name: str = "a") -> OpenedFooter:
    return read_footer(source_of(data, name), (), look=True)


@st.composite
def mixes(draw: st.DrawFn) -> list[tuple[dict[str, list[Any]], list[int], bool]]:
    """Of files: columns that each hold moments of a kind, keys, and whether there is an Arrow schema."""
    files = draw(st.integers(2, 4))
    found = []
    for file in range(files):
        rows = draw(st.integers(1, 5))
        of = {name: st.none() | st.sampled_from(KINDS[draw(CHOSEN)]) for name in ("a", "b", "many", "map", "t", "u")}
        shapes = {
            "a": of["a"],
            "b": of["b"],
            "many": st.none() | st.lists(of["many"], max_size=3),
            "map": st.none() | st.lists(of["map"], max_size=3),
            "both": st.none() | st.fixed_dictionaries({"name": st.just("x"), "t": of["t"], "u": of["u"]}),
        }
        columns = {name: draw(st.lists(shape, min_size=rows, max_size=rows)) for name, shape in shapes.items()}
        found.append((columns, [file + row * files for row in range(rows)], draw(st.booleans())))
    return found


def can_be_one(readings: Collection[str]) -> bool:
    return len(set(readings) - {EITHER}) <= 1 if RAW not in readings else set(readings) == {RAW}


@given(mixes())
@settings(max_examples=examples(60))
def test_files_are_merged_with_each_other_wherever_a_unit_holds_the_times_of_all(
    mix: list[tuple[dict[str, list[Any]], list[int], bool]],
) -> None:
    """Every value is what it was, whichever unit the files of a class were read in, and after a second merge."""
    files = [times_file(columns, keys, arrow=arrow) for columns, keys, arrow in mix]
    sources = {str(number): data for number, data in enumerate(files)}
    readings = {name: readings_of(rows_in(data)) for name, data in sources.items()}
    footers = {name: footer_of(data, name) for name, data in sources.items()}
    assert {name: dict(footer.int96.columns) for name, footer in footers.items()} == readings
    schemas = {name: footer.named_schema[1] for name, footer in footers.items()}
    found = classes_of(schemas)
    leaves = readings["0"].keys()
    together = {leaf for leaf in leaves if can_be_one([reading[leaf] for reading in readings.values()])}
    assert (len(found.classes()) == 1) == (together == leaves) == (not found.conflicts)
    for item in found.classes():
        assert all(can_be_one([readings[name][leaf] for name in item]) for leaf in leaves)
        parts = [sources[name] for name in sorted(item)]
        output = merged(*parts, by="k")
        assert rows_in(output) == rows_in(*parts)
        assert duckdb_rows(output) == duckdb_rows(*parts)
        assert types_in(output) == types_in(parts[0])
        assert footer_of(output).int96.columns == readings_of(rows_in(output))
        assert read_back("output", partial(io.BytesIO, output)) == sum(
            (read_back("source", partial(io.BytesIO, data)) for data in parts),
            RowFingerprint(),
        )
        kin = {**{name: schemas[name] for name in item}, "output": footer_of(output).named_schema[1]}
        assert len(classes_of(kin).classes()) == 1
        again = merged(output, *parts, by="k")
        assert rows_in(again) == rows_in(output, *parts)


BESIDE: Final = pa.timestamp("us")


def other_writers_file(*moments: Moment | None, keys: list[int] | None = None) -> bytes:
    return times_file({"ts": list(moments)}, keys or list(range(len(moments))))


def test_what_spark_has_written_goes_with_nanoseconds_where_these_hold_it() -> None:
    """Spark's files are read for that only then; a date that nanoseconds do not hold is named, not changed."""
    near, far, fine = spark_file((-1, 1_700_000_000_123_456)), spark_file(), other_writers_file((20_000, 1))
    for files in ((near, fine), (fine, near)):
        output = merged(*files)
        assert [row["ts"] for row in rows_in(output)] == [-1000, 1_700_000_000_123_456_000, 20_000 * DAY + 1]
    refused = r"timestamp\[us\] \(INT96 beyond the years 1677 to 2262\), . has timestamp\[ns\] \(INT96 finer than micro"
    with pytest.raises(SchemaConflictError, match=refused):
        merged(far, fine)


def test_spark_s_columns_do_not_become_nanoseconds_that_it_cannot_read() -> None:
    """64-bit nanoseconds, as pandas writes them, and what a merge makes of INT96 beside other timestamps."""
    pandas = spark_file((1, 1_700_000_000_123_456_789), metadata={}, int96=False, unit="ns")
    with pytest.raises(SchemaConflictError, match="column ts"):
        merged(spark_file((1,)), pandas)
    schemas = [footer_of(data).named_schema[1] for data in (spark_file((1,)), other_writers_file((1, 1)), pandas)]
    rows = pa.table({"ts": pa.array([1], BESIDE), "n": [0], "local": pa.array([1], BESIDE)})
    assert len(classes_of({"spark": schemas[0], "ns": schemas[1]}).classes()) == 1
    assert len(classes_of({"ns": schemas[1], "pandas": schemas[2]}).classes()) == 1
    assert len(classes_of({"spark": schemas[0], "pandas": schemas[2]}).classes()) == 2
    for order in permutations(zip(("spark", "ns", "pandas"), schemas, strict=True)):
        assert {frozenset({"spark"}), frozenset({"ns", "pandas"})} == set(classes_of(dict(order)).classes())
        with pytest.raises(SchemaConflictError, match="column ts"):
            unified(list(order))
    sink = io.BytesIO()
    pq.write_table(rows, sink, store_schema=False)
    assert physical(merged(spark_file((1,)), sink.getvalue())) == "INT64"


@pytest.mark.parametrize(
    "said", [b'{"unit": "ns", "raw": []}', b'{"ts": "fs"}', b'{"other": "ns"}', b"[", b'["ts"]', b"[" * 9000]
)
def test_a_file_that_does_not_say_of_its_columns_how_they_are_read_is_read_to_know_it(said: bytes) -> None:
    """Who writes an output again may keep the keys of its metadata, and change its columns."""
    data = spark_file(metadata={READING_KEY: said})
    assert footer_of(data).int96.columns == {"ts": "us"}
    assert moments_in(merged(data)) == list(MOMENTS)


def test_a_file_whose_times_are_not_as_exact_as_it_says_is_refused() -> None:
    said = json.dumps({"a": "ns", "b": "us", "c": "us"}).encode()
    file = times_file({"a": [(FAR, 0)], "b": [(1, 0)], "c": [(1, 0)]}, [0])
    table = pq.read_table(io.BytesIO(file), coerce_int96_timestamp_unit="us")
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, use_deprecated_int96_timestamps=True, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({READING_KEY: said})
    with pytest.raises(UnreadableBlockError, match="it says that its times"):
        merged(sink.getvalue(), by="k")


@pytest.mark.parametrize("first", [0, 1])
def test_a_part_of_the_keys_is_the_same_part_in_whichever_unit_a_file_is_read(first: int) -> None:
    """Bounds are numbers of the merged type: here microseconds, where the file itself is read in nanoseconds."""
    data = times_file({"ts": [(0, 1000), (0, 5000), (0, 9000)], "fine": [(0, 1)] * 3}, [0, 1, 2])
    sources = [source_of(spark_file((3, 7))), source_of(data)]
    bounds: dict[str, Any] = ({"last": 6}, {"first": 6})[first]
    sink = io.BytesIO()
    merge([replace(source, **bounds) for source in sources], sink, MergeSettings(sort_key=("ts",)))
    assert moments_in(sink.getvalue()) == [[1, 3, 5], [7, 9]][first]


def test_each_column_of_a_block_is_registered_and_read_in_its_own_unit(tmp_path: Path) -> None:
    """Two columns that no unit holds together: neither is bytes, so either may be the time, or order the rows."""
    data = times_file(
        {"until": [(FAR, 0), None], "at": [(20_000, 1), (20_000, 2)], "seen": [(20_000, 3), (20_000, 4)]}, [0, 1]
    )
    store = BlockStore.open(BlockStoreConnection(str(tmp_path), f"sqlite:///{tmp_path}/index.db"))
    store.objects.put(PATH, data)
    for column, times in (("at", (20_000 * DAY // 1000,) * 2), ("seen", (20_000 * DAY // 1000,) * 2)):
        found = describe(store.objects, PATH, tenant="acme", shard=0, level=0, time_column=column, verify=True)
        assert (found.min_time, found.max_time) == times
    store.register_blocks([found])
    expected = pa.schema(
        [("k", pa.int64()), ("until", BESIDE), ("at", pa.timestamp("ns")), ("seen", pa.timestamp("ns"))]
    )
    for columns in (expected.names, ["until"], ["seen", "until"]):
        table = BlockReader(store, columns=tuple(columns)).snapshot().stream().read_all()
        assert [field.type for field in table.schema] == [expected.field(name).type for name in columns]
        assert str(table["until"][0]) == "9999-12-31 00:00:00"
        assert table["until"].null_count == 1
    assert found.fingerprint == read_back("a", lambda: io.BytesIO(data))
    assert rows_in(merged(data, by="until")) == rows_in(data)
    store.close()


def test_int96_beside_other_timestamps_is_merged_as_one_of_them() -> None:
    """Which the writer stores one way in a file: with Spark's columns in it, these would be 64-bit nanoseconds."""
    reading = Int96Reading({"ts": "ns", "both": EITHER, "none": RAW}, beside_others=True)
    schema = pa.schema([(name, pa.timestamp("ns")) for name in reading.columns])
    sink = io.BytesIO()
    pq.write_table(schema.empty_table(), sink, use_deprecated_int96_timestamps=True, store_schema=False)
    data = sink.getvalue()
    leaves = list(read_footer(source_of(data), ()).meanings.values())
    plain = [replace(leaf, text="", times="", beyond_arrow=False) for leaf in leaves]
    assert [meaning.text for meaning in reading.meanings(plain)] == ["", "", "INT96 that no unit holds"]
    assert [bool(meaning.text) for meaning in replace(reading, beside_others=False).meanings(plain)] == [True] * 3
