"""Hybrid clocks: later each time, whatever the source of milliseconds does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.catalogs.errors import CatalogClockError, CatalogClosedError, CatalogLateError, CatalogStoppedError
from compaction.catalogs.log.port import LogTime
from compaction.catalogs.manager.clock import ClockWaits, HybridClock, ThreadTimer, system_milliseconds
from compaction.catalogs.model.descriptors import MAX_LOGICAL, MAXIMUM, hybrid, logical, physical
from support.catalogs.logs import START, ManualTime, Stage, stage, stamp
from support.catalogs.memory_log import ListLog
from support.catalogs.rounds import table
from support.clocks import PATIENCE_SECONDS


def test_a_timestamp_is_the_millisecond_and_a_counter() -> None:
    clock = HybridClock(lambda: 1000)
    assert [clock.now() for _ in range(3)] == [hybrid(1000), hybrid(1000, 1), hybrid(1000, 2)]


@given(
    st.lists(
        st.tuples(st.integers(-5, 1 << 40), st.none() | st.integers(1, MAXIMUM >> 1)),
        min_size=1,
        max_size=30,
    )
)
def test_timestamps_only_grow(steps: list[tuple[int, int | None]]) -> None:
    """A source that steps back, and timestamps of other clocks, in any order."""
    milliseconds = 0
    clock = HybridClock(lambda: milliseconds)
    last = 0
    for milliseconds, remote in steps:
        found = clock.now() if remote is None else clock.update(remote)
        assert found > last
        assert found >= max(milliseconds, 0) << 16
        assert remote is None or found > remote
        last = found
        assert clock.read() == max(last, milliseconds << 16)


def test_a_full_counter_moves_the_millisecond() -> None:
    clock = HybridClock(lambda: 1000)
    assert clock.update(hybrid(1000, MAX_LOGICAL)) == hybrid(1001)
    assert (physical(clock.now()), logical(clock.read())) == (1001, 1)


@pytest.mark.parametrize("remote", [0, -1, MAXIMUM, MAXIMUM + 1])
def test_what_no_timestamp_can_follow(remote: int) -> None:
    with pytest.raises(ValueError, match="no timestamp"):
        HybridClock(lambda: 1000).update(remote)


def test_threads_never_get_the_same() -> None:
    clock = HybridClock(lambda: 1000)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: [clock.now() for _ in range(500)], range(8)))
    assert len({item for each in found for item in each}) == 4000
    assert all(each == sorted(each) for each in found)


def test_the_source_is_the_time_of_day() -> None:
    assert system_milliseconds() > 1_700_000_000_000
    assert physical(HybridClock().now()) > 1_700_000_000_000


# Clocks that are further off than `max_skew`: they move no other, write nothing, and are named.

HOUR = 3_600_000


@dataclass
class DatedLog(ListLog):
    """A log whose server has a clock."""

    server: ManualTime

    def __post_init__(self) -> None:
        super().__init__()

    def time(self) -> LogTime:
        """Cut to the second, as a header of HTTP is."""
        second = self.server.milliseconds // 1_000 * 1_000
        return LogTime(second, second + 1_000, "the server")


def refusal(one: Stage) -> CatalogClockError:
    error = one.manager.execute(table("REFUSED")).exception(0)
    assert isinstance(error, CatalogClockError)
    return error


@pytest.mark.parametrize("off", [HOUR, 2_000, -2_000, -10_000])
def test_a_writer_whose_clock_is_off_that_of_the_log_writes_nothing(off: int) -> None:
    log = DatedLog(ManualTime())
    one = stage(log, time=log.server)
    one.run(table("A"))
    other = stage(log, time=ManualTime(log.server.milliseconds + off), start=False)
    other.manager.start()
    error = refusal(other)
    direction = "ahead of" if off > 0 else "behind"
    assert f"{direction} that of the server, and 500 ms are allowed" in str(error)
    assert "this process (in memory)" in str(error)
    assert 0 < abs(error.off) <= abs(off)
    assert log.version == 2
    one.run(table("B"))


def test_a_log_that_answers_slowly_is_no_clock_that_is_behind() -> None:
    """The time that its answer takes passes before the writer's clock is read."""
    log = DatedLog(ManualTime())
    one = stage(log, time=log.server)

    def slow() -> LogTime:
        log.server.milliseconds += 5_000
        return DatedLog.time(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "time", slow)
        assert one.run(table("A")).version == 2


