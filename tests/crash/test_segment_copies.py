"""Copies of a log that is being compacted, made as the documentation says: under the log's own lock."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from compaction.segments import sweep
from compaction.segments.commit import commit, fence
from compaction.segments.format.segment_file import LogWriter
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel
from compaction.segments.snapshot.directories import write_snapshot
from compaction.segments.snapshot.live_indexes import LiveSet
from support.stores.segment_logs import content

LIMITS = SegmentLimits(max_sources=2)


def compact(log: Path, finished: threading.Event) -> None:
    """Group after group, each swept at once."""
    state = open_log(log)
    assert state.live is not None
    fence.claim(log, job="job", token=1, holder="test")
    for group in plan_log(state, LIMITS).groups:
        done = kernel.rewrite_group(log, sources=group.sources, live=state.live, limits=LIMITS, job="job", token=1)
        commit.commit_group(log, job="job", token=1, group=done, holder="test")
        sweep.sweep(log, grace_seconds=0, now=4e9)
    finished.set()


@pytest.mark.parametrize("attempt", range(3))
def test_a_copy_under_the_lock_is_whole_at_any_moment(tmp_path: Path, attempt: int) -> None:
    log = tmp_path / "log"
    with LogWriter(log, max_count=8, sync=False) as writer:
        for index in range(1, 321):
            writer.append(index, 1, b"entry %d" % index)
    write_snapshot(log, index=312, term=1, live=LiveSet.from_indexes(range(1, 313, 5)), sync=False)
    before, finished, copies = content(log), threading.Event(), 0
    worker = threading.Thread(target=compact, args=(log, finished))
    worker.start()
    try:
        while copies < 3 or not finished.is_set():
            copy = tmp_path / f"copy-{copies}"
            subprocess.run(
                ["flock", str(log / "compaction.lock"), "cp", "-a", "--", str(log), str(copy)],
                check=True,
                timeout=60,
            )
            assert content(copy) == before
            shutil.rmtree(copy)
            copies += 1
    finally:
        worker.join()
    assert content(log) == before
