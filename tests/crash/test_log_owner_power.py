"""The power fails while an owner writes, takes snapshots and deletes dead segments; then a compactor comes first.

Before the owner is started again, the log is compacted by what it seems to be, and swept without any grace. Whatever
was left of the unsynced changes, the owner finds every acknowledged entry that its snapshot needs.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import fence, recovery
from compaction.segments.errors import SegmentLogError
from compaction.segments.planning.unreferenced import DeadSegment, SegmentLimits, find_dead
from compaction.segments.reading.view import is_log_directory
from compaction.segments.rewriting.compact import CompactionRequest, compact_log
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.segments.system import compactions
from compaction.segments.system.rules import LogRow
from compaction.segments.system.segments import SegmentView
from crash import test_log_system_power as power
from support.faults.power_loss import Disk, Recorder
from support.timing import at_depth

check = power.check


def life(run: power.Run) -> None:
    """Segments of nine entries, some that die one by one and some together, and overwrites on their borders."""
    for first in range(1, 46, 9):
        run.append("a", first, 9, 1)
    run.flush()
    run.snapshot("a", 20, (2, 14))
    run.append("a", 30, 8, 2)
    run.append("a", 38, 10, 2)
    run.snapshot("a", 33, (14, 21, 33))
    run.flush()
    run.append("a", 48, 9, 2, wait=False)
    run.append("a", 50, 14, 3)
    run.snapshot("a", 47, (33,))
    run.flush()
    run.snapshot("a", 62, ())
    run.append("a", 64, 9, 3)
    run.flush()


def compacted_first(directory: Path, run: power.Run, promises: dict[tuple[str, str], int]) -> None:
    for log in sorted(directory.glob("*/")):
        if is_log_directory(log):
            compact(log)
    check(directory, run, promises)


def compact(log: Path) -> None:
    """A compactor that asks whether it may; what it cannot read it leaves alone."""
    try:
        recovery.recover(log)
        compact_log(log, CompactionRequest("first", SegmentLimits(max_entries=9)))
        sweep.sweep(log, grace_seconds=0, active=frozenset())
    except SegmentLogError:
        return


def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, power.Run, Disk]:
    monkeypatch.setattr(power, "life", life)
    monkeypatch.setattr(power, "check", compacted_first)
    return power.record(tmp_path / "disk")


def test_a_compactor_that_comes_first_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, run, disk = record(tmp_path, monkeypatch)
    deleted = [call for call in recorder.calls if call[0] == "unlink" and str(call[1]).endswith(".segment")]
    marked = [call for call in recorder.calls if call[0] == "rename" and str(call[2]).endswith(fence.FENCE_FILE)]
    assert len(deleted) >= 3
    assert len(marked) >= 2 * 2, "each phase 1 has written its marks, and dropped them"
    each = at_depth(short=6, deep=1)
    tried = power.lose(tmp_path, recorder, run, disk, every=each, within=nullcontext)
    assert tried * each > len(recorder.calls)


def everything_below_the_snapshot(view: SegmentView, row: LogRow, waiting: LiveSet) -> dict[str, DeadSegment]:
    """A phase 1 that forgets what is live."""
    if row.live is None or not view.segments:
        return {}
    return find_dead(view.state(row, waiting), row.live.clip(0, 0))


def test_a_phase_one_that_forgets_what_is_live_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would pass whatever the code does."""
    monkeypatch.setattr(compactions, "dead_in", everything_below_the_snapshot)
    recorded = record(tmp_path, monkeypatch)
    with pytest.raises((AssertionError, SegmentLogError)):
        power.lose(tmp_path, *recorded, kept=frozenset({"everything"}), every=9, within=nullcontext)
