"""What a column means besides its bytes is in the output as it was in the sources, or nothing is written."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.errors import LogicalTypeLostError, SchemaConflictError, SortKeyError, UnsuitableBlockError
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.format.footer import BlockFooter, read_footer
from compaction.blocks.format.int96 import Int96Error, check_spark
from compaction.blocks.format.thrift_edit import STRUCT
from compaction.blocks.merge.footers import MergeInput, MergeSettings
from compaction.blocks.merge.kernel import merge
from compaction.blocks.merge.meanings import check_writable
from compaction.blocks.schema.classes import classes_of
from compaction.errors import CompactionError
from compaction.storage.objects.store import open_objects
from support.blocks.blocks import block, parquet_of
from support.blocks.parquet_types import (
    COLUMNS,
    KEY,
    SHREDDED,
    SHREDDED_VALUE,
    TYPES,
    VARIANT,
    VARIANT_VALUES,
    merged,
    nodes_of,
    plain,
    table,
    typed_file,
    with_nodes,
)

APACHE: Final = Path("../shared/fixtures/parquet-testing/data")
BY_KEY: Final = MergeSettings(sort_key=(KEY,))


def footer_of(data: bytes, folder: Path) -> BlockFooter:
    (folder / "source.parquet").write_bytes(data)
    return read_footer(open_objects(str(folder)), "source.parquet")


def merge_of(*files: bytes, settings: MergeSettings = BY_KEY) -> bytes:
    sink = io.BytesIO()
    inputs = [MergeInput(name=f"{n}", open=lambda data=data: io.BytesIO(data)) for n, data in enumerate(files)]  # type: ignore[misc]
    result = merge(inputs, sink, settings)
    assert read_back("output", lambda: io.BytesIO(sink.getvalue())) == result.written
    return sink.getvalue()


def as_duckdb_reads(*files: bytes, folder: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Names and types of the columns, and all rows in some order."""
    for number, data in enumerate(files):
        (folder / f"{number}.parquet").write_bytes(data)
    source = f"read_parquet({[str(folder / f'{number}.parquet') for number in range(len(files))]})"
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        kinds = [row[:2] for row in connection.execute(f"describe select * from {source}").fetchall()]
        text = ", ".join(f'"{name}"::varchar' for name, _ in kinds)
        return kinds, sorted(map(repr, connection.execute(f"select {text} from {source}").fetchall()))


@pytest.mark.parametrize("name", COLUMNS)
def test_every_logical_type_is_what_it_was(name: str, tmp_path: Path) -> None:
    """By the raw footer, and by what DuckDB makes of column and values."""
    data = typed_file({name: COLUMNS[name]})
    footer = footer_of(data, tmp_path)
    check_writable("source", footer.schema, footer.meanings)
    output = merge_of(data, data)
    again = merge_of(output, data)
    assert footer_of(output, tmp_path).schema_id == footer.schema_id == footer_of(again, tmp_path).schema_id
    before, after = nodes_of(data)[name.encode()], nodes_of(output)[name.encode()]
    if name.endswith(", old") and name.startswith(("text", "unsigned", "decimal")):
        assert after.pop(10)  # what the converted type says is said in the newer way, too
    assert {**before, **after} == after
    if name == "bson":
        return  # which DuckDB does not read
    assert as_duckdb_reads(output, folder=tmp_path) == as_duckdb_reads(data, data, folder=tmp_path)


def test_inside_of_lists_structs_and_maps_too() -> None:
    kinds = pa.struct([("enum", pa.binary()), ("l", pa.list_(pa.struct([("bson", pa.binary())])))])
    rows = pa.array([{"enum": b"red", "l": [{"bson": b"x"}]}, None] * 30, kinds)
    items = pa.array([[("k", b"\x00" * 12)], []] * 30, pa.map_(pa.string(), pa.binary(12)))
    fields = {name: COLUMNS[column][1] for name, column in (("value", "interval"), ("enum", "enum"), ("bson", "bson"))}
    data = with_nodes(
        typed_file({"s": (rows, {}), "m": (items, {})}), {name.encode(): item for name, item in fields.items()}
    )
    found = nodes_of(merge_of(data, data))
    assert {name: found[name.encode()] for name in fields} == fields