@pytest.mark.parametrize("off", [400, -400])
def test_a_writer_whose_clock_is_off_by_less_writes(off: int) -> None:
    log = DatedLog(ManualTime())
    one = stage(log, time=ManualTime(START + off), start=False)
    one.manager.start()
    one.time.advance(10_000)
    log.server.advance(10_000)
    assert one.run(table("A")).version == 2


def test_an_empty_log_is_not_begun_by_a_clock_that_is_off() -> None:
    log = DatedLog(ManualTime())
    one = stage(log, time=ManualTime(START + HOUR), start=False)
    one.manager.start()
    assert isinstance(one.manager.initialization.exception(0), CatalogClockError)
    assert log.version == 0


def test_a_version_from_an_hour_ahead_moves_no_clock_and_holds_up_no_statement() -> None:
    """A log without a clock of its own takes it. It is active in an hour; the next statement is refused at once, and
    names the writer, instead of waiting for that hour.
    """
    log = ListLog()
    one, other = stage(log), stage(log)
    other.time.milliseconds += HOUR
    other.manager.execute(table("A"))
    assert log.version == 2
    assert physical(one.manager.clock.now()) < START + HOUR
    (reported,) = one.reported
    assert "in memory, which wrote version 2, is 3,6" in str(reported)
    assert one.manager.latest.version == 2
    assert one.manager.active_version(one.manager.clock.now()) == 1
    error = refusal(one)
    assert (error.who, error.allowed) == ("in memory, which wrote the last version,", 500)
    assert error.off > HOUR - 20_000
    one.time.advance(HOUR)
    assert one.run(table("B")).version == 3


def test_a_version_that_is_active_before_a_time_that_was_complete_is_not_applied() -> None:
    """Its writer's clock is behind by more than `max_skew`: `active` at that time has been answered."""
    log = ListLog()
    one, other = stage(log), stage(log)
    one.time.advance(20_000)
    at = hybrid(one.time.milliseconds)
    complete = one.manager.wait_complete(at)
    one.time.advance(2_000)
    assert complete.done()
    before = one.manager.active(at)
    other.manager.execute(table("A"))
    (stopped,) = one.reported
    assert isinstance(stopped, CatalogStoppedError)
    assert isinstance(stopped.__cause__, CatalogLateError)
    assert "version 2 of in memory has a time " in str(stopped)
    assert "synchronize the clocks of both processes, or raise slowest_append" in str(stopped)
    assert one.manager.active(at) is before


def test_a_version_after_a_complete_time_is_applied() -> None:
    log = ListLog()
    one, other = stage(log), stage(log)
    complete = one.manager.wait_complete(hybrid(one.time.milliseconds))
    one.time.advance(2_000)
    other.time.advance(2_000)
    assert complete.done()
    other.manager.execute(table("A"))
    assert one.manager.latest.version == 2
    assert one.reported == []


# Timers and waits for a clock.


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
    assert done.wait(PATIENCE_SECONDS)
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


@pytest.mark.parametrize(("timestamp", "milliseconds"), [(stamp(5), 5), (stamp(5) + 1, 6), (stamp(5) - 1, 5)])
def test_a_wait_ends_at_the_next_whole_millisecond(timestamp: int, milliseconds: int) -> None:
    time, _, waiting = waits()
    future = waiting.until(timestamp)
    time.advance(milliseconds - 1)
    assert not future.done()
    time.advance(1)
    assert future.result(0) is None


def test_a_wait_for_the_past_is_done() -> None:
    _, _, waiting = waits()
    assert waiting.until(stamp(0)).done()
    assert waiting.until(1).done()


def test_a_clock_that_steps_back_makes_a_wait_longer() -> None:
    time, _, waiting = waits()
    future = waiting.until(stamp(100))
    time.advance(60)
    time.milliseconds -= 50
    time.advance(89)
    assert not future.done()
    time.advance(1)
    assert future.done()


def test_a_clock_that_another_one_moved_ends_a_wait_at_its_next_check() -> None:
    time, clock, waiting = waits()
    future = waiting.until(stamp(100))
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
    future = waiting.until(stamp(100))
    waiting.close()
    assert isinstance(future.exception(0), CatalogClosedError)
    time.advance(1000)
    assert isinstance(waiting.until(stamp(0)).exception(0), CatalogClosedError)
