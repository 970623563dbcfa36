"""The engine of threads: what `worker.ports.Engine` promises, as far as threads can."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from compaction.local.run.workers import ThreadEngine
from compaction.worker.errors import TaskCancelledError


def double(number: int) -> int:
    return 2 * number


def test_tasks_run_and_what_they_raise_arrives() -> None:
    with ThreadEngine(2) as engine:
        assert engine.parallelism == 2
        futures = [engine.submit(double, number, tag="a") for number in range(10)]
        assert [future.result() for future in futures] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
        failing = engine.submit(int, "no number", tag="a")
        with pytest.raises(ValueError, match="no number"):
            failing.result()


def test_cancelled_tasks_do_not_begin_and_running_ones_are_waited_for() -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def wait(name: str) -> None:
        begun.set()
        assert go.wait(60)
        done.append(name)

    with ThreadEngine(1) as engine:
        running = engine.submit(wait, "running", tag="a")
        waiting = engine.submit(done.append, "waiting", tag="a")
        other = engine.submit(done.append, "other", tag="b")
        assert begun.wait(60)
        canceller = threading.Thread(target=engine.cancel, args=("a",))
        canceller.start()
        go.set()
        canceller.join(60)
        assert not canceller.is_alive()
        assert running.done()
        with pytest.raises(TaskCancelledError):
            waiting.result()
        other.result()
    assert done == ["running", "other"]


def test_what_has_not_begun_at_the_end_never_does() -> None:
    begun, go = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        begun.set()
        assert go.wait(60)

    with ThreadEngine(1) as engine:
        engine.submit(wait, "running", tag="a")
        left = engine.submit(double, 1, tag="a")
        assert begun.wait(60)
        threading.Timer(0.05, go.set).start()
    with pytest.raises(CancelledError):
        left.result()