def test_unlike_types_are_classes_of_their_own(tmp_path: Path) -> None:
    """Of the same bytes: two coordinate systems, texts of any kind, times with and without a zone."""
    schemas = {}
    for name, (values, fields) in COLUMNS.items():
        footer = footer_of(typed_file({"c": (values, fields)}), tmp_path)
        schemas[name] = footer.schema
    found = classes_of(schemas).classes()
    together = [sorted(item) for item in found if len(item) > 1]
    assert together == [["enum", "enum, old"]]
    for item, other in combinations(("geometry", "geometry, srid", "geography", "json", "bson", "enum"), 2):
        files = [typed_file({"c": COLUMNS[name]}) for name in (item, other)]
        with pytest.raises(SchemaConflictError, match=r"column c: 0 has .*, 1 has .*: these cannot be merged"):
            merge_of(*files)
    words = [
        str(conflict)
        for conflict in classes_of({name: schemas[name] for name in ("geometry", "geometry, srid")}).conflicts
    ]
    assert words == ["column c binary GEOMETRY | binary GEOMETRY(srid:5070)"]


def test_a_column_that_is_missing_or_null_goes_with_any(tmp_path: Path) -> None:
    typed, nulls = typed_file({"bson": COLUMNS["bson"]}), typed_file({"bson": (pa.nulls(60), {})})
    output = merge_of(typed_file({}), nulls, typed)
    assert nodes_of(output)[b"bson"] == nodes_of(typed)[b"bson"]
    schemas = {name: footer_of(data, tmp_path).schema for name, data in (("n", nulls), ("t", typed))}
    assert len(classes_of(schemas).classes()) == 1


WIDENED: Final = (
    (pa.decimal128(5, 2), pa.decimal128(20, 2), (Decimal("1.25"), Decimal("123456789012.25"))),
    (pa.decimal128(9, 0), pa.decimal256(50, 0), (Decimal(7), Decimal(10**49))),
    (pa.float16(), pa.float32(), (1.5, 3.0e38)),
    (pa.float32(), pa.float64(), (1.5, 1e300)),
    (pa.int8(), pa.int16(), (-1, 300)),
    (pa.uint8(), pa.int8(), (200, -100)),
    (pa.uint32(), pa.int32(), (1 << 31, -1)),
    (pa.uint32(), pa.uint64(), (1, 1 << 63)),
)


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a list"])
@pytest.mark.parametrize(("one", "other", "values"), WIDENED, ids=[f"{item[0]} and {item[1]}" for item in WIDENED])
def test_a_widened_column_with_an_id_is_what_it_is_without_one(
    one: pa.DataType, other: pa.DataType, values: tuple[Any, Any], nested: bool
) -> None:
    """As two readers see it: an annotation of the narrower type would change values, or their type."""
    outputs = []
    for fields in ({}, {b"c": {9: (5, 2)}}):
        files = []
        for kind, value in zip((one, other), values, strict=True):
            scalar = np.float16(value) if pa.types.is_float16(kind) else value
            rows = pa.array([[scalar]] * 60, pa.list_(kind)) if nested else pa.array([scalar] * 60, kind)
            files.append(with_nodes(typed_file({"c": (rows, {})}), fields))
        outputs.append(merge_of(*files))
    found, expected = (pq.read_table(io.BytesIO(output))["c"] for output in reversed(outputs))
    assert found.type.equals(expected.type)
    assert [row[0] if nested else row for row in found.to_pylist()[:2]] == pytest.approx(list(values))
    assert nodes_of(outputs[1]) == nodes_of(outputs[0])


@pytest.mark.parametrize(
    ("one", "other", "value"),
    [(pa.int8(), pa.int16(), 1), (pa.decimal128(20, 2), pa.decimal128(30, 2), Decimal("1.25"))],
)
def test_variants_shredded_in_unlike_widths_are_never_widened(one: pa.DataType, other: pa.DataType, value: Any) -> None:
    files = []
    for kind in (one, other):
        shredded = pa.struct([*list(SHREDDED)[:2], pa.field("typed_value", kind)])
        rows = pa.array([{**VARIANT_VALUES, "typed_value": value}] * 60, shredded)
        files.append(typed_file({"v": (rows, VARIANT)}))
    with pytest.raises(SchemaConflictError, match="column v: 0 has"):
        merge_of(*files)
    assert nodes_of(merge_of(files[1], files[1])) == nodes_of(files[1])


