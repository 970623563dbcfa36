"""The merge's promises one by one: refusals, culprits, bounds of memory, shapes of what comes out."""

from __future__ import annotations

import io
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compaction.blocks.errors import (
    BlockNotSortedError,
    MergeMemoryError,
    SchemaConflictError,
    SortKeyError,
    UnreadableBlockError,
)
from compaction.blocks.fingerprint.proof import read_back
from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge import rounds
from compaction.blocks.merge.footers import MEBIBYTE, MIN_MEMORY, MergeInput, MergeResult, MergeSettings
from compaction.blocks.merge.kernel import merge
from compaction.blocks.model import RowFingerprint
from support.blocks.blocks import block, parquet_of

KEY = ("service", "time")
BY_KEY = MergeSettings(sort_key=KEY)


def table(rows: int, *, seed: int = 0, service: str = "s", **more: pa.Array) -> pa.Table:
    """Sorted by KEY: three services, times with repetitions."""
    random = np.random.default_rng(seed)
    services = np.sort(random.integers(0, 3, rows))
    times = random.integers(0, rows, rows)
    order = np.lexsort((times, services))
    columns = {
        "service": pa.array([f"{service}{n}" for n in services[order].tolist()]),
        "time": pa.array(times[order]),
        "value": pa.array(random.normal(size=rows)),
    }
    return pa.table({**columns, **more})


def run(*inputs: MergeInput, options: MergeSettings = BY_KEY) -> tuple[pq.ParquetFile, MergeResult]:
    """The output and the result."""
    sink = io.BytesIO()
    result = merge(inputs, sink, options, describe=lambda result: {"compaction.dev.rows": str(result.written.rows)})
    return pq.ParquetFile(io.BytesIO(sink.getvalue())), result


def test_output_declares_its_order_and_has_page_indexes_and_metadata() -> None:
    file, result = run(*(block(parquet_of(table(500, seed=n), key=KEY)) for n in range(3)))
    group = file.metadata.row_group(0)
    assert [(column.column_index, column.descending, column.nulls_first) for column in group.sorting_columns] == [
        (0, False, False),
        (1, False, False),
    ]
    assert all(group.column(leaf).has_offset_index and group.column(leaf).has_column_index for leaf in range(3))
    assert file.metadata.metadata[b"compaction.dev.rows"] == b"1500"
    assert file.schema_arrow.field("service").type == pa.string()
    assert result.sorted_first == ()
    assert result.encodings["service"].startswith("DICTIONARY")


def test_dictionary_of_a_row_group_holds_only_what_is_used() -> None:
    parts = [table(2000, service=letter) for letter in "abc"]
    options = MergeSettings(sort_key=KEY, max_group_rows=2000)
    sink = io.BytesIO()
    merge([block(parquet_of(part, key=KEY)) for part in parts], sink, options)
    data = sink.getvalue()
    groups = pq.ParquetFile(io.BytesIO(data), read_dictionary=["service"])
    assert [len(groups.read_row_group(n)["service"].chunk(0).dictionary) for n in range(3)] == [3, 3, 3]


def test_runs_that_do_not_overlap_are_read_one_after_the_other_and_not_sorted() -> None:
    parts = [table(300, seed=n, service="abcdef"[n]) for n in range(6)]
    events: list[str] = []
    inputs = []
    for n in (3, 1, 5, 0, 2, 4):
        data = parquet_of(parts[n], key=KEY)

        def opened(n: int = n, data: bytes = data) -> io.BytesIO:
            events.append("abcdef"[n])
            return io.BytesIO(data)

        inputs.append(MergeInput(name=str(n), open=opened))
    with mock.patch.object(rounds, "sorting_order", side_effect=AssertionError("sorted")):
        file, _ = run(*inputs)
    assert events[-6:] == ["a", "b", "c", "d", "e", "f"]
    assert file.read().equals(pa.concat_tables(parts))


