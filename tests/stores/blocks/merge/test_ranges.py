"""Ranges of keys are a partition of the rows, of about equal parts, found without reading any."""

from __future__ import annotations

import io
from collections import Counter
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.blocks.merge.footers import MergeSettings, read_footer
from compaction.blocks.merge.kernel import WHOLE, key_ranges, merge
from support.depth import examples
from support.stores.block_rows import block, merged, parquet, shown

WORDS = st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600"])


@settings(max_examples=examples(25))
@given(
    values=st.one_of(
        st.lists(st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=20), min_size=1, max_size=4),
        st.lists(st.lists(st.none() | WORDS, min_size=1, max_size=20), min_size=1, max_size=4),
    ),
    parts=st.integers(1, 5),
    group=st.integers(1, 8),
)
def test_parts_together_are_the_whole(values: list[list[Any]], parts: int, group: int) -> None:
    kind = pa.string() if any(isinstance(item, str) for some in values for item in some) else pa.int64()
    files = [merged([[{"key": item, "file": n} for item in some]], ["key"]) for n, some in enumerate(values)]
    data = [
        parquet(
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
        parquet(pa.table({"key": pa.array(range(n, 10_000, 4))}), key=["key"], row_group_size=100) for n in range(4)
    ]
    footers = [read_footer(block(item), ["key"]) for item in data]
    edges = [0, *(item.last for item in key_ranges(footers, "key", parts=4)[:-1]), 10_000]
    assert all(2_000 < after - before < 3_000 for before, after in pairwise(edges))


@given(
    files=st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 5000), st.integers(100, 400)), min_size=1, max_size=6
    ),
    parts=st.integers(2, 5),
)
def test_few_large_row_groups_are_cut_too(files: list[tuple[int, int, int]], parts: int) -> None:
    """Whether they overlap, wholly or not at all: a part is what an even share would be, but for rounding."""
    keys = [pa.array([start + span * n // (rows - 1) for n in range(rows)]) for start, span, rows in files]
    data = [parquet(pa.table({"key": key}), key=["key"]) for key in keys]
    ranges = key_ranges([read_footer(block(item), ["key"]) for item in data], "key", parts=parts)
    found = [key for item in keys for key in item.to_pylist()]
    heaviest = max(Counter(found).values())
    for item in ranges:
        held = sum(
            (item.first is None or item.first <= key) and (item.last is None or key < item.last) for key in found
        )
        assert held <= len(found) / parts + heaviest + 2 * len(files)


def test_without_statistics_there_is_one_part() -> None:
    data = parquet(pa.table({"key": [1, 2, 3]}), key=["key"], write_statistics=False)
    assert key_ranges([read_footer(block(data), ["key"])], "key", parts=4) == (WHOLE,)
