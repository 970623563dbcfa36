"""Shares of bytes per second: together never more than the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compaction.planning.rates import Rates, share_of


@given(st.integers(1, 2**40), st.lists(st.integers(1, 300), max_size=30))
def test_what_is_granted_never_exceeds_the_limit(limit: int, wishes: list[int]) -> None:
    """`wishes`: how many jobs could run at once whenever one more is to start."""
    granted: list[int] = []
    for jobs in wishes:
        rates = Rates(limit, sum(granted), share_of(limit, jobs=max(jobs, len(granted) + 1)))
        if rates.room:
            granted.append(rates.share)
        assert sum(granted) <= limit


@given(st.integers(1, 2**40), st.integers(0, 1000))
def test_when_nothing_runs_a_job_may_start(limit: int, jobs: int) -> None:
    assert Rates(limit, 0, share_of(limit, jobs=jobs)).room >= 1


def test_a_limit_lowered_under_running_jobs_lets_no_other_start() -> None:
    assert Rates(limit=10, granted=100, share=5).room == 0