@pytest.mark.parametrize("spread", [1, 7])
def test_key_ranges_are_a_partition(spread: int) -> None:
    """Rows with a null in the first key column are in the last part."""
    whole = pa.concat_tables([table(900), table(100, more=pa.nulls(100)).drop("more")])
    nulls = table(50).set_column(0, "service", pa.nulls(50, pa.string()))
    data = [parquet_of(whole.sort_by([(n, "ascending") for n in KEY]), key=KEY, row_group_size=50 * spread)]
    data.append(parquet_of(nulls.sort_by("time"), key=KEY))
    bounds = [None, b"s1", b"s1\x00", b"s2", None]
    parts = []
    for first, last in pairwise(bounds):
        parts.append(run(*(block(item, first=first, last=last) for item in data)))
    together, _ = run(*(block(item) for item in data))
    assert pa.concat_tables([file.read() for file, _ in parts]).equals(together.read())
    assert sum((result.read for _, result in parts), start=fingerprint(whole.slice(0, 0))) == fingerprint(
        together.read()
    )


def test_a_claim_of_order_that_does_not_hold_names_the_block() -> None:
    shuffled = table(500).take(np.random.default_rng(1).permutation(500))
    liar = block(parquet_of(shuffled, key=KEY), "liar")
    with pytest.raises(BlockNotSortedError, match="liar"):
        run(block(parquet_of(table(500), key=KEY), "honest"), liar)
    file, result = run(block(parquet_of(shuffled), "unsorted"))
    assert result.sorted_first == ("unsorted",)
    assert fingerprint(file.read()) == fingerprint(shuffled)


def test_order_with_nulls_first_is_another_order() -> None:
    rows = pa.table({"service": pa.array([None, "a", "b"]), "time": [1, 2, 3]})
    sink = io.BytesIO()
    pq.write_table(rows, sink, sorting_columns=[pq.SortingColumn(n, nulls_first=True) for n in range(2)])
    file, result = run(block(sink.getvalue(), "nulls first"))
    assert result.sorted_first == ("nulls first",)
    assert file.read()["service"].to_pylist() == ["a", "b", None]


def test_column_of_strings_that_an_older_block_lacks_is_null_there() -> None:
    """A column that is read as a dictionary must not be asked of a file that does not have it."""
    newer = table(300, more=pa.array(["x", "y", "z"] * 100))
    file, _ = run(block(parquet_of(newer, key=KEY)), block(parquet_of(table(200, seed=1), key=KEY)))
    assert file.metadata.row_group(0).column(3).statistics.null_count == 200
    assert fingerprint(file.read()) == fingerprint(newer) + fingerprint(table(200, seed=1))


@pytest.mark.parametrize(
    ("older", "newer", "values"),
    [
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.string()), ("a", pa.int64())]), ({"a": 1}, {"b": "x"})),
        (pa.list_(pa.struct([("a", pa.int8())])), pa.list_(pa.struct([("a", pa.int8()), ("b", pa.bool_())])), (
            [{"a": 1}, None], [{"b": True}],
        )),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32()), ([("k", 1)], [("k", 1 << 20)])),
        (pa.struct([("a", pa.list_(pa.string()))]), pa.struct([("a", pa.large_list(pa.large_string()))]), (
            {"a": ["x"]}, {"a": ["y", None]},
        )),
        (pa.decimal128(5, 2), pa.decimal128(20, 2), (Decimal("1.25"), Decimal("12345678901234567.89"))),
    ],
)  # fmt: skip
def test_fields_that_were_added_and_types_that_were_widened_keep_every_value(
    older: pa.DataType, newer: pa.DataType, values: tuple[object, object]
) -> None:
    """Inside of structs, lists and maps too; rows have the content that they were registered with."""
    tables = [
        table(90, seed=n, more=pa.array([value, None, value] * 30, kind))
        for n, (kind, value) in enumerate(zip((older, newer), values, strict=True))
    ]
    file, result = run(*(block(parquet_of(item, key=KEY), str(n)) for n, item in enumerate(tables)))
    assert fingerprint(file.read()) == result.read == sum(map(fingerprint, tables), RowFingerprint())
    assert file.metadata.num_rows == 180


