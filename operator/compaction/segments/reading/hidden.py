"""Entries that segments hold and no reader gets, because a newer file begins at a lower index: which of them were
overwritten, and which are lost to an old file under a new name.

A leader drops entries by writing those of its own log, whose terms may be lower, and then some of its own term, which
is later. So a hidden entry that the log needs was overwritten if a record of a later term is read at its index or above
it, or is in a later file at its index or below it; or it is there again, with the same content, since a flush was
repeated. The entries of an installation come without anything of the leader's own term.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compaction.segments.errors import EntriesHiddenError
from compaction.segments.model import MAX_INDEX, BoolArray, RowArray, SegmentIndex, U64Array
from compaction.segments.reading.missing import waiting_in
from compaction.segments.reading.view import LogState


@dataclass(frozen=True, slots=True)
class HiddenEntries:
    """Needed entries of one segment that newer records hide. `indexes`: ascending; `by`: the first file that hides the
    first of them. `replaced`: whether another record of the same index is read, of no later term and of another
    content; else none is read.
    """

    segment: str
    indexes: U64Array
    by: str
    replaced: bool

    def __str__(self) -> str:
        begin = f"{self.indexes.size} entries that the log needs (first index {self.indexes[0]}) are in {self.segment}"
        if self.replaced:
            return f"{begin}, and {self.by} has others at their indexes, of no later term"
        return f"{begin} alone, and {self.by} hides them, which begins at a lower index and holds no later term"


def hidden_entries(
    log: LogState, needed: Callable[[U64Array], BoolArray], *, cut: int | None
) -> Iterator[HiddenEntries]:
    """Each segment's needed entries that no reader gets as they are, oldest segment first.

    `needed`: which indexes the log needs from its segments. `cut`: the first index that does not count, where an
    installation was interrupted (`log.cut`).
    """
    installed = log.snapshot_index or 0 if cut is None else cut - 1
    rows = {ref.name: log.readable(ref) for ref in log.refs}
    parts = [(log.segment(name), found) for name, found in rows.items()]
    read = np.concatenate([segment.idx[found] for segment, found in parts]) if parts else np.empty(0, dtype=np.uint64)
    columns = [
        np.concatenate([getattr(segment, name)[found] for segment, found in parts]) if parts else read
        for name in ("term", "length", "crc")
    ]
    term_from = np.maximum.accumulate(columns[0][::-1])[::-1]  # The highest term of each record and those above.
    for position, segment in enumerate(log.segments):
        hidden = np.ones(segment.count, dtype=np.bool_)
        hidden[rows.get(segment.name, np.empty(0, dtype=np.int64))] = False
        own = np.flatnonzero(hidden)
        own = own[needed(segment.idx[own])]
        if not own.size:
            continue
        newer = log.segments[position + 1 :]
        at = np.minimum(np.searchsorted(read, segment.idx[own]), max(read.size - 1, 0))
        there = read[at] == segment.idx[own] if read.size else np.zeros(own.size, dtype=np.bool_)
        lost = own[~there]
        lost = lost[~_dropped(segment, lost, newer)]
        if lost.size:
            yield _hidden(segment, lost, newer, replaced=False)
        term, length, crc = (column[at[there]] for column in columns)
        mine = own[there]
        checked = (segment.crc[mine] != 0) & (crc != 0)
        other = (segment.length[mine] != length) | (checked & (segment.crc[mine] != crc))
        overwritten = (term_from[at[there]] > segment.term[mine]) | (segment.idx[mine] <= np.uint64(installed))
        wrong = mine[((term < segment.term[mine]) & ~overwritten) | ((term == segment.term[mine]) & other)]
        if wrong.size:
            yield _hidden(segment, wrong, newer, replaced=True)


def hidden_errors(log: LogState, *, cut: int | None) -> list[EntriesHiddenError]:
    """One error for each segment with such entries, which the write-ahead log does not hold either. `cut`: as above.

    DamagedWalError, InvalidWalFormatError: it may hold them, and cannot be read.
    """
    unknown = log.snapshot_index is not None and log.live is None
    if unknown or not any(True for _ in hidden_entries(log, log.live_mask, cut=cut)):
        return []
    real = Path(os.path.realpath(log.directory))
    waiting = waiting_in(log.wal_directory or real.parent, os.fsencode(real.name))
    # From the first one that waits on, a reader asks the write-ahead log.
    bound = np.uint64(min(waiting.smallest if waiting else MAX_INDEX, MAX_INDEX if cut is None else cut))
    found = hidden_entries(log, lambda indexes: log.live_mask(indexes) & (indexes < bound), cut=cut)
    return [EntriesHiddenError(str(log.directory / one.by), str(one)) for one in found]


def _dropped(segment: SegmentIndex, rows: RowArray, newer: tuple[SegmentIndex, ...]) -> BoolArray:
    """Which records a later one at or below their index, of a higher term, has dropped."""
    dropped = np.zeros(rows.size, dtype=np.bool_)
    if not rows.size:
        return dropped
    for later in newer:
        if later.count:
            dropped |= _latest_up_to(later.idx, later.term, segment.idx[rows]) > segment.term[rows]
    for place in np.flatnonzero(~dropped).tolist():
        # In the file itself, which few records are overwritten in.
        row = int(rows[place])
        behind = segment.idx[row + 1 :] <= segment.idx[row]
        dropped[place] = bool(np.any(segment.term[row + 1 :][behind] > segment.term[row]))
    return dropped


def _latest_up_to(idx: U64Array, term: U64Array, indexes: U64Array) -> U64Array:
    """The highest term of the records at or below each of the indexes; 0 without any."""
    order = np.argsort(idx, kind="stable")
    highest = np.maximum.accumulate(term[order])
    place = np.searchsorted(idx[order], indexes, side="right")
    found: U64Array = np.where(place > 0, highest[np.maximum(place, 1) - 1], np.uint64(0))
    return found


def _hidden(segment: SegmentIndex, rows: RowArray, newer: tuple[SegmentIndex, ...], *, replaced: bool) -> HiddenEntries:
    indexes = np.unique(segment.idx[rows])
    by = next((later.name for later in newer if later.count and later.first <= int(indexes[0])), segment.name)
    return HiddenEntries(segment.name, indexes, by, replaced)
