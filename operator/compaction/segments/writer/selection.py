"""Which entries of a rolled write-ahead log file go into segments: pure (docs/design/segment-wal.md#flush)."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.segments.memtable.seq import Seq
from compaction.segments.model import MAX_INDEX
from compaction.segments.system.row import LogRow


def select(written: Sequence[Seq], row: LogRow, stored: int | None = None) -> list[Seq]:
    """What is kept of each table's indexes in the file; `written` and the result are oldest table first. `stored`: the
    last index that the segments hold, None for none.

    Nothing below the smallest live index; of an older table nothing from the first index of a newer one on, which
    overwrites it; below the snapshot live entries only, above it all. And the last dead entry that goes back behind
    what is stored above the snapshot, if no other entry does: without it, what it overwrote would be there again.
    """
    kept: list[Seq] = []
    limit: int | None = None
    for indexes in reversed(written):
        part = indexes if limit is None else indexes.limit(limit - 1) if limit else Seq()
        if indexes.first is not None:
            limit = indexes.first if limit is None else min(limit, indexes.first)
        kept.append(_kept(part, row, stored))
    return kept[::-1]


def _kept(part: Seq, row: LogRow, stored: int | None) -> Seq:
    needed = row.needed(part.floor(row.smallest_live))
    if row.snapshot_index is None or stored is None or stored <= row.snapshot_index:
        return needed
    following = needed.first
    dead = part.limit(min(row.snapshot_index, MAX_INDEX if following is None else following - 1)).last
    if dead is None or following == dead + 1:
        return needed
    return needed.over(Seq([(dead, dead)]))
