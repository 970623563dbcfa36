"""Which entries of a rolled write-ahead log file go into segments: pure (docs/design/segment-wal.md#flush)."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.stores.segments.memtable.seq import Seq
from compaction.stores.segments.system.row import LogRow


def select(written: Sequence[Seq], row: LogRow) -> list[Seq]:
    """What is kept of each table's indexes in the file; `written` and the result are oldest table first.

    Nothing below the smallest live index; of an older table nothing from the first index of a newer one on, which
    overwrites it; below the snapshot live entries only, above it all.
    """
    kept: list[Seq] = []
    limit: int | None = None
    for indexes in reversed(written):
        part = indexes if limit is None else indexes.limit(limit - 1) if limit else Seq()
        if indexes.first is not None:
            limit = indexes.first if limit is None else min(limit, indexes.first)
        kept.append(row.needed(part.floor(row.smallest_live)))
    return kept[::-1]
