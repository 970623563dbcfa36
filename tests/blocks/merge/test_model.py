"""The merge equals a plain-Python model: for any schema, key, nulls, duplicates, row groups and batch sizes."""

from __future__ import annotations

import datetime
import decimal
import io
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge import budget, columns, kernel, rounds
from compaction.blocks.merge.columns import Columns, MemoLimits, Rows
from compaction.blocks.merge.footers import MEBIBYTE, MergeInput, MergeResult, MergeSettings, read_footer
from compaction.blocks.merge.kernel import WHOLE, key_ranges, merge
from compaction.blocks.merge.sorting import sorted_rows
from support.blocks.blocks import Row, block, keep_last, merged, order_of, parquet_of, shown, table_of
from support.timing import examples

BASE = datetime.datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))
WORDS = st.sampled_from(["", "a", "b", "ab", "é", "z" * 40, "\x00", "\U0001f600", "\uffff"])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1, 2, 3]),
    pa.int32(): st.integers(-3, 3),
    pa.uint64(): st.sampled_from([0, 1, 2**64 - 1, 2**63]),
    pa.uint8(): st.integers(0, 4),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf")]),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, float("nan")]),
    pa.string(): WORDS,
    pa.binary(): st.sampled_from([b"", b"\xff", b"\x00", b"ab"]),
    pa.binary(2): st.sampled_from([b"aa", b"\xff\x00", b"ab"]),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.integers(0, 5).map(lambda n: BASE + datetime.timedelta(microseconds=n)),
    pa.timestamp("ms", "UTC"): st.integers(0, 5).map(lambda n: BASE + datetime.timedelta(milliseconds=n)),
    pa.timestamp("s", "UTC"): st.integers(0, 5).map(lambda n: BASE + datetime.timedelta(seconds=n)),
    pa.date32(): st.integers(0, 5).map(lambda n: datetime.date(2026, 1, 1) + datetime.timedelta(days=n)),
    pa.decimal128(9, 2): st.integers(-200, 200).map(lambda n: decimal.Decimal(n).scaleb(-2)),
}
NESTED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.list_(pa.string()): st.lists(st.none() | WORDS, max_size=3),
    pa.struct([("x", pa.int64()), ("y", pa.string())]): st.tuples(st.integers(0, 3), WORDS).map(
        lambda item: {"x": item[0], "y": item[1]}
    ),
}
NARROWER = {pa.int64(): pa.int32(), pa.float64(): pa.float32(), pa.string(): pa.large_string()}
"""Types of which a file may have the other: what fits neither is left out of it."""


@dataclass(frozen=True)
class Case:
    """Files with one schema between them, and how to merge them."""

    key: tuple[str, ...]
    files: tuple[tuple[Row, ...], ...]
    inputs: tuple[MergeInput, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = {
        f"c{n}": kind for n, kind in enumerate(draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4)))
    }
    key = tuple(draw(st.permutations(list(kinds)))[: draw(st.integers(1, 3))])
    if draw(st.booleans()):
        kinds["nested"] = draw(st.sampled_from(list(NESTED)))
    files, inputs = [], []
    count = draw(st.integers(1, 6))
    for number in range(count):
        rows, data, is_sorted = draw(one_file(kinds, key, first=number == 0))
        files.append(tuple(rows))
        inputs.append(block(data, f"block-{number}", sort_key=key if is_sorted else ()))
    return Case(key, tuple(files), tuple(inputs))


@st.composite
def one_file(
    draw: st.DrawFn, kinds: dict[str, pa.DataType], key: tuple[str, ...], *, first: bool
) -> tuple[list[Row], bytes, bool]:
    """(rows, the file, whether they are sorted). The first has all columns; others may lack some, or have narrower."""
    strategies = {**VALUES, **NESTED}
    mine = {}
    for name, kind in kinds.items():
        if first or draw(st.integers(0, 5)):
            mine[name] = NARROWER.get(kind, kind) if not first and draw(st.integers(0, 4)) == 0 else kind
    if not mine:
        mine = dict(kinds)
    makers = {name: st.none() | strategies[kinds[name]] for name in mine}
    rows = draw(st.lists(st.fixed_dictionaries(makers), max_size=40))
    for name, kind in mine.items():
        if kind == pa.int32():
            for row in rows:
                value = row[name]
                row[name] = value if value is not None and abs(value) < 2**31 else None
    is_sorted = draw(st.integers(0, 3)) > 0
    if is_sorted:
        rows.sort(key=lambda row: order_of(row, key))
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in mine.items()})
    full = [dict.fromkeys(kinds) | row for row in rows]
    data = parquet_of(
        table,
        key=[],
        row_group_size=draw(st.integers(1, 20)),
        use_dictionary=draw(st.booleans()),
        write_page_checksum=draw(st.booleans()),
    )
    return full, data, is_sorted


@contextmanager
def small(rows: int, runs: int, sample: int, *, whole: bool) -> Iterator[None]:
    """Windows, fan-in, sample and memos as small as they get, so that a few rows take many rounds, levels and row
    groups, and columns are given up on the way.
    `whole`: row groups are read as they are, else in batches; rounds are merged, else sorted.
    """
    with (
        mock.patch.object(budget, "_MOST_ROWS", rows),
        mock.patch.object(budget, "_LEAST_ROWS", 1),
        mock.patch.object(budget, "_MOST_RUNS", runs),
        mock.patch.object(budget.Budget, "round", 16 * rows),
        mock.patch.object(budget.Budget, "to_hold", return_value=40 * rows),
        mock.patch.object(budget.Budget, "reads_whole", return_value=whole),
        mock.patch.object(rounds, "_RUN_ROWS", 0 if whole else 1 << 40),
        mock.patch.object(kernel, "sample_rows", return_value=sample),
        mock.patch.object(columns, "ROWS_PER_VALUE", 1),
        mock.patch.object(kernel, "most_values", return_value=rows),
    ):
        yield


