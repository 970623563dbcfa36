"""Times and windows: whatever the clocks of the zone do, times go forward and no window sticks."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compaction.core.reconcile import timing
from compaction.core.reconcile.timing import OpenWindow, finished_by, latest_time, next_time, times, window_state

BERLIN = "Europe/Berlin"
ZONES = (BERLIN, "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Etc/UTC", "Asia/Kathmandu")
EXPRESSIONS = (
    "30 2 * * *",
    "0 3 * * *",
    "15,45 1-3 * * *",
    "*/20 * * * *",
    "* * * * *",
    "0 */2 * * *",
    "0 0 * * SUN",
    "59 23 31 12 *",
    "30 */6 1,15 * MON",
    "0 0 29 2 *",
)
HOUR, DAY = 3600.0, 86400.0


def at(zone: str, year: int, month: int, day: int, hour: int = 0, minute: int = 0, *, fold: int = 0) -> float:
    return datetime(year, month, day, hour, minute, tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def local(zone: str, moment: float | None) -> str:
    assert moment is not None
    return datetime.fromtimestamp(moment, ZoneInfo(zone)).isoformat()


MOMENTS = st.integers(int(8 * at("Etc/UTC", 2024, 1, 1)), int(8 * at("Etc/UTC", 2030, 1, 1))).map(lambda n: n / 8)
NEAR_CHANGES = st.builds(
    lambda base, seconds: base + seconds,
    st.sampled_from(
        [
            at(BERLIN, 2026, 3, 29, 1, 59),
            at(BERLIN, 2026, 10, 25, 2, 30),
            at("America/New_York", 2026, 3, 8, 1, 30),
            at("America/New_York", 2026, 11, 1, 1, 30),
            at("Australia/Lord_Howe", 2026, 4, 5, 1, 45),
            at("Australia/Lord_Howe", 2026, 10, 4, 1, 59),
            at("America/Santiago", 2026, 9, 5, 23, 59),
        ]
    ),
    st.integers(int(-16 * HOUR), int(24 * HOUR)).map(lambda n: n / 8),
)
ANY_MOMENT = MOMENTS | NEAR_CHANGES


def test_a_time_that_the_clock_skips_comes_right_after_the_gap() -> None:
    found = next_time("30 2 * * *", BERLIN, at(BERLIN, 2026, 3, 29, 0, 0))
    assert local(BERLIN, found) == "2026-03-29T03:00:00+02:00"
    assert local(BERLIN, next_time("30 2 * * *", BERLIN, found or 0)) == "2026-03-30T02:30:00+02:00"


def test_a_time_that_the_clock_shows_twice_comes_once() -> None:
    first = next_time("30 2 * * *", BERLIN, at(BERLIN, 2026, 10, 25, 0, 0))
    assert local(BERLIN, first) == "2026-10-25T02:30:00+02:00"
    assert local(BERLIN, next_time("30 2 * * *", BERLIN, first or 0)) == "2026-10-26T02:30:00+01:00"
    second_pass = at(BERLIN, 2026, 10, 25, 2, 10, fold=1)
    assert local(BERLIN, next_time("30 2 * * *", BERLIN, second_pass)) == "2026-10-26T02:30:00+01:00"


def test_what_follows_elapsed_time_goes_on_through_both() -> None:
    for start in (at(BERLIN, 2026, 3, 29, 0, 0), at(BERLIN, 2026, 10, 25, 0, 0)):
        found = list(times("*/20 * * * *", BERLIN, after=start, until=start + 6 * HOUR))
        assert found == [start + 1200 * n for n in range(1, 19)]


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), ANY_MOMENT)
def test_times_go_forward_and_are_the_next_ones(expression: str, zone: str, moment: float) -> None:
    found = next_time(expression, zone, moment)
    assert found is not None
    assert found > moment
    assert found % 60 == 0
    between = (moment + found) / 2
    assert next_time(expression, zone, between) == found, "nothing lies in between, seen from anywhere"
    assert next_time(expression, zone, found - 1) == found, "the time itself is found from just before it"


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), ANY_MOMENT, st.floats(60, 40 * DAY))
def test_the_latest_time_is_the_last_of_all(expression: str, zone: str, moment: float, back: float) -> None:
    if expression.startswith("*"):
        back = min(back, DAY)
    every = list(times(expression, zone, after=moment - back, until=moment))
    assert every == sorted(set(every))
    assert latest_time(expression, zone, after=moment - back, until=moment) == (every[-1] if every else None)


@given(
    st.lists(
        st.builds(OpenWindow, st.sampled_from(EXPRESSIONS), st.sampled_from([60.0, 600.0, HOUR, 6 * HOUR, 2 * DAY])),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(ZONES),
    ANY_MOMENT,
)
def test_no_window_sticks(windows: list[OpenWindow], zone: str, moment: float) -> None:
    state = window_state(windows, zone, now=moment)
    opened = [
        (window, found)
        for window in windows
        for found in times(window.schedule, zone, after=moment - window.duration, until=moment)
    ]
    assert state.is_open is bool(opened), "open exactly when a time lies within the duration"
    if state.is_open:
        assert state.closes_at == max(found + window.duration for window, found in opened)
        assert state.closes_at > moment
        assert state.opens_at is None
    else:
        assert state.closes_at is None
        assert state.opens_at is not None
        assert state.opens_at > moment
        assert window_state(windows, zone, now=state.opens_at).is_open, "it does open"
        assert not window_state(windows, zone, now=(moment + state.opens_at) / 2).is_open


@pytest.mark.parametrize("change", [at(BERLIN, 2026, 3, 29, 1, 0), at(BERLIN, 2026, 10, 25, 1, 0)])
def test_a_window_over_a_change_of_clocks_lasts_as_long_as_it_says(change: float) -> None:
    window = OpenWindow("0 1 * * *", 3 * HOUR)
    assert window_state([window], BERLIN, now=change + 3 * HOUR - 1).closes_at == change + 3 * HOUR
    closed = window_state([window], BERLIN, now=change + 3 * HOUR)
    assert not closed.is_open
    assert local(BERLIN, closed.opens_at)[11:16] == "01:00"


def test_without_windows_it_is_always_open() -> None:
    state = window_state((), BERLIN, now=0.0)
    assert (state.is_open, state.opens_at, state.closes_at) == (True, None, None)


@given(ANY_MOMENT, st.floats(1, 30 * HOUR))
@example(at("Etc/UTC", 2026, 1, 1, 22, 0), 2 * HOUR)
def test_work_goes_on_inside_windows_only(moment: float, work: float) -> None:
    windows = [OpenWindow("0 22 * * *", 2 * HOUR)]
    done = finished_by(windows, "Etc/UTC", now=moment, work=work)
    assert done is not None
    day = timedelta(days=1).total_seconds()
    open_seconds = sum(
        max(0.0, min(done, opened + 2 * HOUR) - max(moment, opened))
        for opened in times("0 22 * * *", "Etc/UTC", after=moment - day, until=done)
    )
    assert open_seconds == pytest.approx(work, abs=1e-3)


def test_work_that_never_fits_has_no_end_that_anybody_can_tell() -> None:
    assert finished_by([OpenWindow("0 0 * * *", 60.0)], "Etc/UTC", now=0.0, work=1e9) is None
    assert finished_by((), "Etc/UTC", now=5.0, work=7.0) == 12.0
    assert finished_by((), "Etc/UTC", now=5.0, work=1e9) == 1e9 + 5


def test_rare_windows_are_not_looked_for_beyond_a_year() -> None:
    """Sixteen windows that open every 28 years kept every decision of their policy busy for half a minute."""
    windows = [OpenWindow(f"{minute} 0 */29 2 MON", 744 * HOUR) for minute in range(16)]
    timing._next.cache_clear()
    assert finished_by(windows, BERLIN, now=1.795e9, work=1e9) is None
    assert timing._next.cache_info().misses < 100