REQUIRED = pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("t", pa.string())])
DEEP = pa.struct([pa.field("s", REQUIRED, nullable=False), pa.field("d", pa.decimal256(50, 2), nullable=False)])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (REQUIRED, {"n": 1, "t": "x"}),
        (DEEP, {"s": {"n": 1, "t": None}, "d": Decimal("1.25")}),
        (pa.struct([pa.field("l", pa.list_(REQUIRED), nullable=False)]), {"l": [{"n": 1, "t": "x"}]}),
        (pa.struct([pa.field("m", pa.map_(pa.string(), REQUIRED), nullable=False)]), {"m": [("k", {"n": 1, "t": ""})]}),
        (pa.struct([pa.field("f", pa.list_(pa.float32(), 2), nullable=False)]), {"f": [1.0, 2.0]}),
        (pa.struct([pa.field("c", pa.dictionary(pa.int8(), pa.string()), nullable=False)]), {"c": "x"}),
    ],
)
def test_a_struct_with_required_fields_that_older_blocks_lack_is_null_there(kind: pa.DataType, value: object) -> None:
    """Added as a column, and inside of a struct, of the elements of a list and of the values of a map."""
    before, after = pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("x", kind)])
    # pyarrow cannot read a list of a fixed size that is required in a struct that is null, whoever wrote it.
    sized = pa.types.is_fixed_size_list(kind.field(0).type)
    newer = [{"a": 2, "x": value}] * 3 if sized else [{"a": 2, "x": value}, {"a": 3, "x": None}, None]
    older = [{"a": 4}, None, {"a": 5}]
    tables = [
        pa.table(
            {
                "k": [start, start + 2, start + 4],
                "s": pa.array(values, struct),
                "l": pa.array([[value, values[0]] for value in values], pa.list_(struct)),
                "m": pa.array([[("k", value)] for value in values], pa.map_(pa.string(), struct)),
                **({"x": pa.array([value, value if sized else None, value], kind)} if struct is after else {}),
            }
        )
        for start, values, struct in ((0, newer, after), (1, older, before))
    ]
    inputs = [block(parquet_of(item, key=("k",)), str(n)) for n, item in enumerate(tables)]
    file, result = run(*inputs, options=MergeSettings(sort_key=("k",)))
    rows = file.read()
    assert fingerprint(rows) == result.read == sum(map(fingerprint, tables), RowFingerprint())
    assert rows["x"].is_null().to_pylist() == [False, True, not sized, True, False, True]
    children = file.schema_arrow.field("x").type
    kept = [not field.nullable and not pa.types.is_fixed_size_list(field.type) for field in kind]
    assert kept == [not field.nullable for field in children]


def test_types_without_a_common_one_are_refused_by_name() -> None:
    text = table(10).set_column(2, "value", pa.array(["x"] * 10))
    with pytest.raises(SchemaConflictError, match=r"column value: one has double, two has string"):
        run(block(parquet_of(table(10)), "one"), block(parquet_of(text), "two"))
    with pytest.raises(SortKeyError, match="nowhere"):
        run(block(parquet_of(table(10))), options=MergeSettings(sort_key=("nowhere",)))
    lists = pa.table({"service": pa.array([["a"]])})
    with pytest.raises(SortKeyError, match="no order"):
        run(block(parquet_of(lists)), options=MergeSettings(sort_key=("service",)))


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "page", "missing"])
def test_damaged_input_is_named(damage: str, tmp_path: Path) -> None:
    good = parquet_of(table(5000), key=KEY, write_page_checksum=True)
    bad = {
        "truncated": good[:-100],
        "foreign": b"not parquet" * 100,
        "empty": b"",
        "page": good[:400] + bytes(64) + good[464:],
        "missing": good,
    }[damage]
    culprit = block(bad, "culprit")
    if damage == "missing":
        culprit = MergeInput(name="culprit", open=lambda: str(tmp_path / "gone.parquet"))
    with pytest.raises(UnreadableBlockError, match="culprit"):
        run(block(good, "good"), culprit)


