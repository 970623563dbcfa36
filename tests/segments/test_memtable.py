"""Sequences of indexes against sets, and against what Ra's own tests of `ra_seq` say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.segments.format import etf
from compaction.segments.memtable import LogEntry, MemTable, MemTables, Seq
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


# Mem tables against a model: what a reader gets after writes that go back, gaps, truncations and flushes.


def entry(index: int, term: int = 1) -> LogEntry:
    return LogEntry(index, term, b"%d@%d" % (index, term))


def filled(*indexes: int, term: int = 1) -> MemTables:
    tables = MemTables()
    for index in indexes:
        tables.insert(entry(index, term))
    return tables


def test_contiguous_and_sparse_entries_share_a_table() -> None:
    tables = filled(1, 2, 3, 100, 101)
    assert len(tables.tables) == 1
    assert tables.visible() == Seq([(1, 3), (100, 101)])
    assert tables.lookup(100) == entry(100)
    assert tables.lookup(50) is None


def test_a_write_that_goes_back_hides_what_follows_it_and_loses_nothing_that_is_to_be_flushed() -> None:
    tables = filled(*range(1, 11))
    newer = tables.insert(entry(5, term=2))
    assert tables.visible() == Seq([(1, 5)])
    assert tables.last == 5
    assert [tables.lookup(index) for index in (4, 5, 6)] == [entry(4), entry(5, term=2), None]
    older = tables.tables[0]
    assert older is not newer
    assert older.get(10) == entry(10)


def test_reads_find_every_entry_while_a_part_is_flushed() -> None:
    tables = filled(*range(1, 11))
    (table,) = tables.tables
    tables.flushed(table, range(1, 6))
    tables.insert(entry(11))
    assert tables.visible() == Seq([(6, 11)])
    assert [*tables.tables] == [table]
    assert table.payload_bytes == sum(len(entry(index).payload) for index in range(6, 12))
    tables.flushed(table, range(6, 12))
    assert tables.tables == ()
    assert tables.last is None


def test_a_truncated_table_takes_no_more_entries() -> None:
    tables = filled(1, 2, 3)
    tables.truncate(3)
    assert tables.last == 2
    tables.insert(entry(3, term=2))
    assert len(tables.tables) == 2
    assert tables.lookup(3) == entry(3, term=2)
    assert tables.visible() == Seq([(1, 3)])


def test_what_lies_below_the_smallest_live_index_goes() -> None:
    tables = filled(1, 2, 3)
    tables.insert(entry(2, term=2))
    tables.remove_below(3)
    # 2 hides what stands behind it in segments.
    assert [list(table.indexes) for table in tables.tables] == [[3], [2]]
    assert tables.last == 2
    tables.insert(entry(3, term=2))
    tables.insert(entry(7, term=2))
    tables.remove_below(3)
    assert list(tables.visible()) == [3, 7]
    tables.remove_below(7)
    assert list(tables.visible()) == [3, 7]
    tables.remove_below(9)
    assert list(tables.visible()) == [7]
    for table in tables.tables:
        tables.flushed(table, range(9))
    assert tables.tables == ()


def test_a_table_takes_only_a_larger_index() -> None:
    table = MemTable()
    table.insert(entry(4))
    with pytest.raises(ValueError, match="does not follow 4"):
        table.insert(entry(4, term=2))
    assert table.get(4) == entry(4)


class Tables(RuleBasedStateMachine):
    """The model is a dictionary of what a reader gets; flushed entries leave both."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = MemTables()
        self.model: dict[int, LogEntry] = {}
        self.term = 0

    @rule(gap=st.integers(1, 3), count=st.integers(1, 4))
    def append(self, gap: int, count: int) -> None:
        first = max(self.model, default=0) + gap
        for index in range(first, first + count):
            self.write(index)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def overwrite(self, data: st.DataObject) -> None:
        self.term += 1
        self.write(data.draw(st.integers(0, max(self.model))))

    def write(self, index: int) -> None:
        one = entry(index, self.term)
        self.tables.insert(one)
        self.model = {i: e for i, e in self.model.items() if i < index} | {index: one}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, max(self.model)))
        self.tables.truncate(index)
        self.model = {i: e for i, e in self.model.items() if i < index}

    @precondition(lambda self: self.tables.tables)
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        """The oldest entries of the oldest table, as a rolled file holds them."""
        table = self.tables.tables[0]
        part = list(table.indexes)[: data.draw(st.integers(1, len(table)))]
        gone = {i: table.lookup(i) for i in part}
        self.tables.flushed(table, part)
        self.model = {i: e for i, e in self.model.items() if gone.get(i) is not e}

    @rule(index=st.integers(0, 12))
    def snapshot(self, index: int) -> None:
        self.tables.remove_below(index)
        left = set(self.tables.visible())
        assert left <= {i for i in self.model if i >= index or i + 1 not in self.model}
        self.model = {i: e for i, e in self.model.items() if i >= index or i in left}

    @invariant()
    def readers_get_what_the_model_holds(self) -> None:
        assert list(self.tables.visible()) == sorted(self.model)
        assert {index: self.tables.lookup(index) for index in self.model} == self.model
        assert self.tables.last == max(self.model, default=None)
        highest = max((t.indexes.last or 0 for t in self.tables.tables), default=0)
        assert all(self.tables.lookup(i) is None for i in range(highest + 2) if i not in self.model)
        held = 0
        for table in self.tables.tables:
            for index in table.indexes:
                found = table.get(index)
                assert found is not None
                held += len(found.payload)
        assert self.tables.payload_bytes == held


TestTables = Tables.TestCase
