"""Sequences of indexes against sets, and against what Ra's own tests of `ra_seq` say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.format import etf
from compaction.segments.memtable import Seq
from compaction.segments.snapshot.live_indexes import LiveSet, encode_sequence

INDEXES = st.sets(st.integers(0, 60), max_size=40)
INDEX = st.integers(0, 62)


@given(INDEXES)
def test_a_sequence_holds_what_was_appended(members: set[int]) -> None:
    seq = Seq.from_indexes(members)
    assert list(seq) == sorted(members)
    assert len(seq) == len(members)
    assert bool(seq) == bool(members)
    assert (seq.first, seq.last) == (min(members, default=None), max(members, default=None))
    assert [index in seq for index in range(63)] == [index in members for index in range(63)]
    assert all(high + 1 < low for (_, high), (low, _) in zip(seq.ranges, seq.ranges[1:], strict=False))
    assert seq == Seq(seq.ranges) == seq.copy()


@given(INDEXES, INDEX, INDEX)
def test_parts_of_a_sequence(members: set[int], low: int, high: int) -> None:
    seq = Seq.from_indexes(members)
    part = sorted(i for i in members if low <= i <= high)
    assert list(seq.within(low, high)) == part
    assert seq.overlaps(low, high) == bool(part)
    assert list(seq.floor(low)) == sorted(i for i in members if i >= low)
    assert list(seq.limit(high)) == sorted(i for i in members if i <= high)


@given(INDEXES, INDEXES)
def test_two_sequences(first: set[int], second: set[int]) -> None:
    one, other = Seq.from_indexes(first), Seq.from_indexes(second)
    assert list(one.without(other)) == sorted(first - second)
    assert list(one.intersection(LiveSet.from_indexes(second))) == sorted(first & second)
    below = {i for i in second if not first or i < min(first)}
    assert list(one.over(other)) == sorted(first | below)


@given(INDEXES, INDEX)
def test_a_prefix_is_removed(members: set[int], cut: int) -> None:
    seq = Seq.from_indexes(members)
    assert seq.without_prefix(seq.limit(cut)) == seq.floor(cut + 1)


def test_no_prefix_skips_an_index() -> None:
    seq = Seq.from_indexes([2, 3, 5, 6])
    with pytest.raises(ValueError, match="not a prefix"):
        seq.without_prefix(Seq.from_indexes([2, 5]))
    # What lies below the sequence has been removed from it before.
    assert list(seq.without_prefix(Seq.from_indexes([1, 2, 3]))) == [5, 6]


@given(INDEXES, st.integers(1, 7))
def test_chunks_are_of_one_size(members: set[int], size: int) -> None:
    chunks = list(Seq.from_indexes(members).chunks(size))
    assert [index for chunk in chunks for index in chunk] == sorted(members)
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(chunks)


@pytest.mark.parametrize(("low", "high"), [(5, 5), (4, 9), (9, 8), (-1, 7)])
def test_only_a_larger_index_is_appended(low: int, high: int) -> None:
    seq = Seq([(3, 5)])
    with pytest.raises(ValueError, match="does not follow 5"):
        seq.extend(low, high)
    assert list(seq) == [3, 4, 5]


def test_it_is_written_as_ra_writes_it() -> None:
    """100, 101, 102, 500, 501, 600 in Ra 3.1.10: a range stands for three or more."""
    seq = Seq.from_indexes([100, 101, 102, 500, 501, 600])
    assert etf.decode(encode_sequence(seq.as_set())) == [600, 501, 500, (100, 102)]
