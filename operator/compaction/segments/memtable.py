"""Mem tables: entries that are in the write-ahead log and not yet in a segment, and the sequences of their indexes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.live_indexes import LiveSet

# An ascending sequence of indexes as ranges: Ra's `ra_seq`, for what is written and not yet in a segment.
#
# Contiguous appends make one range, however many there are; each gap of a sparse write makes one more. Ranges are
# sorted, disjoint and never adjacent. `append` and `extend` change a sequence, everything else returns a new one.


class Seq:
    """Indexes in ascending order; only a larger one than the last can be appended."""

    __slots__ = ("_count", "_highs", "_lows")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        """`ranges`: inclusive (low, high) pairs, ascending and disjoint; ValueError for any others."""
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._count = 0
        for low, high in ranges:
            self.extend(low, high)

    @classmethod
    def from_indexes(cls, indexes: Iterable[int]) -> Seq:
        """Of indexes in any order; duplicates count once."""
        result = cls()
        for index in sorted(set(indexes)):
            result.append(index)
        return result

    def append(self, index: int) -> None:
        """ValueError unless `index` is above the last."""
        self.extend(index, index)

    def extend(self, low: int, high: int) -> None:
        """Append low..high, inclusive; ValueError unless all of it is above the last index."""
        highs = self._highs
        last = highs[-1] if highs else -1
        if low > high or low <= last:
            raise ValueError(f"{low}..{high} does not follow {self.last}")
        if highs and last == low - 1:
            highs[-1] = high
        else:
            self._lows.append(low)
            highs.append(high)
        self._count += high - low + 1

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Inclusive (low, high) pairs, ascending."""
        return list(zip(self._lows, self._highs, strict=True))

    @property
    def first(self) -> int | None:
        """The smallest index; None when empty."""
        return self._lows[0] if self._lows else None

    @property
    def last(self) -> int | None:
        """The largest index; None when empty."""
        return self._highs[-1] if self._highs else None

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return bool(self._lows)

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int):
            return False
        position = bisect_right(self._lows, index) - 1
        return position >= 0 and index <= self._highs[position]

    def __iter__(self) -> Iterator[int]:
        for low, high in self.ranges:
            yield from range(low, high + 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Seq):
            return NotImplemented
        return self._lows == other._lows and self._highs == other._highs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Seq({','.join(str(low) if low == high else f'{low}-{high}' for low, high in self.ranges)})"

    def copy(self) -> Seq:
        return Seq(self.ranges)

    def floor(self, index: int) -> Seq:
        """Return the indexes at or above `index`."""
        return self.within(index, MAX_INDEX)

    def limit(self, index: int) -> Seq:
        """Return the indexes at or below `index`."""
        return self.within(0, index)

    def within(self, low: int, high: int) -> Seq:
        """Return the indexes in low..high, inclusive."""
        begin = bisect_left(self._highs, low)
        end = bisect_right(self._lows, high)
        return Seq((max(a, low), min(b, high)) for a, b in self.ranges[begin:end])

    def overlaps(self, low: int, high: int) -> bool:
        """Return whether any index is in low..high, inclusive."""
        position = bisect_left(self._highs, low)
        return low <= high and position < len(self._lows) and self._lows[position] <= high

    def over(self, lower: Seq) -> Seq:
        """This sequence laid over a lower one, which ends where this one begins (`ra_seq:add`)."""
        if self.first is None:
            return lower.copy()
        result = lower.limit(self.first - 1)
        for low, high in self.ranges:
            result.extend(low, high)
        return result

    def without(self, other: Seq) -> Seq:
        """The indexes that are not in `other`."""
        return Seq(self.as_set().without(other.as_set()).ranges)

    def intersection(self, members: LiveSet) -> Seq:
        """The indexes that are members of the set."""
        return Seq(self.as_set().intersection(members).ranges)

    def without_prefix(self, prefix: Seq) -> Seq:
        """Return the indexes that follow `prefix`.

        The prefix's indexes beyond the first of this sequence must all be its first ones.

        ValueError when the prefix skips an index of this sequence.
        """
        if prefix.last is None:
            return self.copy()
        if self.limit(prefix.last).without(prefix):
            raise ValueError(f"{prefix!r} is not a prefix of {self!r}")
        return self.floor(prefix.last + 1)

    def chunks(self, size: int) -> Iterator[list[int]]:
        """The indexes in lists of `size`, the last one shorter."""
        indexes = iter(self)
        while chunk := list(islice(indexes, size)):
            yield chunk

    def as_set(self) -> LiveSet:
        return LiveSet.from_ranges(self.ranges)


# One mem table: entries that are in the write-ahead log and not yet in a segment.

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
        """Return whether an entry of this index can be added.

        It can when it is above all others, none is hidden, and there is room.
        """
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


# All mem tables of a log, oldest first, and what they add up to.
#
# A write that goes back, and a truncation, open a table that hides all older ones from its first index on; so an
# entry is read from the newest table that holds its index visibly, and each table's own indexes only ever ascend.


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
            self._drop_empty()
            table = MemTable()
            self._tables.append(table)
        if not table.indexes:
            for older in self._tables:
                if older is not table:
                    older.hide_from(index)
        return table

    def _drop_empty(self) -> None:
        self._tables = [table for table in self._tables if table.indexes]