@pytest.mark.parametrize("place", ["alone", "in a struct"])
@pytest.mark.parametrize(
    "kind", [pa.struct([("b", pa.int64())]), pa.list_(pa.int64()), pa.map_(pa.string(), pa.struct([("b", pa.int64())]))]
)
def test_nulls_of_no_type_go_with_columns_that_hold_others(kind: pa.DataType, place: str, tmp_path: Path) -> None:
    value: Any = {"b": 1} if pa.types.is_struct(kind) else [("k", {"b": 1})] if pa.types.is_map(kind) else [1, 2]
    files = []
    for typed, item in ((pa.null(), None), (kind, value)):
        rows = pa.array([item] * 60, typed)
        files.append(typed_file({"a": (pa.StructArray.from_arrays([rows], ["in"]) if "in" in place else rows, {})}))
    for both in (files, files[::-1]):
        found = pq.read_table(io.BytesIO(merge_of(*both)))["a"].to_pylist()
        assert [item["in"] if "in" in place else item for item in found].count(value) == 60


def test_bytes_without_an_order_get_no_bounds() -> None:
    data = typed_file({name: COLUMNS[name] for name in ("geometry", "interval", "variant", "bson", "json")})
    group = pq.read_metadata(io.BytesIO(merge_of(data))).row_group(0)
    found = {group.column(leaf).path_in_schema: group.column(leaf).is_stats_set for leaf in range(group.num_columns)}
    assert [path for path, there in found.items() if not there] == [
        "geometry", "interval", "variant.metadata", "variant.value",
    ]  # fmt: skip


def test_what_cannot_be_written_as_it_is_is_refused_by_name(tmp_path: Path) -> None:
    values = pa.array([SHREDDED_VALUE] * 60, SHREDDED)
    shredded = typed_file({"v": (values, VARIANT)}, store_decimal_as_integer=True)
    footer = footer_of(shredded, tmp_path)
    with pytest.raises(LogicalTypeLostError, match=r"source: column v\.metadata is .*VARIANT\(1\).*cannot be merged"):
        check_writable("source", footer.schema, footer.meanings)
    with pytest.raises(LogicalTypeLostError, match=r"0: column v\.metadata"):
        merge_of(shredded)
    unknown = typed_file({"c": (pa.array([b"x"] * 60), {10: (STRUCT, {2555: (STRUCT, {})})})})
    with pytest.raises(UnsuitableBlockError, match=r"source.parquet: column 'c' has a logical type that is not known"):
        footer_of(unknown, tmp_path)


REFUSED: Final[Mapping[str, str]] = {
    "datapage_v1-corrupt-checksum.parquet": "CRC checksum",
    "incorrect_map_schema.parquet": "Map keys must be annotated as required",
    "int96_from_spark.parquet": "column a: times (INT96) that microseconds do not hold",
    "map_no_value.parquet": "MAP without values",
    "repeated_no_annotation.parquet": "it says 0 rows",
    "rle-dict-uncompressed-corrupt-checksum.parquet": "CRC checksum",
    "unknown-logical-type.parquet": "a logical type that is not known (number 2555",
}
HUGE: Final = "large_string_map.brotli.parquet"
"""One row of 2 GiB: tests/blocks/test_registration.py."""


def test_every_file_of_apache_is_merged_with_its_meaning_or_refused_by_name(tmp_path: Path) -> None:
    """As DuckDB reads them, where it can."""
    refused, same = {}, []
    for path in sorted(path for path in APACHE.rglob("*.parquet") if path.name != HUGE):
        data = path.read_bytes()
        try:
            footer = footer_of(data, tmp_path)
            check_writable("0", footer.schema, footer.meanings)
            check_spark(footer.parquet, footer.int96)
            ordered = [field.name for field in footer.schema if not pa.types.is_nested(field.type)]
            keys = [name for name in ordered if not pa.types.is_float16(footer.schema.field(name).type)]
            output = merge_of(data, settings=MergeSettings(sort_key=tuple((keys or footer.schema.names)[:1])))
        except SortKeyError:
            continue
        except (CompactionError, Int96Error) as error:
            refused[path.name] = str(error)
            continue
        try:
            before = as_duckdb_reads(data, folder=tmp_path)
        except duckdb.Error:
            continue
        assert as_duckdb_reads(output, folder=tmp_path) == before, path.name
        same.append(path.name)
    assert refused.keys() == REFUSED.keys()
    assert all(reason in refused[name] for name, reason in REFUSED.items())
    assert len(same) > 55


