"""What a fingerprint must not see, and what it must."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.blocks.errors import UnsupportedColumnError
from compaction.blocks.fingerprint.row_hashes import SLICE_ROWS, Fingerprinter, fingerprint
from compaction.blocks.fingerprint.values import SHORT
from compaction.blocks.model import RowFingerprint
from support.blocks.parquet_types import TYPES
from support.timing import examples

SCHEMA = pa.schema(
    [
        ("service", pa.string()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("value", pa.int32()),
        ("ratio", pa.float32()),
        ("labels", pa.list_(pa.string())),
        ("where", pa.struct([("host", pa.string()), ("line", pa.int16())])),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("cost", pa.decimal128(20, 2)),
        ("ok", pa.bool_()),
    ]
)
TEXTS = st.one_of(st.sampled_from(["", "a", "b", "\0", "a\0"]), st.text(max_size=2 * SHORT))
ROWS = st.fixed_dictionaries(
    {
        "service": st.none() | TEXTS,
        "time": st.none() | st.integers(-(2**50), 2**50),
        "value": st.none() | st.integers(-(2**31), 2**31 - 1),
        "ratio": st.none() | st.floats(width=32),
        "labels": st.none() | st.lists(st.none() | TEXTS, max_size=3),
        "where": st.none()
        | st.fixed_dictionaries({"host": st.none() | TEXTS, "line": st.none() | st.integers(-(2**15), 2**15 - 1)}),
        "tags": st.none()
        | st.dictionaries(TEXTS, st.none() | st.integers(0, 5), max_size=3).map(lambda d: list(d.items())),
        "cost": st.none() | st.decimals(-(10**17), 10**17, places=2),
        "ok": st.none() | st.booleans(),
    }
)  # fmt: skip


def table(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def key(value: Any) -> Any:
    """A value as something whose equality is ours: all NaN are one, 0.0 is not -0.0."""
    if isinstance(value, float):
        return ("nan",) if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list | tuple):
        return tuple(key(item) for item in value)
    if isinstance(value, dict):
        return tuple((name, key(item)) for name, item in value.items())
    return value


def plain(rows: pa.Table) -> list[str]:
    return sorted(repr(key(row)) for row in rows.to_pylist())


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=6), st.lists(ROWS, max_size=6))
def test_equal_exactly_when_the_rows_are_equal(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    left, right = table(one), table(other)
    assert (fingerprint(left) == fingerprint(right)) == (plain(left) == plain(right))


@settings(max_examples=examples(40))
@given(st.lists(ROWS, min_size=1, max_size=12), st.randoms(use_true_random=False), st.integers(1, 5))
def test_order_of_rows_and_columns_and_chunks_say_nothing(rows: list[dict[str, Any]], chance: Any, chunk: int) -> None:
    expected = fingerprint(table(rows))
    chance.shuffle(rows)
    names = list(SCHEMA.names)
    chance.shuffle(names)
    mixed = table(rows).select(names)
    assert fingerprint(mixed) == expected
    assert fingerprint(pa.Table.from_batches(mixed.to_batches(max_chunksize=chunk))) == expected
    assert fingerprint(iter(mixed.to_batches(max_chunksize=chunk))) == expected
    # An offset into larger buffers, as slices have it.
    padded = pa.concat_tables([mixed, mixed, mixed]).combine_chunks().slice(len(rows), len(rows))
    assert fingerprint(padded) == expected


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=8), st.lists(ROWS, max_size=8))
def test_fingerprints_add_up_like_rows(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    together = fingerprint(table(one + other))
    assert fingerprint(table(one)) + fingerprint(table(other)) == together
    assert together - fingerprint(table(other)) == fingerprint(table(one))
    assert RowFingerprint.parse(str(together)) == together
    grown = Fingerprinter()
    grown.update(table(one))
    grown.update(table(other))
    assert grown.value == together


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=12))
def test_encodings_say_nothing(rows: list[dict[str, Any]]) -> None:
    plain_rows = table(rows)
    expected = fingerprint(plain_rows)
    coded = plain_rows
    for name in ("service", "value", "time", "ok", "ratio"):
        position = coded.schema.get_field_index(name)
        column = coded[name].combine_chunks()
        whole = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        # Nulls in the indices for one, in the dictionary itself for the other.
        how = "encode" if name == "value" else "mask"
        coded = coded.set_column(position, name, whole.dictionary_encode(null_encoding=how))
    assert fingerprint(coded) == expected
    wide = plain_rows.set_column(0, "service", plain_rows["service"].cast(pa.large_string()))
    assert fingerprint(wide) == expected
    view = plain_rows.set_column(0, "service", plain_rows["service"].cast(pa.string_view()))
    assert fingerprint(view) == expected
    file = io.BytesIO()
    pq.write_table(plain_rows, file, row_group_size=5, compression="zstd")
    assert fingerprint(pq.read_table(file, read_dictionary=["service"])) == expected


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=8))
def test_added_columns_of_nulls_say_nothing(rows: list[dict[str, Any]]) -> None:
    before = table(rows)
    struct = pa.struct([*SCHEMA.field("where").type, pa.field("zone", pa.string())])
    fields = [SCHEMA.field(name).with_type(struct) if name == "where" else SCHEMA.field(name) for name in SCHEMA.names]
    added = [("new", pa.string()), ("void", pa.null()), ("more", pa.list_(pa.int64()))]
    after = table(rows, pa.schema([*fields, *(pa.field(name, kind) for name, kind in added)]))
    assert fingerprint(after) == fingerprint(before)


WIDER = {
    "value": pa.int64(),
    "ratio": pa.float64(),
    "time": pa.timestamp("ns", tz="UTC"),
    "cost": pa.decimal256(50, 2),
    "labels": pa.large_list(pa.large_string()),
    "where": pa.struct([("host", pa.large_string()), ("line", pa.int64())]),
}


@settings(max_examples=examples(40))
@given(st.lists(ROWS, max_size=8))
@pytest.mark.parametrize("name", WIDER)
def test_widened_types_say_nothing(name: str, rows: list[dict[str, Any]]) -> None:
    before = table(rows)
    position = SCHEMA.get_field_index(name)
    after = before.set_column(position, name, before[name].cast(WIDER[name]))
    assert fingerprint(after) == fingerprint(before)


def one(value: Any, kind: pa.DataType, name: str = "c") -> RowFingerprint:
    return fingerprint(pa.table({name: pa.array([value], kind)}))


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@given(st.integers(0, 127))
def test_every_width_of_an_integer_is_one(value: int) -> None:
    assert len({one(value, kind) for kind in INTEGERS}) == 1


@given(st.integers(-128, -1))
def test_no_negative_number_is_a_large_one(value: int) -> None:
    assert len({one(value, kind) for kind in INTEGERS[:4]}) == 1
    for kind in INTEGERS[4:]:
        assert one(value + (1 << kind.bit_width), kind) != one(value, pa.int64())


DIFFERENT = [
    (None, pa.int64()), (0, pa.int64()), (1, pa.int64()), (-1, pa.int64()), (2**64 - 1, pa.uint64()),
    (0.0, pa.float64()), (-0.0, pa.float64()), (1.0, pa.float64()), (2.0, pa.float64()), (math.nan, pa.float64()),
    (math.inf, pa.float64()), ("", pa.string()), ("\0", pa.string()), ("\0\0", pa.string()), ("0", pa.string()),
    ("x" * SHORT, pa.string()), ("x" * (SHORT + 1), pa.string()), ("x" * (SHORT + 1) + "\0", pa.string()),
    (False, pa.bool_()), (True, pa.bool_()), (0, pa.timestamp("us")), (0, pa.timestamp("us", "UTC")),
    (0, pa.date32()), (1, pa.date32()), (0, pa.duration("us")), (0, pa.time64("us")),
    (Decimal("0.0"), pa.decimal128(9, 1)), (Decimal("0.1"), pa.decimal128(9, 1)),
    (Decimal("0.10"), pa.decimal128(9, 2)), (Decimal(-1), pa.decimal128(38, 0)),
    (Decimal(2**64 - 1), pa.decimal128(38, 0)), (Decimal(2**64), pa.decimal128(38, 0)),
    *((value, pa.list_(pa.int64())) for value in ([], [None], [0], [0, 1], [1, 0])),
    *((value, pa.list_(pa.list_(pa.int64()))) for value in ([[0], [1]], [[0, 1]], [[0, 1], []], [[], [0, 1]])),
    ({"a": None}, pa.struct([("a", pa.int64())])), ({"a": 0}, pa.struct([("a", pa.int64())])),
    ({"b": 0}, pa.struct([("b", pa.int64())])), ({"a.b": 0}, pa.struct([("a.b", pa.int64())])),
    ({"a": {"b": 0}}, pa.struct([("a", pa.struct([("b", pa.int64())]))])),
    ([("a", 1)], pa.map_(pa.string(), pa.int64())), ([("a", None)], pa.map_(pa.string(), pa.int64())),
    ([], pa.map_(pa.string(), pa.int64())), ([("a", 1), ("b", 2)], pa.map_(pa.string(), pa.int64())),
    ([("a", 2), ("b", 1)], pa.map_(pa.string(), pa.int64())),
]  # fmt: skip


def test_different_values_differ() -> None:
    prints = [one(value, kind) for value, kind in DIFFERENT]
    assert len(set(prints)) == len(prints)
    assert len({one(1, pa.int64(), name) for name in ("a", "b", "a.b", "")}) == 4


def test_equal_values_of_different_types_are_one() -> None:
    assert one(b"ab", pa.binary()) == one("ab", pa.string()) == one(b"ab", pa.binary(2))
    assert one(1, pa.timestamp("s")) == one(1_000_000_000, pa.timestamp("ns"))
    assert one(1, pa.date32()) == one(86_400_000, pa.date64())
    assert one(Decimal("-1.5"), pa.decimal32(5, 1)) == one(Decimal("-1.5"), pa.decimal256(60, 1))
    assert one([1, 2], pa.list_(pa.int8())) == one([1, 2], pa.list_(pa.int64(), 2))
    assert one(1.5, pa.float16()) == one(1.5, pa.float64())
    assert one([1, 2], pa.list_(pa.int8())) == one([1, 2], pa.list_view(pa.int16()))


def test_a_value_that_moves_to_another_row_or_column_is_seen() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    swapped = [{"a": 1, "b": 4}, {"a": 3, "b": 2}]
    turned = [{"a": 2, "b": 1}, {"a": 3, "b": 4}]
    prints = {fingerprint(pa.Table.from_pylist(item)) for item in (rows, swapped, turned)}
    assert len(prints) == 3


def test_all_nan_are_one_and_bits_under_nulls_are_none() -> None:
    quiet = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert fingerprint(pa.table({"c": quiet})) == fingerprint(pa.table({"c": [math.nan, math.nan]}))
    hidden = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([5, 99], np.int64))])
    assert fingerprint(pa.table({"c": hidden})) == fingerprint(pa.table({"c": pa.array([5, None])}))


def test_what_lies_under_a_null_list_or_struct_says_nothing() -> None:
    lists = pa.ListArray.from_arrays([0, 2, 4], pa.array([1, 2, 3, 4]), mask=pa.array([False, True]))
    assert fingerprint(pa.table({"c": lists})) == fingerprint(pa.table({"c": pa.array([[1, 2], None])}))
    struct = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array([False, True]))
    assert fingerprint(pa.table({"c": struct})) == fingerprint(pa.table({"c": pa.array([{"a": 1}, None])}))
    maps = pa.MapArray.from_arrays([0, 1, 2], ["a", "b"], [1, 2], mask=pa.array([False, True]))
    assert maps.offsets.to_pylist() == [0, 1, 2]
    assert fingerprint(pa.table({"c": maps})) == fingerprint(pa.table({"c": pa.array([[("a", 1)], None], maps.type)}))


def test_rows_beyond_one_slice_and_texts_that_repeat() -> None:
    count = 2 * SLICE_ROWS + 7
    names = pa.array([None if i % 11 == 0 else f"service-{i % 50}" for i in range(count)])
    values = pa.array(range(count))
    expected = fingerprint(pa.table({"s": names, "v": values}))
    by_row = [
        fingerprint(pa.table({"s": names.slice(i, 1000), "v": values.slice(i, 1000)})) for i in range(0, count, 1000)
    ]
    assert sum(by_row, RowFingerprint()) == expected
    assert fingerprint(pa.table({"s": names.dictionary_encode(), "v": values})) == expected
    assert fingerprint(pa.table({"s": pa.compute.run_end_encode(names), "v": values})) == expected
    sparse = pa.DictionaryArray.from_arrays([3, None], pa.array([f"{i}" for i in range(1000)]))
    assert fingerprint(pa.table({"s": sparse})) == fingerprint(pa.table({"s": pa.array(["3", None])}))


def test_another_dictionary_under_the_same_column_is_noticed() -> None:
    grown = Fingerprinter()
    for words in (["a", "b"], ["b", "a"], ["c", "d"]):
        grown.update(pa.table({"s": pa.DictionaryArray.from_arrays([0, 1, 0, 1], words)}))
    flat = ["a", "b", "a", "b", "b", "a", "b", "a", "c", "d", "c", "d"]
    assert grown.value == fingerprint(pa.table({"s": flat}))


def test_dictionaries_that_are_looked_up_together_are_what_each_of_them_is() -> None:
    """Small ones share a table, large ones have their own; nulls, other widths of indices, other dictionaries later."""
    random, count = np.random.default_rng(7), 3 * SLICE_ROWS
    grown, plain, widths = Fingerprinter(), [], (np.int8, np.int16, np.int32, np.int64, np.uint8)
    for offset in (0, 5):
        columns = {}
        for place, (size, width) in enumerate(zip((3, 40, 2000, 1, 60), widths, strict=True)):
            missing = random.integers(0, 9, count) == 0 if place % 2 else np.zeros(count, bool)
            indices = pa.array((random.zipf(1.3, count) % size).astype(width), mask=missing)
            words = pa.array([f"{place}-{word + offset}" for word in range(size)])
            columns[f"c{place}"] = pa.DictionaryArray.from_arrays(indices, words)
        columns["value"] = pa.array(random.integers(0, 100, count))
        table = pa.table(columns)
        grown.update(table)
        plain.append(pa.table({name: column.cast(pa.string()) for name, column in columns.items() if name != "value"}))
        plain[-1] = plain[-1].append_column("value", columns["value"])
    assert grown.value == sum((fingerprint(item) for item in plain), RowFingerprint())


def test_schemas_may_change_from_batch_to_batch() -> None:
    grown = Fingerprinter()
    grown.update(pa.table({"a": pa.array([1], pa.int32())}))
    grown.update(pa.table({"b": pa.array(["x"]).dictionary_encode(), "a": pa.array([2], pa.int64())}))
    assert grown.value == fingerprint(pa.table({"a": [1, 2], "b": [None, "x"]}))


def test_columns_without_a_defined_hash_are_refused_by_name() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(UnsupportedColumnError, match=r"'c'.*union"):
        fingerprint(pa.table({"c": union}))
    with pytest.raises(UnsupportedColumnError, match="two columns"):
        fingerprint(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["c", "c"]))


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("index", [-1, 2, 3, 100])
def test_an_index_outside_of_its_dictionary_is_no_null(kind: type, index: int) -> None:
    indices = pa.array(np.array([0, index], kind))
    broken = pa.DictionaryArray.from_arrays(indices, ["a", "b"], safe=False)
    with pytest.raises(UnsupportedColumnError, match="outside of its dictionary"):
        fingerprint(pa.table({"c": broken}))


def _pattern(values: pa.Array, pattern: str, count: int) -> pa.Array:
    """`count` rows of a type: indices into some values of it, the last of which is null."""
    places = {
        "nulls": np.full(count, -1),
        "one at the end": np.where(np.arange(count) == count - 1, 0, -1),
        "all equal": np.zeros(count, int),
        "all that there are": np.arange(count) % (len(values) - 1),
    }[pattern]
    viewed = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(values.type)  # no kernel takes views
    plain_values = values.cast(viewed) if viewed else values
    return plain_values.take(pa.array(places % len(values))).cast(values.type)


@pytest.mark.parametrize("pattern", ["nulls", "one at the end", "all equal", "all that there are"])
def test_every_type_in_blocks_of_any_size_is_the_sum_of_its_rows(pattern: str) -> None:
    """Around the sizes from which on texts are looked up, rows are cut and texts are hashed in blocks, as a column and
    inside of lists, structs and dictionaries: what is hashed in parts of 700 rows is what is hashed at once.
    """
    for name, column in TYPES.items():
        values = column.slice(0, 40)
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if not pa.types.is_dictionary(values.type):
            values = pa.concat_arrays([values, pa.nulls(1, values.type)])
        counts = (2048, SLICE_ROWS + 1) if pa.types.is_string(values.type) else (2049,)
        for count in counts:
            rows = _pattern(values, pattern, count)
            texts = name in ("string", "binary")
            nested = [pa.StructArray.from_arrays([rows], ["s"]), pa.ListArray.from_arrays([0, 0, count], rows)]
            for whole in [rows, *(nested if texts else ())]:
                found = fingerprint(pa.table({"c": whole}))
                parts = pa.table({"c": whole}).to_batches(max_chunksize=700)
                assert found == fingerprint(parts), (name, count)
                others = [_pattern(values, other, count) for other in ("nulls", "one at the end") if other != pattern]
                assert name == "null" or found not in [fingerprint(pa.table({"c": other})) for other in others], name


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.list_(pa.string())])
def test_a_long_text_in_a_large_dictionary_is_not_repeated(kind: pa.DataType) -> None:
    """10,000 rows of a text of a mebibyte, as an entry of a dictionary with many: they would be ten gigabytes."""
    texts = pa.array([*(f"{n}" for n in range(40_000)), "x" * (1 << 20)])
    dictionary = texts.cast(kind) if not pa.types.is_list(kind) else texts
    coded = pa.DictionaryArray.from_arrays(pa.array(np.full(10_000, 40_000), pa.int32()), dictionary)
    rows = coded if dictionary is not texts else pa.ListArray.from_arrays([0, 10_000], coded)
    usual, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        assert fingerprint(pa.table({"c": rows})).rows == len(rows)
    finally:
        pa.set_memory_pool(usual)
    assert 0 < counted.max_memory() < 1 << 26


BEYOND = 253_402_300_799


@pytest.mark.parametrize("kind", [pa.timestamp, pa.duration])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_time_beyond_nanoseconds_is_not_what_it_overflows_to(kind: Any, sign: int) -> None:
    """9999-12-31 in microseconds is not the day in 1816 that its nanoseconds are, and one with itself in seconds."""
    scales = {"s": 1, "ms": 10**3, "us": 10**6}
    same = {unit: pa.array([sign * BEYOND * scale, 5 * scale], kind(unit)) for unit, scale in scales.items()}
    overflown = (sign * BEYOND * 10**9 + 2**63) % 2**64 - 2**63
    found = {str(fingerprint(pa.table({"c": item}))) for item in same.values()}
    assert len(found) == 1
    assert str(fingerprint(pa.table({"c": pa.array([overflown, 5 * 10**9], kind("ns"))}))) not in found
    far = pa.array([sign * BEYOND * 10**6 - sign * 2**61, 5 * 10**6], kind("us"))
    assert str(fingerprint(pa.table({"c": far}))) not in found


def test_hashes_look_random() -> None:
    """Neighbouring numbers, and floats whose low bits are all zero, flip half of the digest's bits."""
    for values in (range(2000), [float(i) for i in range(2000)], [f"{i}" for i in range(2000)]):
        digests = [fingerprint(pa.table({"c": [value]})).digest for value in values]
        assert len(set(digests)) == len(digests)
        for bit in range(64):
            assert 800 < sum(digest >> bit & 1 for digest in digests) < 1200
        flips = [(item ^ other).bit_count() for item, other in pairwise(digests)]
        assert 31 < sum(flips) / len(flips) < 33


def test_it_is_what_it_was() -> None:
    """Fingerprints are stored: another digest for the same rows needs another name in `ALGORITHM`."""
    rows = [
        {"service": "a", "time": 1, "value": -5, "ratio": 0.5, "labels": ["x", None],
         "where": {"host": "h" * 200, "line": 1}, "tags": [("k", 1)], "cost": Decimal("1.25"), "ok": True},
        dict.fromkeys(SCHEMA.names),
    ]  # fmt: skip
    assert str(fingerprint(table(rows))) == "2:305810d9af7e762e"
    assert str(fingerprint(table([]))) == f"0:{0:016x}"
