"""All mem tables of a log, oldest first, and what they add up to.

A write that goes back, and a truncation, open a table that hides all older ones from its first index on; so an entry is
read from the newest table that holds its index visibly, and each table's own indexes only ever ascend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import LogEntry, MemTable


class MemTables:
    """The mem tables of one log. Not for use by several threads at once: the log's lock guards it."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: list[MemTable] = []

    @property
    def tables(self) -> tuple[MemTable, ...]:
        """Oldest first."""
        return tuple(self._tables)

    @property
    def payload_bytes(self) -> int:
        return sum(table.payload_bytes for table in self._tables)

    @property
    def last(self) -> int | None:
        """The last index that a reader gets; None without any."""
        for table in reversed(self._tables):
            if (last := table.visible.last) is not None:
                return last
        return None

    def visible(self) -> Seq:
        """All indexes that a reader gets."""
        result = Seq()
        for table in self._tables:
            result = table.visible.over(result)
        return result

    def insert(self, entry: LogEntry) -> MemTable:
        """Add an entry, contiguous or sparse, or overwrite from it on; returns the table that holds it."""
        table = self._table_for(entry.index)
        table.insert(entry)
        return table

    def insert_run(self, entries: Sequence[LogEntry], payload_bytes: int) -> MemTable:
        """Add entries with consecutive indexes, of so many bytes of payload; returns the one table that holds them."""
        table = self._table_for(entries[0].index)
        table.insert_run(entries, payload_bytes)
        return table

    def truncate(self, index: int) -> None:
        """Hide everything from `index` on."""
        for table in self._tables:
            if (last := table.indexes.last) is not None and last >= index:
                table.hide_from(index)

    def lookup(self, index: int) -> LogEntry | None:
        for table in reversed(self._tables):
            if (entry := table.lookup(index)) is not None:
                return entry
        return None

    def flushed(self, table: MemTable, indexes: Iterable[int]) -> None:
        """These entries of a table are in segments that a reader finds, or need not be in any."""
        table.remove(indexes)
        self._drop_empty()

    def remove_below(self, index: int) -> None:
        """Forget what lies below the smallest live index."""
        for table in self._tables:
            table.remove_below(index)
        self._drop_empty()

    def _table_for(self, index: int) -> MemTable:
        """The table that takes an entry of this index; a new one hides all others from there on."""
        table = self._tables[-1] if self._tables else None
        if table is None or not table.takes(index):
            table = self._open()
        if not table.indexes:
            self._hide(table, index)
        return table

    def _open(self) -> MemTable:
        self._drop_empty()
        self._tables.append(MemTable())
        return self._tables[-1]

    def _hide(self, newer: MemTable, index: int) -> None:
        for table in self._tables:
            if table is not newer:
                table.hide_from(index)

    def _drop_empty(self) -> None:
        self._tables = [table for table in self._tables if table.indexes]
