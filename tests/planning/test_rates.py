"""Shares of bytes per second: together never more than the limit, and little of it unused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compaction.core.planning.scheduler import Rates, share_of, topped_up


def rates_of(limit: int, granted: list[int], *, slots: int, ready: int) -> Rates:
    """As the assigner makes them."""
    jobs = max(1, min(slots, len(granted) + ready))
    return Rates(limit, sum(granted), share_of(limit, jobs=jobs), coming=max(1, jobs - len(granted)))


@given(
    limit=st.integers(1, 2**40),
    slots=st.integers(1, 20),
    moments=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=30),
)
def test_a_limit_is_used_and_never_exceeded(limit: int, slots: int, moments: list[tuple[int, int]]) -> None:
    """`moments`: how many jobs are ready, and how many of the running ones end before."""
    granted: list[int] = []
    for ready, ended in moments:
        del granted[:ended]
        rates = rates_of(limit, granted, slots=slots, ready=ready)
        starts = min(ready, rates.room, slots - len(granted))
        granted += [rates.each] * max(0, starts)
        assert sum(granted) <= limit or sum(granted) == len(granted)
        if starts and len(granted) < limit:
            unused = limit - sum(granted)
            assert unused * 10 < limit or unused < len(granted) * slots


@given(st.integers(1, 2**40), st.integers(0, 1000))
def test_when_nothing_runs_a_job_may_start(limit: int, jobs: int) -> None:
    assert Rates(limit, 0, share_of(limit, jobs=jobs)).room >= 1


def test_of_nothing_no_job_starts() -> None:
    """Nothing was wanted when the operator's limit was divided; one byte per second would be kept to the job's end."""
    assert Rates(limit=0, granted=0, share=share_of(0, jobs=2)).room == 0
    assert Rates(limit=100, granted=0, share=50, ceiling=0).room == 0


def test_a_limit_lowered_under_running_jobs_lets_no_other_start() -> None:
    assert Rates(limit=10, granted=100, share=5).room == 0


def test_what_is_left_goes_to_the_jobs_that_start() -> None:
    """Two of four ended: those that come divide their shares, whatever would be fair if all began now."""
    assert rates_of(1000, [250, 250], slots=4, ready=1).each == 500
    assert rates_of(1000, [250, 250], slots=4, ready=2).each == 250
    assert (rates_of(1000, [670], slots=2, ready=3).room, rates_of(1000, [670], slots=2, ready=3).each) == (1, 330)
    assert rates_of(1000, [950], slots=2, ready=3).room == 0


@given(granted=st.lists(st.integers(1, 2**40), max_size=20), left=st.integers(0, 2**40))
def test_raised_shares_are_cut_for_none_use_what_is_left_and_no_more(granted: list[int], left: int) -> None:
    after = topped_up(granted, left)
    assert all(now >= before for before, now in zip(granted, after, strict=True))
    unused = sum(granted) + left - sum(after)
    assert 0 <= unused < max(1, len(granted)) or not granted


@given(granted=st.lists(st.integers(1, 1000), min_size=1, max_size=20), left=st.integers(0, 10_000))
def test_the_smallest_shares_are_raised_first(granted: list[int], left: int) -> None:
    after = topped_up(granted, left)
    raised = {now for before, now in zip(granted, after, strict=True) if now > before}
    assert len(raised) <= 1
    assert all(now >= level for level in raised for now in after)