def geo(crs: str | None = None, *, box: Sequence[float] = (), kinds: Sequence[str] = ("Point",)) -> dict[str, Any]:
    """GeoParquet's key, as it says what the column g holds."""
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": list(kinds)}
    column |= {"crs": {"id": {"authority": "EPSG", "code": crs}}} if crs else {}
    return {
        "version": "1.1.0",
        "primary_column": "g",
        "columns": {"g": {**column, **({"bbox": [*box]} if box else {})}},
    }


def with_keys(start: int = 0, **keys: Any) -> bytes:
    rows = pa.table({KEY: range(start, start + 5), "g": [b"x"] * 5, "c": pa.array(["a", "b", "a", "b", "a"])})
    pairs = {
        key.encode(): value.encode() if isinstance(value, str) else json.dumps(value).encode()
        for key, value in keys.items()
    }
    sink = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata(pairs), sink)
    return sink.getvalue()


def keys_of(data: bytes) -> dict[bytes, bytes]:
    return dict(pq.read_metadata(io.BytesIO(data)).metadata)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((geo(box=[0, 0, 1, 1]), geo(box=[5, -1, 6, 0])), geo(box=[0, -1, 6, 1])),
        ((geo(box=[0, 0, 0, 1, 1, 1]), geo(box=[2, 2, 2, 3, 3, 3])), geo(box=[0, 0, 0, 3, 3, 3])),
        ((geo(box=[170, 0, -170, 1]), geo(box=[5, -1, 6, 0])), geo()),
        ((geo(box=[0, 0, 1, 1]), geo()), geo()),
        ((geo(kinds=["Point"]), geo(kinds=["LineString", "Point"])), geo(kinds=["LineString", "Point"])),
        ((geo(kinds=["Point"]), geo(kinds=[])), geo(kinds=[])),
    ],
)
def test_what_geoparquet_says_of_rows_is_joined(files: tuple[Any, Any], expected: Any) -> None:
    output = merge_of(
        *(with_keys(5 * place, geo=item, batch=f"{place}", owner="me") for place, item in enumerate(files))
    )
    found = keys_of(output)
    assert json.loads(found[b"geo"]) == expected
    assert (b"batch" in found, found[b"owner"]) == (False, b"me")
    assert json.loads(keys_of(merge_of(output, with_keys(20, geo=files[0])))[b"geo"])["columns"].keys() == {"g"}


@pytest.mark.parametrize("other", [{"geo": geo("25832")}, {}, {"geo": "no JSON"}])
def test_other_coordinates_are_another_class(other: dict[str, Any], tmp_path: Path) -> None:
    """Also bytes of which nothing says that they are geometries."""
    files = {"one": with_keys(geo=geo("4326")), "other": with_keys(**other)}
    classes = classes_of({name: footer_of(data, tmp_path).schema for name, data in files.items()})
    assert len(classes.classes()) == 2
    assert "binary geo EPSG:4326" in str(classes.conflicts[0])
    with pytest.raises(SchemaConflictError, match="column g: 0 has binary geo EPSG:4326"):
        merge_of(*files.values())


SPARK = "org.apache.spark."
NEW = {f"{SPARK}version": "4.1.0"}
OLD = NEW | {f"{SPARK}legacyDateTime": "", f"{SPARK}legacyINT96": "", f"{SPARK}timeZone": "Europe/Berlin"}


def dated(keys: Mapping[str, str], *, int96: bool = False, rows: int = 0) -> bytes:
    """A date and a time of the year 1500, and what Spark says of their calendar."""
    old = np.array([-171_000 + rows] * 3, "datetime64[D]")
    table = pa.table({KEY: [rows, rows + 1, rows + 2], "d": pa.array(old), "t": pa.array(old.astype("datetime64[us]"))})
    table = table.replace_schema_metadata({key.encode(): value.encode() for key, value in keys.items()})
    sink = io.BytesIO()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=int96)
    return sink.getvalue()