def test_nothing_but_empty_blocks_is_an_empty_block() -> None:
    file, result = run(*(block(parquet_of(table(0), key=KEY)) for _ in range(3)))
    assert file.metadata.num_rows == result.written.rows == 0
    assert file.schema_arrow.names == ["service", "time", "value"]


def test_bloom_filters_are_kept() -> None:
    bloom = parquet_of(table(500), key=KEY, bloom_filter_options={"service": True})
    file, _ = run(block(bloom), block(parquet_of(table(500, seed=1), key=KEY)))
    group = file.metadata.row_group(0)
    assert group.column(0).bloom_filter_offset is not None
    assert group.column(1).bloom_filter_offset is None


def test_row_groups_are_sized_by_bytes() -> None:
    options = MergeSettings(sort_key=KEY, row_group_bytes=256 << 10)
    file, _ = run(*(block(parquet_of(table(60_000, seed=n), key=KEY)) for n in range(4)), options=options)
    sizes = [
        sum(group.column(leaf).total_compressed_size for leaf in range(3))
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups - 1))
    ]
    assert sizes
    assert all(180 << 10 < size < 340 << 10 for size in sizes)


def test_duplicates_are_counted_and_named() -> None:
    old, new = table(300), table(300).set_column(2, "value", pa.array([0.0] * 300))
    file, result = run(
        block(parquet_of(old, key=KEY), "old"),
        block(parquet_of(new, key=KEY), "new"),
        options=MergeSettings(sort_key=KEY, deduplicate=True),
    )
    keys = set(zip(old["service"].to_pylist(), old["time"].to_pylist(), strict=True))
    assert file.metadata.num_rows == len(keys)
    assert file.read()["value"].to_pylist() == [0.0] * len(keys)
    assert result.duplicates.fingerprint.rows == 600 - len(keys)
    assert set(result.duplicates.examples) <= keys
    assert result.read - result.duplicates.fingerprint == fingerprint(file.read()) == result.written


def wide(rows: int, *, seed: int) -> pa.Table:
    """Values that no dictionary helps with, 200 bytes each."""
    random = np.random.default_rng(seed)
    return table(rows, seed=seed, text=pa.array([random.bytes(100).hex() for _ in range(rows)]))


@pytest.mark.parametrize(("files", "rows", "is_sorted"), [(12, 20_000, True), (60, 2_000, True), (2, 60_000, False)])
def test_memory_stays_within_the_limit(files: int, rows: int, is_sorted: bool, tmp_path: Path) -> None:
    """Measured on Arrow's pool; the inputs are several times the limit, and files so that they are not in the pool."""
    inputs, total, size = [], fingerprint(table(0)), 0
    for n in range(files):
        path = tmp_path / f"{n}.parquet"
        rows_of = (
            wide(rows, seed=n) if is_sorted else wide(rows, seed=n).take(np.random.default_rng(n).permutation(rows))
        )
        pq.write_table(rows_of, path, row_group_size=2_000)
        total, size = total + fingerprint(rows_of), size + rows_of.nbytes
        inputs.append(MergeInput(name=str(n), open=partial(str, path), sort_key=KEY if is_sorted else ()))
    del rows_of
    limit = MIN_MEMORY
    assert size > 1.5 * limit
    options = MergeSettings(sort_key=KEY, memory_bytes=limit, scratch=tmp_path)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        result = merge(inputs, str(tmp_path / "out"), options)
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() <= limit, f"{pool.max_memory() / MEBIBYTE:.1f} MiB"
    assert result.read == total == fingerprint(pq.read_table(tmp_path / "out"))
    assert not list(tmp_path.glob("merge-*"))


