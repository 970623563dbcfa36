"""Expiry by local observation: exact to the instant, blind to everybody else's clock."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.leases.record import LeaseObserver, LeaseRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def held(*, renewal: int = 0, duration: int | None = 15, skew: timedelta = timedelta()) -> LeaseRecord:
    return LeaseRecord("w", duration, 1, NOW + skew, NOW + skew + timedelta(seconds=renewal))


def test_expires_exactly_one_duration_after_the_last_change_was_seen() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    assert observer.observe("j", held())
    clock.now = 114.999
    assert not observer.expired("j")
    clock.now = 115.0
    assert observer.expired("j")


def test_seeing_the_same_record_again_does_not_restart_the_measure() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    clock.now = 110.0
    assert not observer.observe("j", held())
    assert observer.expires_at("j") == 115.0


@pytest.mark.parametrize("renewed", [True, False])
def test_a_renewal_seen_in_the_instant_of_expiry_is_in_time(renewed: bool) -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    clock.now = 115.0
    observer.observe("j", held(renewal=15 if renewed else 0))
    assert observer.expired("j") is not renewed


def test_a_renewal_restarts_it() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    clock.now = 114.0
    assert observer.observe("j", held(renewal=1))
    assert observer.expires_at("j") == 129.0


def test_a_lease_never_seen_is_not_expired_and_a_new_observer_measures_afresh() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    assert not observer.expired("j")
    assert observer.expires_at("j") is None
    observer.observe("j", held(skew=timedelta(days=-365)))  # written by a machine whose clock is a year behind
    assert not observer.expired("j")


def test_a_released_lease_is_free_at_once() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    observer.observe("j", held().released(now=NOW))
    assert observer.expired("j")


def test_the_duration_of_the_holder_counts_and_the_default_only_fills_a_gap() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(default_duration=7.0, clock=clock)
    observer.observe("long", held(duration=60))
    observer.observe("none", held(duration=None))
    assert observer.expires_at("long") == 160.0
    assert observer.expires_at("none") == 107.0


def test_a_forgotten_lease_is_measured_from_the_start() -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held())
    observer.forget("j")
    assert "j" not in observer
    clock.now = 200.0
    observer.observe("j", held())
    assert observer.expires_at("j") == 215.0


@given(
    renewals=st.lists(st.floats(0.0, 20.0), max_size=30),
    skew=st.integers(-(10**6), 10**6),
)
def test_a_holder_that_renews_in_time_never_expires_whatever_its_clock_says(renewals: list[float], skew: int) -> None:
    clock = Clock()
    observer: LeaseObserver[str] = LeaseObserver(clock=clock)
    observer.observe("j", held(skew=timedelta(seconds=skew)))
    for number, pause in enumerate(renewals, start=1):
        clock.now += pause
        assert observer.expired("j") == (pause >= 15.0)
        observer.observe("j", held(renewal=number, skew=timedelta(seconds=skew)))
        assert not observer.expired("j")