def merge_bytes(inputs: tuple[MergeInput, ...], options: MergeSettings) -> tuple[pq.ParquetFile, MergeResult]:
    sink = io.BytesIO()
    result = merge(inputs, sink, options)
    return pq.ParquetFile(io.BytesIO(sink.getvalue())), result


@settings(max_examples=examples(100))
@given(
    case=cases(),
    deduplicate=st.booleans(),
    rows=st.integers(1, 20),
    runs=st.integers(2, 8),
    sample=st.integers(1, 30),
    group=st.integers(1, 30),
    whole=st.booleans(),
)
def test_merge_equals_the_model(
    case: Case, deduplicate: bool, rows: int, runs: int, sample: int, group: int, whole: bool
) -> None:
    options = MergeSettings(sort_key=case.key, deduplicate=deduplicate, max_group_rows=group)
    with small(rows, runs, sample, whole=whole):
        file, result = merge_bytes(case.inputs, options)
    expected, dropped = merged(case.files, case.key), list[Row]()
    if deduplicate:
        expected, dropped = keep_last(expected, case.key)
    table = file.read()
    names = table.schema.names
    assert shown(table.to_pylist()) == shown({name: row[name] for name in names} for row in expected)
    assert result.read == fingerprint(table_of([row for rows in case.files for row in rows], result.schema))
    assert result.duplicates.fingerprint == fingerprint(table_of(dropped, result.schema))
    assert result.written == fingerprint(table)
    assert result.row_groups == file.metadata.num_row_groups
    assert all(file.metadata.row_group(n).num_rows <= group for n in range(file.metadata.num_row_groups))
    assert table.schema == result.schema


# Ranges of keys are a partition of the rows, of about equal parts, found without reading any.

RANGED_WORDS = st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600"])


@settings(max_examples=examples(25))
@given(
    values=st.one_of(
        st.lists(st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=20), min_size=1, max_size=4),
        st.lists(st.lists(st.none() | RANGED_WORDS, min_size=1, max_size=20), min_size=1, max_size=4),
    ),
    parts=st.integers(1, 5),
    group=st.integers(1, 8),
)
def test_parts_together_are_the_whole(values: list[list[Any]], parts: int, group: int) -> None:
    kind = pa.string() if any(isinstance(item, str) for some in values for item in some) else pa.int64()
    files = [merged([[{"key": item, "file": n} for item in some]], ["key"]) for n, some in enumerate(values)]
    data = [
        parquet_of(
            pa.table({"key": pa.array([row["key"] for row in rows], kind), "file": [row["file"] for row in rows]}),
            key=["key"],
            row_group_size=group,
        )
        for rows in files
    ]
    ranges = key_ranges([read_footer(block(item), ["key"]) for item in data], "key", parts=parts)
    assert 1 <= len(ranges) <= parts
    assert ranges[0].first is None
    assert ranges[-1].last is None
    assert all(item.last == after.first for item, after in pairwise(ranges))
    found: list[Any] = []
    for item in ranges:
        sink = io.BytesIO()
        merge([block(d, first=item.first, last=item.last) for d in data], sink, MergeSettings(sort_key=("key",)))
        found += pa.parquet.read_table(io.BytesIO(sink.getvalue())).to_pylist()
    assert shown(found) == shown(merged(files, ["key"]))


def test_parts_are_about_equal() -> None:
    data = [
        parquet_of(pa.table({"key": pa.array(range(n, 10_000, 4))}), key=["key"], row_group_size=100) for n in range(4)
    ]
    footers = [read_footer(block(item), ["key"]) for item in data]
    edges = [0]
    for item in key_ranges(footers, "key", parts=4)[:-1]:
        assert isinstance(item.last, int)
        edges.append(item.last)
    assert all(2_000 < after - before < 3_000 for before, after in pairwise([*edges, 10_000]))


@given(
    files=st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 5000), st.integers(100, 400)), min_size=1, max_size=6
    ),
    parts=st.integers(2, 5),
)
def test_few_large_row_groups_are_cut_too(files: list[tuple[int, int, int]], parts: int) -> None:
    """Whether they overlap, wholly or not at all: a part is what an even share would be, but for rounding."""
    keys = [pa.array([start + span * n // (rows - 1) for n in range(rows)]) for start, span, rows in files]
    data = [parquet_of(pa.table({"key": key}), key=["key"]) for key in keys]
    ranges = key_ranges([read_footer(block(item), ["key"]) for item in data], "key", parts=parts)
    found = [key for item in keys for key in item.to_pylist()]
    heaviest = max(Counter(found).values())
    for item in ranges:
        held = sum(
            (item.first is None or item.first <= key) and (item.last is None or key < item.last) for key in found
        )
        assert held <= len(found) / parts + heaviest + 2 * len(files)


def test_without_statistics_there_is_one_part() -> None:
    data = parquet_of(pa.table({"key": [1, 2, 3]}), key=["key"], write_statistics=False)
    assert key_ranges([read_footer(block(data), ["key"])], "key", parts=4) == (WHOLE,)


# Inputs in no order: as many rows as there is room for are sorted and stay in memory, the others are spilled; of very
# many all are.


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
