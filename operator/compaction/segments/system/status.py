"""A log at one moment, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from compaction.segments.memtable.table import LogPosition
from compaction.segments.system.row import LogRow


@dataclass(frozen=True, slots=True)
class LogStatus:
    """`last`, `last_written`: the last entry, and the last one up to which everything is durable; None without any.

    `segment_bytes` of payload are in `segments` files; `unflushed` entries, and hidden ones, hold `unflushed_bytes` in
    memory and are in the write-ahead log only.
    """

    uid: str
    last: LogPosition | None
    last_written: LogPosition | None
    row: LogRow
    segments: int
    segment_bytes: int
    unflushed: int
    unflushed_bytes: int
