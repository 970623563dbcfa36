"""One mem table: entries that are in the write-ahead log and not yet in a segment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from compaction.segments.memtable.seq import Seq

MAX_ENTRIES: Final = 1_000_000
"""A table with more takes none; a new one is opened."""


class LogEntry(NamedTuple):
    """One entry of a log. The payload is opaque, and never empty."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which no caller needs
    term: int
    payload: bytes


class LogPosition(NamedTuple):
    """An entry's place: its index and its term."""

    index: int  # type: ignore[assignment]  # as above
    term: int


class MemTable:
    """Entries in ascending order of index; never overwritten: that opens another table, which hides this one's.

    `hidden_from`: entries from this index on are hidden by a newer table; None when none are. They stay, unread, until
    the segment writer has passed them. Not for use by several threads at once.
    """

    __slots__ = ("_entries", "hidden_from", "indexes", "payload_bytes")

    def __init__(self) -> None:
        self.indexes = Seq()
        self.hidden_from: int | None = None
        self.payload_bytes = 0
        self._entries: dict[int, LogEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def takes(self, index: int) -> bool:
        """Whether an entry of this index can be added: it is above all others, none is hidden, and there is room."""
        if self.hidden_from is not None or len(self._entries) > MAX_ENTRIES:
            return False
        last = self.indexes.last
        return last is None or index > last

    @property
    def visible(self) -> Seq:
        """The indexes that no newer table hides."""
        if self.hidden_from is None:
            return self.indexes
        return self.indexes.limit(self.hidden_from - 1) if self.hidden_from else Seq()

    def insert(self, entry: LogEntry) -> None:
        """ValueError unless the index is above all others of the table."""
        self.indexes.append(entry.index)
        self._entries[entry.index] = entry
        self.payload_bytes += len(entry.payload)

    def insert_run(self, entries: Sequence[LogEntry], payload_bytes: int) -> None:
        """Entries with consecutive indexes, of so many bytes of payload; ValueError unless the first is above all
        others of the table.
        """
        self.indexes.extend(entries[0].index, entries[-1].index)
        self._entries.update(zip(range(entries[0].index, entries[-1].index + 1), entries, strict=True))
        self.payload_bytes += payload_bytes

    def get(self, index: int) -> LogEntry | None:
        """The entry, hidden or not; None when the table does not hold it (any more)."""
        return self._entries.get(index)

    def lookup(self, index: int) -> LogEntry | None:
        """The entry that a reader gets from this table."""
        return self._entries.get(index) if self.hidden_from is None or index < self.hidden_from else None

    def hide_from(self, index: int) -> None:
        """A newer table begins at `index`, or the log was truncated there."""
        self.hidden_from = index if self.hidden_from is None else min(self.hidden_from, index)

    def remove(self, indexes: Iterable[int]) -> None:
        """Forget these entries, if they are there."""
        gone = Seq.from_indexes(index for index in indexes if index in self._entries)
        for index in gone:
            self.payload_bytes -= len(self._entries.pop(index).payload)
        self.indexes = self.indexes.without(gone)

    def remove_below(self, index: int) -> None:
        """Forget the entries below `index`, but the last of them where a gap or nothing follows: it hides what older
        tables and segments hold from there on.
        """
        first = self.indexes.first
        if first is not None and first < index and index > 0:
            below = self.indexes.limit(index - 1)
            last = below.last
            if last is not None and last + 1 not in self.indexes:
                below = below.limit(last - 1) if last else Seq()
            self.remove(below)
