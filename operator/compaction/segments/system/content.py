"""What one log holds, in memory and in segments, and how it is read; `Log` adds what changes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from compaction.segments.errors import EntryMissingError
from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import LogEntry, LogPosition
from compaction.segments.memtable.tables import MemTables
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.system.changes import OnChange
from compaction.segments.system.cut import LogCut
from compaction.segments.system.row import LogRow
from compaction.segments.system.segment_list import SegmentList
from compaction.segments.system.status import LogStatus

T = TypeVar("T")
_PAGE: Final = 1024
"""Entries that `fold` reads at once."""


class LogContent:
    """The reading half of a log. Several threads may read at once, beside one that writes."""

    def __init__(
        self,
        uid: str,
        directory: Path,
        *,
        row: LogRow,
        snapshot: LogSnapshot | None,
        cut: LogCut | None = None,
        on_change: OnChange | None = None,
    ) -> None:
        """Without entries: the recovery fills the mem tables, `refresh` reads the segments."""
        self.uid = uid.encode()
        self.name = uid
        self.directory = directory
        self.row = row
        self.newest_snapshot = snapshot
        self.tables = MemTables()
        self.cut = None if cut is None else cut.above(row.snapshot_index)
        """What in the files is no part of the log, after an interrupted installation; None: nothing."""
        self._lock = threading.RLock()
        self.segments = SegmentList(directory, on_change)
        self._last: LogPosition | None = None
        self._written: LogPosition | None = None

    @property
    def waiting(self) -> LiveSet:
        """The indexes that wait in mem tables, and in the write-ahead log, for the segment writer."""
        with self._lock:
            return self.tables.visible().as_set()

    def read(self, indexes: Iterable[int]) -> list[LogEntry]:
        """The entries of these indexes, ascending; dead ones, and indexes beyond the last, are left out.

        Raises:
            EntryMissingError: an entry that the log must hold is not there.
            CorruptEntryError: a payload in a segment is damaged; names file, index and offset.
        """
        wanted = sorted(set(indexes))
        with self._lock:
            row, view = self.row, self.segments.view
            last = self._last.index if self._last is not None else -1
            wanted = [index for index in wanted if 0 <= index <= last and row.needs(index)]
            found = {index: entry for index in wanted if (entry := self.tables.lookup(index)) is not None}
            bound = self.tables.visible().first
        rest = [index for index in wanted if index not in found and (bound is None or index < bound)]
        found |= view.read(rest, refresh=self.segments.refresh)
        # What died since the read began may be gone: the row as it is now says so. And an index above the snapshot may
        # be a gap, after a sparse write.
        if missing := [index for index in wanted if index not in found]:
            certain = row.certain.intersection(self.row.certain)
            for index in missing:
                if index in certain:
                    raise EntryMissingError(str(self.directory), index)
        return [found[index] for index in sorted(found)]

    def fold(self, function: Callable[[T, LogEntry], T], initial: T, *, first: int = 0) -> T:
        """`function` over all entries that the log needs, ascending from index `first`; errors as `read`."""
        result = initial
        for page in self._pages(first):
            for entry in self.read(page):
                result = function(result, entry)
        return result

    def indexes(self, low: int = 0, high: int = MAX_INDEX) -> Seq:
        """Which entries in low..high the log holds and needs."""
        with self._lock:
            row, view, in_memory = self.row, self.segments.view, self.tables.visible()
            last = self._last.index if self._last is not None else -1
        high = min(high, last)
        below = high if in_memory.first is None else min(high, in_memory.first - 1)
        stored = Seq.from_indexes(view.indexes(low, below).tolist()) if below >= low else Seq()
        return row.needed(in_memory.within(low, high).over(stored))

    @property
    def last(self) -> LogPosition | None:
        """The last entry, written or not."""
        return self._last

    @property
    def _last_index(self) -> int | None:
        return None if self._last is None else self._last.index

    @property
    def last_written(self) -> LogPosition | None:
        """The last entry up to which everything is durable."""
        return self._written

    @property
    def state(self) -> LogStatus:
        with self._lock:
            view = self.segments.view
            return LogStatus(
                uid=self.name,
                last=self._last,
                last_written=self._written,
                row=self.row,
                segments=len(view.segments),
                segment_bytes=view.payload_bytes,
                unflushed=len(self.tables.visible()),
                unflushed_bytes=self.tables.payload_bytes,
            )

    def refresh(self) -> None:
        """Read the segments as they are now: a notification that they changed, which nothing depends on. Errors as
        `SegmentView.refreshed`.
        """
        self.segments.refresh()

    def _pages(self, first: int) -> Iterator[list[int]]:
        yield from self.indexes(first).chunks(_PAGE)

    def _before(self, index: int) -> LogPosition | None:
        """The log's last entry below `index`."""
        below = self.tables.visible().limit(index - 1).last if index else None
        ends = [below, None if self.row.end is None else self.row.end.index]
        bound = self.tables.visible().first
        if high := min(index, bound if bound is not None else index):
            ends += self.segments.view.indexes(0, high - 1)[-1:].tolist()
        last = max((end for end in ends if end is not None), default=None)
        return None if last is None else LogPosition(last, self._term(last))

    def _term(self, index: int) -> int:
        # First: behind an installed snapshot, mem tables and segments may hold the entry that it has replaced.
        if self.row.end is not None and index == self.row.end.index:
            return self.row.end.term
        entry = self.tables.lookup(index)
        if entry is not None:
            return entry.term
        term = self.segments.view.term(index)
        if term is None:
            raise EntryMissingError(str(self.directory), index)
        return term

    def _found_last(self) -> LogPosition | None:
        """The last entry that the recovery found: of the mem tables, else of the segments up to the cut; at least the
        snapshot's index.
        """
        last = self.tables.last
        if last is None:
            last = self.segments.view.last
            if self.cut is not None and last is not None and last >= self.cut.first:
                below = self.segments.view.indexes(0, self.cut.first - 1)[-1:].tolist() if self.cut.first else []
                last = below[0] if below else None
        if self.row.snapshot_index is not None and (last is None or last < self.row.snapshot_index):
            last = self.row.snapshot_index
        return None if last is None else LogPosition(last, self._term(last))

    def _holds(self, index: int, term: int) -> bool:
        """Whether the entry of this index and term is part of the log."""
        if self._last is None or self._last.index < index or not self.indexes(index, index):
            return False
        return self._term(index) == term
