"""Live entries that neither a segment of a log nor a write-ahead log file holds: lost, or elsewhere.

What took an entry may have taken more, and any file may be the trace of one. So while one is missing, nothing of its
log is deleted or replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from compaction.api.text.formatting import plural
from compaction.segments.directory.owner import META_FILE, system_of
from compaction.segments.errors import LiveEntriesMissingError
from compaction.segments.model import SegmentIndex
from compaction.segments.snapshot.seq import LiveSet
from compaction.segments.wal.files import wal_files
from compaction.segments.wal.reader import read_wal


@dataclass(frozen=True, slots=True)
class Missing:
    """How many live indexes are nowhere, and the first of them (0 without any)."""

    entries: int = 0
    first: int = 0

    @classmethod
    def of(cls, indexes: LiveSet) -> Missing:
        return cls(len(indexes), indexes.smallest) if indexes else NOTHING_MISSING

    def __bool__(self) -> bool:
        return self.entries > 0

    def __str__(self) -> str:
        what = plural(self.entries, "live entry", "live entries")
        verb = "is" if self.entries == 1 else "are"
        return f"{what} (first index {self.first}) {verb} in no segment that can be read"


NOTHING_MISSING: Final = Missing()


def in_no_segment(segments: Iterable[SegmentIndex], live: LiveSet) -> LiveSet:
    """What is live and has no record in any of the segments. One that newer segments hide has: its segment is left
    alone until it can be read again (`unreferenced.find_stranded`).
    """
    held = [segment for segment in segments if segment.count]
    whole = [one for one in held if one.count == one.last - one.first + 1 and one.effective.all()]
    # A segment without a gap needs no look at its records.
    missing = live.without(LiveSet.from_ranges((one.first, one.last) for one in whole))
    for segment in held:
        if not missing:
            break
        missing = missing.without(LiveSet.from_indexes(np.unique(segment.idx[missing.mask(segment.idx)])))
    return missing


def waiting_in(directory: Path, uid: bytes) -> LiveSet:
    """The indexes of which the write-ahead log files of a directory have a record of this log.

    InvalidWalFormatError, DamagedWalError: a file cannot be read, so it may hold any. OSError passes through.
    """
    ranges: list[tuple[int, int]] = []
    for path in wal_files(directory):
        try:
            with read_wal(path) as reader:
                ranges += [(one.entries[0].index, one.entries[-1].index) for one in reader.runs() if one.writer == uid]
        except FileNotFoundError:
            # Emptied since it was listed: its entries are in segments, which are read after it.
            continue
    return LiveSet.from_ranges(ranges)


def missing_error(directory: Path, missing: LiveSet, wal_directory: Path | None) -> LiveEntriesMissingError:
    """The error for a log of which these entries are missing. `wal_directory`: where its write-ahead log was looked
    for; None: beside the log.
    """
    system = wal_directory or system_of(directory)
    files = wal_files(system)
    if files:
        where = f"nor in the write-ahead log ({plural(len(files), 'file')} in {system})"
    elif wal_directory is None and os.path.lexists(system / META_FILE):
        where = f"and no write-ahead log lies beside {system / META_FILE}: it is lost, or elsewhere (--wal-dir)"
    else:
        where = f"and no write-ahead log lies {'beside the log' if wal_directory is None else f'in {system}'}"
    reason = f"{Missing.of(missing)}, {where}. Nothing of the log is deleted: restore it from a copy or another member"
    return LiveEntriesMissingError(str(directory), reason)
