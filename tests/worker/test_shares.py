"""How far tasks are while they run: what is heard of them only grows, and nobody else is heard."""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compaction.worker import tasks
from compaction.worker.tasks import Shares, Teller
from support.clocks import PATIENCE_SECONDS

LOOPBACK = "127.0.0.1"


class Heard:
    """Adds up what grows; `reached` waits for it."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self._more = threading.Condition()

    def __call__(self, share: float) -> None:
        with self._more:
            self.steps.append(share)
            self._more.notify_all()

    @property
    def whole(self) -> float:
        return sum(self.steps)

    def reached(self, share: float) -> bool:
        with self._more:
            return self._more.wait_for(lambda: self.whole == pytest.approx(share), timeout=PATIENCE_SECONDS)


def teller_of(listening: Shares, number: int, total: int) -> Teller:
    teller = listening.teller(number, total)
    assert teller is not None
    return teller


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TELL_SECONDS", 0.0)


def test_tasks_tell_their_share_from_another_process_or_thread() -> None:
    heard = Heard()
    with Shares(LOOPBACK, [0.5, 0.5], heard) as listening:
        first = pickle.loads(pickle.dumps(teller_of(listening, 0, 100)))
        first(50)
        assert heard.reached(0.25)
        second = teller_of(listening, 1, 10)
        second(10)
        assert heard.reached(0.75)
        first(25)
        assert heard.reached(0.875)
        listening.finish(0)
        listening.finish(1)
        assert heard.whole == pytest.approx(1.0)


def test_a_task_that_moves_more_than_was_thought_is_done_at_most() -> None:
    heard = Heard()
    with Shares(LOOPBACK, [1.0], heard) as listening:
        teller_of(listening, 0, 10)(1_000)
        assert heard.reached(1.0)
        listening.finish(0)
    assert heard.whole == pytest.approx(1.0)


def test_it_is_told_once_in_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once for the first time, however short a while the machine is up (its clock may begin there)."""
    monkeypatch.setattr(tasks, "TELL_SECONDS", 3600.0 + time.monotonic())
    heard = Heard()
    with Shares(LOOPBACK, [1.0], heard) as listening:
        teller = teller_of(listening, 0, 1_000)
        for _ in range(10):
            teller(100)
        assert heard.reached(0.1)
        listening.finish(0)
    assert len(heard.steps) == 2


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), max_size=30))
@example([(0, 5e-324)])
def test_whatever_order_it_arrives_in_it_only_grows(said: list[tuple[int, float]]) -> None:
    heard = Heard()
    listening = Shares(LOOPBACK, [1 / 3] * 3, heard)
    for number, share in said:
        listening._know(number, share)
    assert all(step > 0 for step in heard.steps)
    for number in range(3):
        listening.finish(number)
    assert heard.whole == pytest.approx(1.0)


@pytest.mark.parametrize(
    "said",
    [b"", b"nonsense", b"[1]", b"\xff\xfe", json.dumps({"secret": "guessed", "task": 0, "share": 1.0}).encode()],
)
def test_nobody_else_is_heard(said: bytes) -> None:
    heard = Heard()
    with Shares(LOOPBACK, [1.0], heard) as listening:
        teller = teller_of(listening, 0, 10)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(said, teller.address)
        teller(5)
        assert heard.reached(0.5)
    assert len(heard.steps) == 1


def test_where_nobody_can_listen_tasks_tell_nothing_and_their_end_counts() -> None:
    heard = Heard()
    with Shares("no-such-host.invalid", [0.5, 0.5], heard) as listening:
        assert listening.teller(0, 10) is None
        listening.finish(0)
    assert heard.steps == [0.5]


def test_a_large_task_counts_for_more() -> None:
    heard = Heard()
    with Shares(LOOPBACK, [900, 100], heard) as listening:
        teller_of(listening, 0, 10)(5)
        assert heard.reached(450)
        listening.finish(1)
        assert heard.whole == pytest.approx(550)


def test_it_ends_although_no_datagram_fits_any_more() -> None:
    """The listener is held up, so that the socket's buffer fills and what tells it to end is dropped."""
    held, entered = threading.Event(), threading.Event()

    def slow(share: float) -> None:
        entered.set()
        held.wait(PATIENCE_SECONDS)

    ended = threading.Event()

    def run() -> None:
        with Shares(LOOPBACK, [1.0], slow) as listening:
            teller = teller_of(listening, 0, 10_000)
            teller(1)
            assert entered.wait(PATIENCE_SECONDS)
            for _ in range(5_000):
                teller(1)
            threading.Timer(0.5, held.set).start()
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(PATIENCE_SECONDS)


def test_a_driver_that_is_gone_is_no_error_of_the_task() -> None:
    with Shares(LOOPBACK, [1.0], Heard()) as listening:
        teller = teller_of(listening, 0, 10)
    teller(5)
    Teller(("no-such-host.invalid", 9), "", 0, 1)(1)
    with pytest.raises(OSError, match="refused"), socket.create_connection(teller.address, timeout=5):
        pass
