"""One limit for many: max-min fair, never above the limit, work conserving, in a stable order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compaction.core.planning.scheduler import Grant, Rates, SharedDemand, share_of, share_out, shares, topped_up

LIMITS = st.integers(0, 40)
WANTS = st.lists(st.integers(0, 20), max_size=30)
LINES = st.lists(st.builds(SharedDemand, st.integers(0, 20), st.integers(0, 20)), max_size=30)


@given(LIMITS, WANTS)
def test_shares_are_max_min_fair(limit: int, wants: list[int]) -> None:
    given_out = shares(limit, wants)
    assert sum(given_out) == min(limit, sum(wants))  # never above the limit; what is left over nobody wants
    for share, want in zip(given_out, wants, strict=True):
        assert 0 <= share <= want
        if share < want:
            assert all(other <= share + 1 for other in given_out)  # nobody is better off at the cost of one who lacks


@given(LIMITS, WANTS)
def test_nobody_gets_nothing_while_another_gets_more_than_one(limit: int, wants: list[int]) -> None:
    given_out = shares(limit, wants)
    if any(not share and want for share, want in zip(given_out, wants, strict=True)):
        assert max(given_out) <= 1


@given(LIMITS, WANTS)
def test_what_cannot_be_divided_goes_to_the_first_in_line(limit: int, wants: list[int]) -> None:
    given_out = shares(limit, wants)
    lacking = [share for share, want in zip(given_out, wants, strict=True) if share < want]
    level = min(lacking, default=0)
    # Whoever has one more than another that lacks stands before all that lack and have less.
    more = [place for place, share in enumerate(given_out) if share == level + 1 and wants[place] > level]
    less = [place for place, share in enumerate(given_out) if share == level < wants[place]]
    if less:
        assert all(place < less[0] for place in more)


@given(st.integers(1, 2**50), st.lists(st.integers(0, 2**50), min_size=1, max_size=30))
def test_the_size_of_the_limit_does_not_matter(limit: int, wants: list[int]) -> None:
    assert sum(shares(limit, wants)) == min(limit, sum(wants))


@given(LIMITS, LINES)
def test_what_is_held_and_what_may_be_taken_stay_below_the_limit(limit: int, line: list[SharedDemand]) -> None:
    grants = share_out(limit, line)
    held = sum(claim.holds for claim in line)
    most = sum(max(claim.holds, grant.may_hold) for claim, grant in zip(line, grants, strict=True))
    assert most <= max(limit, held)
    for claim, grant in zip(line, grants, strict=True):
        assert grant.may_hold <= grant.share <= claim.wants
        assert max(grant.may_hold, min(claim.holds, grant.share)) <= grant.may_keep


@given(LIMITS, LINES)
def test_as_much_is_given_back_as_others_lack(limit: int, line: list[SharedDemand]) -> None:
    """After it everybody can have their share; nobody gives anything back for nothing."""
    grants = share_out(limit, line)
    left = [
        SharedDemand(claim.wants, min(claim.holds, grant.may_keep)) for claim, grant in zip(line, grants, strict=True)
    ]
    after = share_out(limit, left)
    assert [grant.share for grant in after] == [grant.share for grant in grants]
    for claim, grant in zip(left, after, strict=True):
        assert max(claim.holds, grant.may_hold) >= grant.share
        assert grant.may_keep >= claim.holds
    lacking = sum(max(0, grant.share - claim.holds) for claim, grant in zip(line, grants, strict=True))
    if sum(claim.holds for claim in line) + lacking <= limit:
        assert left == line


def test_a_policy_that_was_alone_gives_half_back() -> None:
    assert share_out(4, [SharedDemand(4, 4), SharedDemand(10, 0)]) == (Grant(2, 2, 2), Grant(2, 0, 0))
    assert share_out(4, [SharedDemand(4, 3), SharedDemand(10, 0)]) == (Grant(2, 2, 2), Grant(2, 1, 1))


def test_an_idle_worker_stays_until_somebody_lacks_it() -> None:
    assert share_out(2, [SharedDemand(0, 1), SharedDemand(1, 1)]) == (Grant(0, 0, 1), Grant(1, 1, 1))
    assert share_out(2, [SharedDemand(0, 1), SharedDemand(2, 1)]) == (Grant(0, 0, 0), Grant(2, 1, 1))


def test_a_limit_lowered_below_what_is_held_is_given_back() -> None:
    assert share_out(1, [SharedDemand(2, 2), SharedDemand(2, 2)]) == (Grant(1, 1, 1), Grant(0, 0, 0))


# Shares of bytes per second: together never more than the limit, and little of it unused.


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