@pytest.mark.parametrize("int96", [False, True])
@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (OLD, OLD, True),
        (NEW, NEW | {f"{SPARK}version": "3.5.4"}, True),
        (NEW, {}, True),
        (OLD, NEW, False),
        (OLD, {}, False),
        (OLD, OLD | {f"{SPARK}timeZone": "UTC"}, False),
        (OLD, {f"{SPARK}version": "2.4.8", f"{SPARK}timeZone": "Europe/Berlin"}, True),
        ({f"{SPARK}version": "2.4.8"}, {f"{SPARK}version": "3.1.0"}, False),
    ],
)
def test_old_dates_of_another_calendar_are_another_class(
    one: Mapping[str, str], other: Mapping[str, str], alike: bool, int96: bool, tmp_path: Path
) -> None:
    """The rows are days of the calendar that the footer names: under another footer they would be other dates."""
    files = {"one": dated(one, int96=int96), "other": dated(other, int96=int96, rows=9)}
    schemas = {name: footer_of(data, tmp_path).schema for name, data in files.items()}
    classes = classes_of(schemas)
    assert len(classes.classes()) == (1 if alike else 2)
    if not alike:
        assert "of Spark before 3" in str(classes.conflicts[0])
        with pytest.raises(SchemaConflictError, match="of Spark before 3"):
            merge_of(*files.values())
        return
    output = footer_of(merge_of(*files.values()), tmp_path).schema
    assert classes_of(schemas | {"output": output}).classes() == (frozenset({"one", "other", "output"}),)


def test_what_pandas_says_is_kept_but_for_indexes_that_differ() -> None:
    """A range of rows is what the rows of a merge have anyway."""
    columns = [{"name": "c", "field_name": "c", "pandas_type": "categorical", "metadata": {"num_categories": 2}}]
    said = [
        {"index_columns": [{"kind": "range", "start": 0, "stop": stop, "step": 1}], "columns": columns, "creator": "x"}
        for stop in (5, 7)
    ]
    output = merge_of(*(with_keys(5 * place, pandas=item) for place, item in enumerate(said)))
    assert json.loads(keys_of(output)[b"pandas"]) == {**said[0], "index_columns": []}
    named = {**said[0], "index_columns": ["id"]}
    assert json.loads(keys_of(merge_of(*[with_keys(0, pandas=named)] * 2))[b"pandas"]) == named


def test_field_ids_stay_and_others_are_another_class(tmp_path: Path) -> None:
    """Iceberg and Protobuf know columns by them; nested ones too."""
    kind = pa.struct([pa.field("a", pa.list_(pa.field("element", pa.int64(), metadata={"PARQUET:field_id": "4"})))])
    nested = pa.array([{"a": [1, 2]}] * 60, kind)
    data = with_nodes(
        typed_file({"x": (pa.array(range(60)), {}), "s": (nested, {})}),
        {b"x": {9: (5, 7)}, b"s": {9: (5, 2)}, b"a": {9: (5, 3)}},
    )
    ids = {meaning.name: meaning.ids for meaning in footer_of(data, tmp_path).meanings.values()}
    assert ids == {"id": (), "x": (7,), "s.a.list.element": (2, 3, 4)}
    output = footer_of(merge_of(data, data), tmp_path)
    assert {meaning.name: meaning.ids for meaning in output.meanings.values()} == ids
    with pytest.raises(SchemaConflictError, match="column x: 0 has int64 id 7, 1 has int64 without a logical type"):
        merge_of(data, typed_file({"x": (pa.array(range(60)), {})}))


# What readers of Arrow are told that the columns are: what the inputs say, and nothing else.

ARROW_SCHEMA = b"ARROW:schema"


def out(*inputs: MergeInput) -> pq.ParquetFile:
    sink = io.BytesIO()
    merge(inputs, sink, MergeSettings(sort_key=(KEY,)))
    return pq.ParquetFile(io.BytesIO(sink.getvalue()))


def column(kind: pa.DataType, *, store_schema: bool = True, of: tuple[str, ...] = ("a", "b")) -> MergeInput:
    rows = pa.table({KEY: range(len(of)), "c": pa.array(of).cast(pa.string()).cast(kind)})
    return block(parquet_of(rows, key=(KEY,), store_schema=store_schema), str(kind))


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
    file = out(block(parquet_of(rows, key=(KEY,))))
    assert file.read()["c"].cast(pa.string()).to_pylist() == texts.to_pylist()


def test_a_column_of_nulls_only_says_nothing_of_the_type() -> None:
    nulls = block(parquet_of(pa.table({KEY: [5], "c": pa.nulls(1)}), key=(KEY,)))
    for name in ("uuid", "large_string", "dictionary of texts"):
        rows = pa.table({KEY: range(3), "c": TYPES[name].slice(0, 3)})
        file = out(nulls, block(parquet_of(rows, key=(KEY,))))
        assert file.schema_arrow.field("c").type == TYPES[name].type, name
