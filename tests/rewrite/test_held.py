"""A held lease is judged by the local monotonic clock, from the moment a renewal was sent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.worker.attempt import HeldJobLease
from compaction.worker.errors import JobStoppedError, LeaseLostError
from support.processes.worker_ports import assignment, small_spec

DURATION = 15.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> HeldJobLease:
    return HeldJobLease(assignment(small_spec(), lease=DURATION), sent_at=clock.now, clock=clock)


def test_held_until_the_duration_after_the_sent_renewal(lease: HeldJobLease, clock: Clock) -> None:
    clock.now += DURATION - 0.001
    lease.ensure_held()
    clock.now += 0.001
    assert lease.should_stop()
    with pytest.raises(LeaseLostError, match="not renewed for 15 s"):
        lease.ensure_held()


def test_a_renewal_answered_in_the_instant_of_expiry_counts_unless_somebody_has_asked(
    lease: HeldJobLease, clock: Clock
) -> None:
    clock.now += DURATION
    lease.renewed(sent_at=clock.now - 1)
    lease.ensure_held()
    clock.now += DURATION - 1
    assert lease.should_stop(), "asked first: the job may have stopped because of the answer"
    lease.renewed(sent_at=clock.now - 1)
    assert lease.should_stop()


def test_a_renewal_raises_the_share_of_a_job_that_has_one(clock: Clock) -> None:
    given = replace(assignment(small_spec()), bytes_per_second=100)
    lease = HeldJobLease(given, sent_at=clock.now, clock=clock)
    assert lease.bytes_per_second == 100
    lease.renewed(sent_at=clock.now, granted=250)
    assert lease.bytes_per_second == 250
    lease.renewed(sent_at=clock.now, granted=None)
    assert lease.bytes_per_second == 250, "a Lease that names no share (any more) changes nothing"


def test_a_job_that_began_without_a_limit_stays_without(lease: HeldJobLease, clock: Clock) -> None:
    lease.renewed(sent_at=clock.now, granted=250)
    assert lease.bytes_per_second is None


def test_a_slow_answer_does_not_prolong_the_lease(lease: HeldJobLease, clock: Clock) -> None:
    sent = clock.now + 5
    clock.now += 14
    lease.renewed(sent_at=sent)
    clock.now = sent + DURATION
    assert lease.should_stop()


def test_a_process_that_slept_finds_its_lease_lost_and_never_gets_it_back(lease: HeldJobLease, clock: Clock) -> None:
    clock.now += 3600
    assert lease.should_stop()
    lease.renewed(sent_at=clock.now)
    with pytest.raises(LeaseLostError):
        lease.ensure_held()
    assert not lease.taken, "nobody is known to have it: a report may still be welcome"


def test_taken_by_another_is_lost_at_once(lease: HeldJobLease) -> None:
    lease.lose("holder other")
    assert lease.taken
    with pytest.raises(LeaseLostError, match="holder other"):
        lease.ensure_held()


def test_a_stop_keeps_the_lease(lease: HeldJobLease) -> None:
    lease.request_stop("SIGTERM")
    assert lease.should_stop()
    assert lease.why_lost is None
    with pytest.raises(JobStoppedError, match="SIGTERM"):
        lease.ensure_held()


@given(steps=st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=20))
def test_held_exactly_while_every_look_was_in_time(steps: list[tuple[float, bool]]) -> None:
    clock = Clock()
    lease = HeldJobLease(assignment(small_spec(), lease=DURATION), sent_at=clock.now, clock=clock)
    sent, lost = clock.now, False
    for pause, renew in steps:
        clock.now += pause
        if renew:
            lease.renewed(sent_at=clock.now)
            sent = clock.now
        lost = lost or clock.now >= sent + DURATION
        assert lease.should_stop() is lost


def test_progress_never_goes_back(lease: HeldJobLease) -> None:
    for percent in (10, 40, 30, 150, -1):
        lease.set_progress(percent)
    assert lease.progress == 100
