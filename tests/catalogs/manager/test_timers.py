"""Timers and waits for a clock."""

from __future__ import annotations

from threading import Event, Lock

import pytest

from compaction.catalogs.errors import CatalogClosedError
from compaction.catalogs.manager.clock import ClockWaits, HybridClock, ThreadTimer
from compaction.catalogs.model.descriptors import hybrid
from support.catalogs.managers import START, ManualTime, at


def test_actions_run_in_the_order_of_their_time() -> None:
    timer = ThreadTimer()
    ran: list[int] = []
    lock, done = Lock(), Event()

    def action(number: int) -> None:
        with lock:
            ran.append(number)
        if number == 30:
            done.set()

    def fails() -> None:
        raise ValueError("an action fails")

    timer.after(30, lambda: action(30))
    timer.after(2, fails)
    timer.after(1, lambda: action(1))
    timer.after(0, lambda: action(0))
    assert done.wait(60)
    assert ran == [0, 1, 30]
    timer.close()


def test_a_closed_timer_runs_nothing() -> None:
    timer = ThreadTimer()
    ran = Event()
    timer.after(3_600_000, ran.set)
    timer.close()
    timer.after(0, ran.set)
    assert not ran.wait(0.05)


def waits() -> tuple[ManualTime, HybridClock, ClockWaits]:
    time = ManualTime()
    clock = HybridClock(time.now)
    return time, clock, ClockWaits(clock, time)


@pytest.mark.parametrize(("timestamp", "milliseconds"), [(at(5), 5), (at(5) + 1, 6), (at(5) - 1, 5)])
def test_a_wait_ends_at_the_next_whole_millisecond(timestamp: int, milliseconds: int) -> None:
    time, _, waiting = waits()
    future = waiting.until(timestamp)
    time.advance(milliseconds - 1)
    assert not future.done()
    time.advance(1)
    assert future.result(0) is None


def test_a_wait_for_the_past_is_done() -> None:
    _, _, waiting = waits()
    assert waiting.until(at(0)).done()
    assert waiting.until(1).done()


def test_a_clock_that_steps_back_makes_a_wait_longer() -> None:
    time, _, waiting = waits()
    future = waiting.until(at(100))
    time.advance(60)
    time.milliseconds -= 50
    time.advance(89)
    assert not future.done()
    time.advance(1)
    assert future.done()


def test_a_clock_that_another_one_moved_ends_a_wait_at_its_next_check() -> None:
    time, clock, waiting = waits()
    future = waiting.until(at(100))
    clock.update(hybrid(START + 3_600_000))
    time.advance(100)
    assert future.done()
    late = waiting.until(hybrid(START + 3_600_010))
    time.advance(3_600_000 - 101)
    assert not late.done()
    time.advance(11)
    assert late.done()


def test_waits_end_with_the_manager() -> None:
    time, _, waiting = waits()
    future = waiting.until(at(100))
    waiting.close()
    assert isinstance(future.exception(0), CatalogClosedError)
    time.advance(1000)
    assert isinstance(waiting.until(at(0)).exception(0), CatalogClosedError)
