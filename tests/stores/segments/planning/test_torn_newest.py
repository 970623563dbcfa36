"""A machine lost its power during a flush: half an index slot in the newest segment names an index far below its own.

Until the owner has cleared it, it hides from every reader what lies above that index. Nothing may be given up, and
nothing rewritten, by what such a log seems to be.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compaction.segments.errors import SourcesChangedError
from compaction.segments.format.segment_file import LogWriter, encode_records
from compaction.segments.model import HEADER_BYTES, SLOT_BYTES, segment_name
from compaction.segments.planning.plan import GroupCheck, LeftAloneReason, plan_log
from compaction.segments.planning.unreferenced import SegmentLimits, dead_segments
from compaction.segments.reading.reader import iter_entries
from compaction.segments.reading.view import open_log
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet

LIVE = LiveSet.parse("2,11,19")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Segments of 16 entries; snapshot 24 lies in the middle of segment 2, so 25 to 32 are needed, whatever is live."""
    directory = tmp_path / "log"
    with LogWriter(directory, max_count=16) as writer:
        for index in range(1, 37):
            writer.append(index, 1, b"entry %d" % index * 9)
    write_snapshot(directory, index=24, term=1, live=LIVE)
    return directory


def tear(directory: Path, index: int) -> None:
    """A slot behind the last one, of which only a part has reached the disk."""
    segment = open_log(directory).segments[-1]
    half = {"term": 0, "offset": 0, "length": 70, "crc": 7}
    slot = encode_records(
        idx=np.array([index], np.uint64),
        term=np.array([half["term"]], np.uint64),
        offset=np.array([half["offset"]], np.uint64),
        length=np.array([half["length"]], np.uint32),
        crc=np.array([half["crc"]], np.uint32),
    )
    with segment.path.open("r+b") as file:
        file.seek(HEADER_BYTES + segment.count * SLOT_BYTES[2])
        file.write(slot)


@pytest.mark.parametrize("index", [0, 5, 20])
def test_nothing_is_planned_by_a_log_that_its_owner_has_to_repair(log: Path, index: int) -> None:
    whole = {entry.index for entry in iter_entries(open_log(log))}
    assert plan_log(open_log(log), SegmentLimits()).debt_segments == 1
    tear(log, index)
    state = open_log(log)
    assert max(ref.first for ref in state.refs) == index, "the slot hides what lies above it"
    plan = plan_log(state, SegmentLimits())
    assert (plan.groups, plan.unreferenced, dead_segments(log)) == ((), (), {})
    reasons = {item.reason for item in plan.left_alone}
    assert reasons <= {LeftAloneReason.NEWEST_TORN, LeftAloneReason.STRANDED_ENTRIES}
    assert LeftAloneReason.NEWEST_TORN in reasons
    for sources in ((segment_name(1),), (segment_name(2),)):
        with pytest.raises(SourcesChangedError):
            GroupCheck(state, LIVE).ranges(sources)
    # The owner clears the slot; nothing else was lost.
    segment = state.segments[-1]
    with segment.path.open("r+b") as file:
        file.seek(HEADER_BYTES + (segment.count - 1) * SLOT_BYTES[2])
        file.write(bytes(SLOT_BYTES[2]))
    assert {entry.index for entry in iter_entries(open_log(log))} == whole