LONG = "x" * (64 << 10)
EXPANDING: dict[str, tuple[dict[str, object], pa.Array]] = {
    "texts that share their beginnings": ({"column_encoding": {"c": "DELTA_BYTE_ARRAY"}}, pa.array([LONG] * 1500)),
    "a text that repeats": ({"use_dictionary": ["c"]}, pa.array([*(str(n) for n in range(900)), *[LONG] * 600])),
    "nulls": ({"use_dictionary": ["c"]}, pa.nulls(1_000_000, pa.decimal128(38, 2))),
}


@pytest.mark.parametrize("name", EXPANDING)
def test_memory_stays_within_the_limit_where_files_are_much_smaller_than_their_rows(name: str, tmp_path: Path) -> None:
    """Some KB that are 100 MB in memory: what a footer says of texts is too little."""
    options, values = EXPANDING[name]
    path = tmp_path / "source.parquet"
    rows = pa.table({"k": range(len(values)), "c": values})
    pq.write_table(rows, path, row_group_size=len(values), compression="zstd", **{"use_dictionary": False, **options})
    expected = fingerprint(rows)
    del rows
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        inputs = [MergeInput(name="a", open=lambda: str(path)), MergeInput(name="b", open=lambda: str(path))]
        limit = MergeSettings(sort_key=("k",), memory_bytes=2 * MIN_MEMORY)
        result = merge(inputs, str(tmp_path / "out"), limit)
        assert result.written == expected + expected == read_back("out", lambda: str(tmp_path / "out"))
    finally:
        pa.set_memory_pool(before)
    assert 0 < pool.max_memory() < 5 * MIN_MEMORY, f"{pool.max_memory() / MEBIBYTE:.1f} MiB"


def test_a_row_or_page_larger_than_the_limit_is_refused_by_name(tmp_path: Path) -> None:
    """Before any of it is decoded: equal numbers in one list, a page of equal bytes, Apache's map of 2 GiB in 4 KB."""
    lists = pa.ListArray.from_arrays([0, 0, 4_000_000], pa.array(np.zeros(4_000_000, np.int64)))
    page = pa.array([LONG] * 500)
    for name, column, options in (("l.list.element", lists, {}), ("l", page, {"use_dictionary": False})):
        data = parquet_of(pa.table({"k": range(len(column)), "l": column}), key=("k",), compression="zstd", **options)
        with pytest.raises(
            MergeMemoryError, match=rf"^small: takes \d+ bytes of memory for a row or page of column {name},"
        ):
            run(block(data, "small"), options=MergeSettings(sort_key=("k",), memory_bytes=MIN_MEMORY))
    huge = "../shared/fixtures/parquet-testing/data/large_string_map.brotli.parquet"
    with pytest.raises(MergeMemoryError, match=r"^huge: takes \d+ bytes of memory for a row or page of column arr"):
        run(MergeInput(name="huge", open=lambda: huge), options=MergeSettings(sort_key=("arr",)))


def test_a_row_group_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(MergeMemoryError, match="huge"):
        run(
            block(parquet_of(wide(60_000, seed=1), key=KEY, row_group_size=60_000), "huge"),
            options=MergeSettings(sort_key=KEY, memory_bytes=MIN_MEMORY),
        )


def test_a_column_whose_values_do_not_repeat_outgrows_its_dictionary() -> None:
    """Each file alone looks repetitive; together they do not fit. Old codes stay readable, new rows are plain."""
    parts = [
        table(2_000, seed=n, text=pa.array([f"{n}-{row % 1000}-" + "x" * 1000 for row in range(2_000)]))
        for n in range(6)
    ]
    options = MergeSettings(sort_key=KEY, memory_bytes=MIN_MEMORY)
    file, result = run(*(block(parquet_of(part, key=KEY, compression="none")) for part in parts), options=options)
    assert result.read == fingerprint(pa.concat_tables(parts)) == fingerprint(file.read())
