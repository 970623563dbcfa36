"""The bytes per second of a worker: one bucket for all that runs, over the network."""

from __future__ import annotations

import pickle
from contextlib import ExitStack

import pytest

from compaction.storage.errors import RewriteStoppedError
from compaction.storage.pace import Pace
from compaction.worker.attempt import BudgetClient, RateBudget, budget_of
from compaction.worker.errors import RateBudgetError
from support.processes.worker_ports import ThreadEngine

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
        running = [[secrets[number % jobs], time.now] for number in range(min(cores, tasks))]
        moved, began = 0, time.now
        while time.now < began + 60:
            task = min(running, key=lambda item: item[1])
            time.now = max(time.now, task[1])
            moved += READ
            task[1] = time.now + budget.wait_for(task[0], READ)
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
    monkeypatch.setattr(budget, "wait_for", lambda secret, count: asked.append(count) or min(0.0, take(secret, count)))
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
