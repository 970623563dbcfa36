"""The reasons that segment logs add to those of the core, wherever they stand: of jobs, policies, waits and plans."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.core.fate import Fate


class SegmentReason(StrEnum):
    """Reasons in conditions, attempts, waits and plans."""

    NO_LOGS_FOUND = "NoLogsFound"  # valid and scanned; include and exclude select nothing that holds segment files
    ROOT_NOT_FOUND = "RootNotFound"  # spec.store.segmentLogs.root does not exist where the operator runs
    ROOT_NOT_A_DIRECTORY = "RootNotADirectory"
    OWNER_RUNNING = "OwnerRunning"  # the log's owner runs, or nothing says that it is stopped: stop it cleanly
    LIVE_SET_UNKNOWN = "LiveSetUnknown"  # the snapshot has no `indexes` file
    STORE_LOCKED = "StoreLocked"  # another process held the log's lock: the message names it
    LOCK_HELD = "LockHeld"  # another process holds the log's lock, so the job waits: the message names it
    LOG_NOT_APPENDABLE = "LogNotAppendable"  # clump: entries cannot be appended from outside; the message says why
    LIVE_ENTRIES_MISSING = "LiveEntriesMissing"  # live entries are in no segment: in a write-ahead log, or lost


FATES: Final[Mapping[str, Fate]] = MappingProxyType(
    {
        SegmentReason.LIVE_SET_UNKNOWN: Fate.PARK,
        SegmentReason.STORE_LOCKED: Fate.RETRY,
        SegmentReason.OWNER_RUNNING: Fate.RETRY,
    }
)
