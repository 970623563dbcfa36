"""A log with something of each kind for a compaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.segments.format.segment_file import LogWriter
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """1-8 dead; 9-16 and 17-24 sparse; 25-32 dense; 33-40 newest. Snapshot 32."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=8) as writer:
        for index in range(1, 41):
            writer.append(index, 1, b"entry %d" % index)
    write_snapshot(directory, index=32, term=1, live=LiveSet.parse("9,17,25-32"))
    return directory
