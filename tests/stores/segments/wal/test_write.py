"""Writes of a batch that go on where the one before ends are one write; nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from compaction.segments.memtable import LogEntry, MemTable
from compaction.segments.system.log import Log
from compaction.segments.system.rules import LogRow
from compaction.segments.wal.wal_log import WalClient, WalWrite, joined

LOGS = [cast(WalClient, Log(name, Path("/system") / name, row=LogRow(), snapshot=None)) for name in ("a", "b")]
TABLES = [MemTable(), MemTable()]


def write(log: int, table: int, first: int, count: int, previous: int | None) -> WalWrite:
    entries = [LogEntry(index, 1, b"x" * (index % 5 + 1)) for index in range(first, first + count)]
    return WalWrite(LOGS[log], TABLES[table], previous, entries, sum(len(entry.payload) for entry in entries))


WRITES = st.builds(
    write, st.integers(0, 1), st.integers(0, 1), st.integers(0, 6), st.integers(1, 3), st.none() | st.integers(0, 6)
)


@given(st.lists(WRITES, max_size=12))
def test_joined_writes_hold_the_same_entries_in_the_same_order(writes: list[WalWrite]) -> None:
    found = joined(writes)
    for log in LOGS:
        before = [(w.table, entry) for w in writes if w.client is log for entry in w.entries]
        assert [(w.table, entry) for w in found if w.client is log for entry in w.entries] == before
    assert sum(item.size for item in found) == sum(item.size for item in writes)
    for item in found:
        assert [entry.index for entry in item.entries] == list(
            range(item.entries[0].index, item.entries[0].index + len(item.entries))
        )


def test_appends_of_several_logs_in_turn_become_one_write_each() -> None:
    writes = [write(log, log, index, 1, index - 1) for index in range(5, 9) for log in (0, 1)]
    assert [(item.client, item.previous, len(item.entries)) for item in joined(writes)] == [
        (LOGS[0], 4, 4),
        (LOGS[1], 4, 4),
    ]


def test_a_gap_another_table_and_a_write_that_goes_back_begin_another_write() -> None:
    first = write(0, 0, 1, 2, 0)
    for second in (write(0, 0, 4, 1, 2), write(0, 1, 3, 1, 2), write(0, 0, 3, 1, 1), write(0, 0, 2, 1, 2)):
        assert joined([first, second]) == [first, second]
    assert len(joined([first, write(0, 0, 3, 1, 2)])) == 1
