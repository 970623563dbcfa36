"""Segment writers that keep the wrong entries, in the place of `system.rules.select`: tests must find it."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.segments.memtable import Seq
from compaction.segments.system.rules import LogRow, select


def live_only_above(written: Sequence[Seq], row: LogRow, _: int | None) -> list[Seq]:
    """It drops what is live below the snapshot."""
    return [seq.floor(0 if row.snapshot_index is None else row.snapshot_index + 1) for seq in written]


def nothing_hides(written: Sequence[Seq], row: LogRow, _: int | None) -> list[Seq]:
    """It does not look at what the segments hold."""
    return select(written, row)
