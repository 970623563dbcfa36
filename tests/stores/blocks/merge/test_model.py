"""The merge equals a plain-Python model: for any schema, key, nulls, duplicates, row groups and batch sizes."""

from __future__ import annotations

import datetime
import decimal
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.blocks.fingerprint.row_hashes import fingerprint
from compaction.blocks.merge import budget, columns, kernel, rounds
from compaction.blocks.merge.footers import MergeInput, MergeResult, MergeSettings
from compaction.blocks.merge.kernel import merge
from support.depth import examples
from support.stores.block_rows import Row, block, keep_last, merged, order_of, parquet, shown, table_of

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
                row[name] = row[name] if row[name] is not None and abs(row[name]) < 2**31 else None
    is_sorted = draw(st.integers(0, 3)) > 0
    if is_sorted:
        rows.sort(key=lambda row: order_of(row, key))
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in mine.items()})
    full = [dict.fromkeys(kinds) | row for row in rows]
    data = parquet(
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
    expected, dropped = merged(case.files, case.key), []
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
