"""What the processes of tests/crash do: in a module of their own, so that a spawned interpreter can import it."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

from compaction.segments.commit import commit, fence
from compaction.segments.commit.records import RewrittenGroup
from compaction.segments.directory import lock
from compaction.segments.planning.plan import plan_log
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.reading.view import open_log
from compaction.segments.rewriting import kernel

JOB = "job"


def rewrite(log: Path, token: int) -> RewrittenGroup:
    """The first group of the log's plan, rewritten by attempt `token`."""
    state = open_log(log)
    assert state.live is not None
    groups = plan_log(state, SegmentLimits()).groups
    return kernel.rewrite_group(
        log, sources=groups[0].sources, live=state.live, limits=SegmentLimits(), job=JOB, token=token
    )


def race(log: Path, token: int, results: multiprocessing.Queue[str]) -> None:
    """A whole attempt; its outcome goes to `results`."""
    try:
        fence.claim(log, job=JOB, token=token, holder=f"racer-{token}")
        group = rewrite(log, token)
        commit.commit_group(log, job=JOB, token=token, group=group, holder=f"racer-{token}")
        results.put("committed")
    except Exception as error:  # noqa: BLE001  (whatever ends a racer is its result)
        results.put(type(error).__name__)


def hold(log: Path, seconds: float, ready: multiprocessing.Queue[int]) -> None:
    """Hold the log's lock; says its process id when it has it."""
    with lock.hold(log, holder="slow", job="slow-job"):
        ready.put(os.getpid())
        time.sleep(seconds)
