"""Tasks of an attempt: never more at once than the engine runs, each result with its number, and no task outlives the
attempt.
"""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from compaction.api.enums import JobReason
from compaction.segments.planning.plan import GroupRanges
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.rewriting import task
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.worker.errors import LeaseLostError
from compaction.worker.tasks import run_tasks
from support.processes.worker_ports import FakeLease, ThreadEngine


def test_each_result_comes_with_the_number_of_its_task(engine: ThreadEngine) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        return number * number

    with closing(run_tasks(work, range(20), engine=engine, lease=FakeLease(), tag="t")) as results:
        found = dict(pair for arrived in results for pair in arrived)
    assert found == {number: number * number for number in range(20)}
    assert most <= engine.parallelism
    assert engine.cancelled == []


def test_whoever_ends_early_leaves_no_task(engine: ThreadEngine) -> None:
    ended = threading.Event()
    done: list[int] = []

    def work(number: int) -> int:
        if number:
            ended.wait(30)
        done.append(number)
        return number

    with closing(run_tasks(work, range(6), engine=engine, lease=FakeLease(), tag="t")) as results:
        assert next(results) == [(0, 0)]
        ended.set()
    assert engine.cancelled == ["t"]
    assert len(done) <= 1 + engine.parallelism, "the others were never begun"


def test_a_lost_lease_leaves_no_task(engine: ThreadEngine) -> None:
    lease = FakeLease(lose_at=2)
    with (
        pytest.raises(LeaseLostError),
        closing(run_tasks(lambda number: number, range(6), engine=engine, lease=lease, tag="t")) as results,
    ):
        for _ in results:
            pass
    assert len(engine.submitted) <= engine.parallelism


def test_a_group_on_which_the_code_fails_is_a_result_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception would be tried again by the engine, and would end the groups beside it."""
    failing: list[Exception] = [MemoryError(), IndexError()]

    def fail(*args: object, **known: object) -> None:
        raise failing.pop()

    monkeypatch.setattr(task, "rewrite_group", fail)
    group = task.GroupTask(
        "/log", "job", 1, ("0000000000000001.segment",), GroupRanges((), ()), LiveSet.empty(), SegmentLimits()
    )
    result = task.run_group(group)
    assert isinstance(result, task.GroupFailure)
    assert result.reason is JobReason.INTERNAL_ERROR
    assert "an unexpected IndexError at segments/rewriting/task.py:" in result.message
    lacking = task.run_group(group)
    assert isinstance(lacking, task.GroupFailure)
    assert (lacking.reason, lacking.message) == (
        JobReason.STORE_UNREADABLE,
        "/log: 0000000000000001.segment: out of memory",
    )
