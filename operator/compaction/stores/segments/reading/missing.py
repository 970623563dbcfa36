"""Live entries that no segment of a log holds: still in a write-ahead log, or lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from compaction.api.text.formatting import plural
from compaction.exceptions import LiveEntriesMissingError
from compaction.stores.segments.model import U64Array
from compaction.stores.segments.reading.view import LogState
from compaction.stores.segments.snapshot.seq import LiveSet


@dataclass(frozen=True, slots=True)
class Missing:
    """How many live indexes have no record in any segment, and the first of them (0 without any)."""

    entries: int = 0
    first: int = 0

    def __bool__(self) -> bool:
        return self.entries > 0

    def __str__(self) -> str:
        what = plural(self.entries, "live entry", "live entries")
        verb = "is" if self.entries == 1 else "are"
        return f"{what} (first index {self.first}) {verb} in no segment that can be read"


NOTHING_MISSING: Final = Missing()


def missing_entries(log: LogState) -> Missing:
    """What is live at or below the snapshot and in no segment. Nothing while what is live is unknown.

    An entry that newer segments hide is not missing: its segment is left alone until it can be read again
    (`unreferenced.find_stranded`).
    """
    if not log.live or sum(_count_readable(log, log.live)) == len(log.live):
        return NOTHING_MISSING
    held: list[U64Array] = [segment.idx[log.live.mask(segment.idx)] for segment in log.segments]
    missing = log.live.without(LiveSet.from_indexes(np.unique(np.concatenate(held)))) if held else log.live
    return Missing(len(missing), missing.smallest) if missing else NOTHING_MISSING


def _count_readable(log: LogState, live: LiveSet) -> list[int]:
    """How many live indexes are read from each segment. One without a gap needs no read of its records."""
    counts = []
    for ref in log.refs:
        rows = log.readable(ref)
        if rows.size == ref.last - ref.first + 1:
            counts.append(live.count_in(ref.first, ref.last))
        else:
            counts.append(int(np.count_nonzero(live.mask(log.segment(ref.name).idx[rows]))))
    return counts


def missing_error(directory: Path, missing: Missing) -> LiveEntriesMissingError:
    """The error for a log without a write-ahead log beside it, in which they might wait."""
    reason = f"{missing}, and no write-ahead log lies beside the log: restore the log from a copy or another member"
    return LiveEntriesMissingError(str(directory), reason)
