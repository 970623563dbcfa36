"""Compacts every log of a system again and again while its owner writes, as the operator's workers do: it asks whether
it may, and takes the owner's marker for the answer. One line of output for each compaction.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random
from typing import Final

from compaction.segments import sweep
from compaction.segments.errors import LockHeldError, LogChangedError, NotALogDirectoryError, SourcesChangedError
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.rewriting.compact import CompactionRequest, compact_log
from compaction.segments.scan.sense import SenseSettings, sense_root

LIMITS: Final = SegmentLimits(max_entries=48)
EXPECTED: Final = (SourcesChangedError, LogChangedError, NotALogDirectoryError, LockHeldError)
"""What the owner did came first; the next round plans again."""


def compact(log: Path, random: Random) -> int:
    """Groups committed and names deleted."""
    try:
        done = compact_log(log, CompactionRequest("compactor", LIMITS))
        for failure in done.failures:
            if not isinstance(failure, EXPECTED):
                raise failure
        swept = sweep.sweep(log, grace_seconds=random.choice((0.0, 0.5)))
    except EXPECTED as error:
        print(f"{log.name}: {type(error).__name__}", flush=True)
        return 0
    return len(done.receipts) + len(swept.deleted)


def main(directory: Path, seed: int) -> None:
    random = Random(seed)
    while True:
        found = sense_root(directory, SenseSettings(limits=LIMITS))
        assert not found.running, "the owner follows compactions, and has said so"
        for debt in found.logs:
            if did := compact(debt.path, random):
                print(f"{debt.path.name}: did {did}", flush=True)
        time.sleep(random.uniform(0.05, 0.5))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
