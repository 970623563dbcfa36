"""What is known of a log's snapshot, as one value that is replaced, never changed (docs/design/segment-wal.md#row).

The write-ahead log asks it for the smallest live index, the segment writer for everything that must be kept, readers
for what may be missing. It is published only after the snapshot that it describes is durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compaction.segments.errors import SegmentLogError
from compaction.segments.memtable.seq import Seq
from compaction.segments.memtable.table import LogPosition
from compaction.segments.model import MAX_INDEX
from compaction.segments.snapshot.directories import LogSnapshot
from compaction.segments.snapshot.seq import LiveSet


@dataclass(frozen=True, slots=True)
class LogRow:
    """`snapshot_index` None: no snapshot, so everything is kept. `live` None beside a snapshot: what is live at or
    below it is unknown, so everything is kept as well, and nothing is ever taken for dead.

    `coming`: of the snapshot that is being made visible. A compaction in another process goes by it from that moment
    on, and this row by it only afterwards: until then all is kept that either needs, and only what both need is certain
    to be found. It stays when making it visible fails: the directory may show it.
    """

    snapshot_index: int | None = None
    snapshot_term: int = 0
    live: LiveSet | None = None
    coming: LogRow | None = None
    smallest_live: int = field(init=False)
    """Nothing below this index is needed any more."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "smallest_live", self._smallest())

    @classmethod
    def of(cls, snapshot: LogSnapshot | None) -> LogRow:
        """The row of the newest snapshot of a directory, or of a log without one."""
        return cls() if snapshot is None else cls(snapshot.index, snapshot.term, snapshot.live)

    def _smallest(self) -> int:
        if self.snapshot_index is None or self.live is None:
            return 0
        if self.live and self.live.largest > self.snapshot_index:
            raise SegmentLogError(f"live index {self.live.largest} is above the snapshot's index {self.snapshot_index}")
        return self.live.smallest if self.live else self.snapshot_index + 1

    def needs(self, index: int) -> bool:
        """Whether the log must hold the entry of this index, if it was ever written."""
        if self.snapshot_index is None or self.live is None or index > self.snapshot_index:
            return True
        return index in self.live

    @property
    def certain(self) -> LiveSet:
        """What is live, so it was written, and must be found: in a mem table or in a segment."""
        live = LiveSet.empty() if self.live is None else self.live
        if self.coming is None or self.coming.live is None:
            return live
        return live.intersection(self.coming.live)

    @property
    def end(self) -> LogPosition | None:
        """The last entry that a snapshot covers, or one that is coming: nothing at or below it is overwritten."""
        if self.coming is not None:
            return self.coming.end
        return None if self.snapshot_index is None else LogPosition(self.snapshot_index, self.snapshot_term)

    def needed(self, indexes: Seq) -> Seq:
        """Those of the indexes that must be kept: all above the snapshot, and the live ones at or below it."""
        if self.snapshot_index is None or self.live is None:
            return indexes
        above = indexes.within(self.snapshot_index + 1, MAX_INDEX)
        return above.over(indexes.limit(self.snapshot_index).intersection(self.live))
