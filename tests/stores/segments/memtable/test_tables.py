"""Mem tables against a model: what a reader gets after writes that go back, gaps, truncations and flushes."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.segments.memtable import LogEntry, MemTable, MemTables, Seq


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
    assert tables.tables == (table,)
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
        held = sum(len(t.get(i).payload) for t in self.tables.tables for i in t.indexes)  # type: ignore[union-attr]
        assert self.tables.payload_bytes == held


TestTables = Tables.TestCase
