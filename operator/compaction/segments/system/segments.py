"""Reading a log's entries from its segments by index, while they grow and compactions replace them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from compaction.segments.errors import LogChangedError, NotALogDirectoryError
from compaction.segments.memtable import LogEntry
from compaction.segments.model import FileIdentity, RowArray, SegmentIndex, U64Array
from compaction.segments.reading.reader import SegmentFile
from compaction.segments.reading.view import LogState, SegmentRef, in_no_segment, limit_refs, read_segments
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system.rules import LogRow

_LOOKS: Final = 20
"""Readings in a row that found nothing, because a compaction replaced a file."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentView:
    """The segments of a log at one moment. Immutable: a reader keeps the one it began with.

    `links`: symlink name -> target's base name. `obsolete`: files that are there and not read, because they are
    `dropped`: they hold nothing that the log needs, and are about to be deleted.
    """

    directory: Path
    segments: Mapping[str, SegmentIndex]
    refs: tuple[SegmentRef, ...]
    orphans: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    obsolete: Mapping[str, SegmentIndex] = field(default_factory=dict)
    dropped: Mapping[str, FileIdentity] = field(default_factory=dict)

    def refreshed(self) -> SegmentView:
        """The segments as they are now; only those that changed are read.

        The first segment that cannot be parsed is raised: what its log holds would be a guess.
        """
        try:
            files = read_segments(self.directory, known={**self.segments, **self.obsolete})
        except NotALogDirectoryError:
            # Nothing of this log was flushed yet, so it has no segment.
            return SegmentView(self.directory, {}, ())
        if files.errors:
            raise files.errors[0]
        obsolete = {
            segment.name: segment for segment in files.segments if self.dropped.get(segment.name) == segment.identity
        }
        read = tuple(segment for segment in files.segments if segment.name not in obsolete)
        refs, orphans = limit_refs(read)
        return SegmentView(
            self.directory,
            {segment.name: segment for segment in read},
            refs,
            orphans,
            files.links,
            obsolete,
            {name: item.identity for name, item in obsolete.items()},
        )

    def state(self, row: LogRow, waiting: LiveSet) -> LogState:
        """The same as the planning rules see it; `waiting`: what mem tables held before this reading. At least one
        segment is needed.
        """
        segments = tuple(self.segments.values())
        return LogState(
            directory=self.directory,
            segments=segments,
            links=dict(self.links),
            refs=self.refs,
            orphans=self.orphans,
            snapshot_index=row.snapshot_index,
            live=row.live,
            missing=in_no_segment(segments, certain).without(waiting) if (certain := row.certain) else LiveSet.empty(),
        )

    @property
    def last(self) -> int | None:
        """The last index that a reader gets; None without any entry."""
        return self.refs[-1].last if self.refs else None

    @property
    def payload_bytes(self) -> int:
        return sum(segment.data_bytes for segment in self.segments.values())

    def term(self, index: int) -> int | None:
        """The term of one entry; None when no segment holds it."""
        for segment, rows in self._rows(np.array([index], dtype=np.uint64)):
            if rows.size:
                return int(segment.term[rows[0]])
        return None

    def indexes(self, low: int, high: int) -> U64Array:
        """The indexes in low..high that the segments hold, ascending."""
        parts = [self._readable(ref) for ref in self.refs if ref.last >= low and ref.first <= high]
        found = np.concatenate([segment.idx[rows] for segment, rows in parts]) if parts else np.empty(0, np.uint64)
        return found[(found >= np.uint64(low)) & (found <= np.uint64(high))]

    def read(self, indexes: Sequence[int], *, refresh: Callable[[], SegmentView] | None = None) -> dict[int, LogEntry]:
        """Those of the ascending `indexes` that the segments hold, each payload checked. `refresh`: a newer view, asked
        for when a file is not the one that was parsed any more; by default this one's.

        Raises:
            CorruptEntryError: a payload is damaged; names file, index and offset.
            LogChangedError: compactions replaced the files at every one of many readings.
        """
        found: dict[int, LogEntry] = {}
        view, looks = self, 0
        while True:
            before = len(found)
            wanted = np.array([index for index in indexes if index not in found], dtype=np.uint64)
            try:
                for segment, rows in view._rows(wanted):
                    found |= _read(segment, rows)
            except LogChangedError:
                # Only looks in vain count: compactions may replace files for as long as the reading gets on.
                looks = looks + 1 if len(found) == before else 0
                if looks == _LOOKS:
                    raise
                view = view.refreshed() if refresh is None else refresh()
                continue
            return found

    def _readable(self, ref: SegmentRef) -> tuple[SegmentIndex, RowArray]:
        segment = self.segments[ref.name]
        rows = np.flatnonzero(segment.effective & (segment.idx <= np.uint64(ref.last)))
        return segment, rows

    def _rows(self, wanted: U64Array) -> list[tuple[SegmentIndex, RowArray]]:
        """Return the places of the ascending indexes: rows of each segment that holds any of them."""
        result = []
        for ref in self.refs:
            begin, end = np.searchsorted(wanted, [ref.first, ref.last + 1])
            if begin == end:
                continue
            segment, rows = self._readable(ref)
            keys = segment.idx[rows]
            position = np.minimum(np.searchsorted(keys, wanted[begin:end]), keys.size - 1)
            hits = position[keys[position] == wanted[begin:end]]
            if hits.size:
                result.append((segment, rows[hits]))
        return result


def _read(segment: SegmentIndex, rows: RowArray) -> dict[int, LogEntry]:
    found: dict[int, LogEntry] = {}
    with closing(SegmentFile(segment)) as file:
        for batch in file.batches(rows):
            terms = segment.term[batch.rows].tolist()
            for index, term, payload in zip(segment.idx[batch.rows].tolist(), terms, batch.payloads(), strict=True):
                found[index] = LogEntry(index, term, bytes(payload))
    return found
