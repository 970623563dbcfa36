"""What can be read of a log and what it costs on disk, measured from the files alone, before and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compaction.segments.commit import fence
from compaction.segments.errors import CorruptEntryError, LogChangedError
from compaction.segments.reading.reader import EntryFingerprint, read_batches
from compaction.segments.reading.view import open_log

ATTEMPTS: Final = 20
PAUSE_SECONDS: Final = 0.2
UNFINISHED: Final = frozenset({".link", ".compacting", ".partial"})


@dataclass(frozen=True, slots=True)
class LogFacts:
    """One log at one moment.

    `fingerprint` is that of all readable live entries; `unreadable` are the indexes of live entries that fail their
    checksum. `waiting` counts old names whose grace is not over. `disk_bytes` counts every file of the directory once,
    however many names it has.
    """

    path: Path
    fingerprint: str
    entries: int
    unreadable: tuple[int, ...]
    segments: int
    waiting: int
    disk_bytes: int


def measure(directory: Path) -> LogFacts:
    """Read the whole log, every payload checked against its CRC.

    Raises:
        LogChangedError: it was compacted under our hands at every one of several attempts.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return _measure(directory)
        except LogChangedError:
            time.sleep(PAUSE_SECONDS)
    return _measure(directory)


def _measure(directory: Path) -> LogFacts:
    log = open_log(directory)
    corrupt: list[CorruptEntryError] = []
    content = EntryFingerprint()
    for batch in read_batches(log, live_only=True, on_corrupt=corrupt.append):
        content.update_batch(batch)
    return LogFacts(
        path=directory,
        fingerprint=content.hexdigest(),
        entries=content.entries,
        unreadable=tuple(error.index for error in corrupt),
        segments=len(log.segments),
        waiting=waiting(directory),
        disk_bytes=disk_bytes(directory),
    )


def disk_bytes(directory: Path) -> int:
    """Bytes of all segment files below `directory`, hard links counted once and symbolic links not at all."""
    sizes = {}
    for path in directory.glob("*.segment"):
        status = path.lstat()
        if not path.is_symlink():
            sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def waiting(directory: Path) -> int:
    """How many old names wait for the end of their grace, and files of unfinished attempts that were not removed."""
    names = {item.name for item in fence.read(directory).tombstones}
    names |= {path.name for path in directory.iterdir() if path.is_symlink() or path.suffix in UNFINISHED}
    return len(names)
