"""Tasks of an attempt: never more at once than the engine runs, each result with its number, and no task outlives the
attempt.
"""

from __future__ import annotations

import pickle
import threading
from contextlib import ExitStack, closing

import pytest

from compaction.api.enums import JobReason
from compaction.segments.planning.plan import GroupRanges
from compaction.segments.planning.unreferenced import SegmentLimits
from compaction.segments.rewriting import task
from compaction.segments.snapshot.live_indexes import LiveSet
from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import Pace
from compaction.worker.attempt import BudgetClient, RateBudget, budget_of
from compaction.worker.errors import LeaseLostError, RateBudgetError
from compaction.worker.tasks import run_tasks
from support.clocks import PATIENCE_SECONDS
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
            ended.wait(PATIENCE_SECONDS)
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


# The bytes per second of a worker: one bucket for all that runs, over the network.

LIMIT = 1 << 20
READ = 64 << 10


class VirtualTime:
    """The clock of a budget."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("jobs", "tasks", "cores"), [(1, 2, 2), (2, 4, 2), (2, 2, 4), (2, 8, 3)])
def test_a_limit_is_used_whatever_runs_beside_each_other_and_never_exceeded(jobs: int, tasks: int, cores: int) -> None:
    """Each job has its part of the limit and some tasks; of all tasks as many run as there are cores."""
    time = VirtualTime()
    budget = RateBudget("127.0.0.1", clock=time)
    with ExitStack() as stack:
        clients = [stack.enter_context(budget.joined(lambda: LIMIT // jobs)) for _ in range(jobs)]
        secrets = [client.secret for client in clients if client is not None]
        running = [secrets[number % jobs] for number in range(min(cores, tasks))]
        due = [time.now] * len(running)
        moved, began = 0, time.now
        while time.now < began + 60:
            task = due.index(min(due))
            time.now = max(time.now, due[task])
            moved += READ
            due[task] = time.now + budget.wait_for(running[task], READ)
            in_flight = READ * len(running)
            assert moved - in_flight <= LIMIT * (time.now - began)
    assert moved >= 0.97 * LIMIT * 60


def test_the_rate_follows_the_jobs_and_what_was_asked_for_is_still_owed() -> None:
    time = VirtualTime()
    budget = RateBudget("127.0.0.1", clock=time)
    with budget.joined(lambda: 1000) as first, ExitStack() as stack:
        second = stack.enter_context(budget.joined(lambda: 1000))
        assert first is not None
        assert second is not None
        assert budget.wait_for(first.secret, 4000) == 2.0
        stack.close()
        assert budget.wait_for(second.secret, 1) == -1, "its attempt is over"
        assert budget.wait_for(first.secret, 1000) == 5.0, "4,000 bytes are owed, at 1,000 per second now"


def test_a_share_that_is_raised_while_tasks_run_counts_from_the_next_question() -> None:
    time, share = VirtualTime(), 1000
    budget = RateBudget("127.0.0.1", clock=time)
    with budget.joined(lambda: share) as client:
        assert client is not None
        assert budget.wait_for(client.secret, 2000) == 2.0
        share = 4000
        assert budget.wait_for(client.secret, 2000) == 1.0, "2,000 bytes are owed, at 4,000 per second now"


def test_a_task_pays_over_the_network_and_small_reads_ask_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ThreadEngine(parallelism=1)
    budget = budget_of(engine)
    assert budget_of(engine) is budget
    asked: list[int] = []
    take = budget.wait_for

    def wait_for(secret: bytes, count: int) -> float:
        asked.append(count)
        return min(0.0, take(secret, count))

    monkeypatch.setattr(budget, "wait_for", wait_for)
    with budget.joined(lambda: None) as none, budget.joined(lambda: 1 << 30) as client:
        assert none is None
        sent: BudgetClient = pickle.loads(pickle.dumps(client))
        pace = Pace(shared=sent)
        for _ in range(100):
            pace(1000)
        pace(1 << 28)
    assert asked == [sent.step, (1 << 28) - (sent.step - 100_000)]
    with pytest.raises(RateBudgetError, match=r"127\.0\.0\.1:\d+: the worker's driver does not say .* Let executors"):
        Pace(shared=sent)(1 << 29)
    with budget.joined(lambda: 5) as other:
        assert other is not None
        stale = BudgetClient(other.address, sent.secret, 1)
        with pytest.raises(RewriteStoppedError, match="has ended"):
            Pace(shared=stale)(1)
    engine.close()
