"""Damage of one entry in a segment: a changed byte of its payload, or its record gone from the index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from compaction.segments.directory.fs import regular_identity, regular_segments
from compaction.segments.errors import CorruptEntryError, EntryMissingError, MissingLiveIndexError, SegmentLogError
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES, FileIdentity

if TYPE_CHECKING:
    from simulation.logs.owner import Owner


@dataclass(frozen=True, slots=True)
class Damage:
    """`index`: of the entry of this log that cannot be read any more."""

    uid: str
    index: int
    segment: Path
    identity: FileIdentity | None

    def is_untouched(self) -> bool:
        """Whether the damaged segment is still there, as a failed job has to leave it."""
        return regular_identity(self.segment) == self.identity

    def is_named_by(self, error: SegmentLogError) -> bool:
        """Whether it is the error of a damaged entry of the log, with its index."""
        named = getattr(error, "index", None)
        return isinstance(error, CorruptEntryError | MissingLiveIndexError | EntryMissingError) and named == self.index


def damage(system: Path, dice: Random, owner: Owner) -> Damage | None:
    """Damages a needed entry in one of the segments that are not the last; None where there is no such entry."""
    uid = dice.choice(("a", "b"))
    log = owner.stepped.system.open_log(uid)
    names = regular_segments(system / uid)[:-1]
    held = [
        (segment, int(row))
        for index in log.indexes()
        for segment, rows in log.segments.view._rows(np.array([index], dtype=np.uint64))
        for row in rows
        if segment.name in names
    ]
    if not held:
        return None
    segment, row = dice.choice(held)
    data = bytearray(segment.path.read_bytes())
    snapshot = log.row.snapshot_index
    below = snapshot is not None and int(segment.idx.max()) <= snapshot
    inside = 0 < row < segment.count - 1 and bool(segment.effective.all())
    if below and inside and dice.random() < 0.7:
        # The record before takes its slot. Above the snapshot what is not there could be a gap.
        size = SLOT_BYTES[segment.version]
        slot = HEADER_BYTES + row * size
        data[slot : slot + size] = data[slot - size : slot]
    else:
        data[int(segment.offset[row])] ^= 0xFF
    segment.path.write_bytes(data)
    log.refresh()
    return Damage(uid, int(segment.idx[row]), segment.path, regular_identity(segment.path))
