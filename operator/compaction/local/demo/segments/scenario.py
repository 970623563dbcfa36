"""What the demo compacts: the logs that the members of a key-value store are writing, a log of 128 MiB that was written
before and is damaged, and the policy for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from compaction.api.names import API_VERSION, POLICY_KIND
from compaction.local.demo.cluster import NAMESPACE
from compaction.segments.generate import CorruptedAt, Pattern, corrupt_entry, generate_log
from compaction.segments.reading.view import open_log

POLICY: Final = "logs"
DAMAGED: Final = "archive"
"""The log in which one byte of one live entry is inverted."""
SEGMENTS: Final = 16
ENTRIES_PER_SEGMENT: Final = 4096
PAYLOAD_BYTES: Final = 2048
LIVE_FRACTION: Final = 0.25
DAMAGED_SEGMENT: Final = 6
"""A segment in the middle, so that siblings on both sides have to be compacted without it."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The log that was written before, and where its damage is."""

    path: Path
    damage: CorruptedAt


def create_archive(root: Path) -> Archive:
    """Write the log below `root`, then damage one live entry of it."""
    path = root / DAMAGED
    generate_log(
        path,
        pattern=Pattern.RANDOM,
        segments=SEGMENTS,
        entries_per_segment=ENTRIES_PER_SEGMENT,
        payload_bytes=PAYLOAD_BYTES,
        live_fraction=LIVE_FRACTION,
        # Nothing here has to survive a power cut, and syncing 128 MiB is most of the time.
        sync=False,
    )
    return Archive(path, _damage(path))


def _damage(directory: Path) -> CorruptedAt:
    """Damage the first live entry of the chosen segment: a dead one would not be copied, so its damage could stay
    unnoticed.
    """
    log = open_log(directory)
    segment = log.segments[DAMAGED_SEGMENT]
    record = int(np.flatnonzero(log.live_mask(segment.idx))[0])
    return corrupt_entry(directory, segment=segment.name, record=record)


def policy(root: Path) -> dict[str, Any]:
    """The CompactionPolicy as a document. Short times, so that one can watch; several jobs per log, so that there is
    something to see.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": POLICY_KIND,
        "metadata": {"name": POLICY, "namespace": NAMESPACE},
        "spec": {
            "store": {"segmentLogs": {"root": str(root)}},
            "trigger": {"interval": "3s"},
            "limits": {"maxConcurrentJobs": 4, "maxBytesPerJob": "18Mi"},
            "workers": {"launcher": "process", "max": 1, "slots": 2, "idleSeconds": 60, "sparkMaster": "local[2]"},
            "cleanup": {"delay": "5s"},
            "successfulJobsHistoryLimit": 200,
            "failedJobsHistoryLimit": 100,
        },
    }
