"""One limit for many: max-min fair, never above the limit, work conserving, in a stable order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compaction.core.planning.scheduler import Grant, SharedDemand, share_out, shares

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
