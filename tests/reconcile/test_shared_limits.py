"""The ledger of the operator's limits: turns, restarts, and that nobody starves whatever the others do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.core.reconcile.observations import Allowance, LimitDemand, OperatorLimits
from compaction.core.reconcile.shared_limits import SETTLING, TURN, SharedLimits
from support.depth import examples

Key = tuple[str, str]
A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


def commons(workers: int | None, rate: int | None = None, *, now: float = 0.0) -> SharedLimits[Key]:
    return SharedLimits(OperatorLimits(workers, rate), {}, now=now)


def shares_of(ledger: SharedLimits[Key], *keys: Key) -> list[int]:
    return [grant.share if (grant := ledger.allowance(key).workers) else 0 for key in keys]


def test_nothing_is_allowed_before_it_was_shared_out() -> None:
    ledger = commons(3)
    ledger.note(A, LimitDemand(2), now=0.0)
    assert ledger.allowance(A).workers_within(9) == 0
    assert ledger.share_out(0.2) == (A,)
    assert ledger.allowance(A).workers_within(9) == 2
    assert ledger.share_out(0.4) == ()


def test_without_a_limit_the_policy_alone_decides() -> None:
    assert Allowance().workers_within(7) == 7
    assert Allowance().surplus(7) == 0
    assert not OperatorLimits().any


def test_only_those_that_can_do_something_new_are_looked_at() -> None:
    ledger = commons(2)
    for key in (A, B, C):
        ledger.note(key, LimitDemand(5), now=0.0)
    assert ledger.share_out(1.0) == (A, B)
    ledger.note(A, LimitDemand(5, holds=1), now=1.0)
    ledger.note(B, LimitDemand(5, holds=1), now=1.0)
    assert ledger.share_out(2.0) == ()
    ledger.note(A, LimitDemand(), now=3.0)
    assert ledger.share_out(3.0) == (C,)


def test_with_more_policies_than_workers_they_take_turns() -> None:
    ledger = commons(1)
    ledger.note(A, LimitDemand(1), now=0.0)
    ledger.share_out(0.0)
    ledger.note(A, LimitDemand(1, holds=1), now=0.0)
    ledger.note(B, LimitDemand(1), now=5.0)
    ledger.share_out(5.0)
    assert shares_of(ledger, A, B) == [1, 0]
    assert ledger.share_out(5.0 + TURN - 1) == ()
    assert ledger.share_out(5.0 + TURN) == (A,)  # it has to give back; the other one has to wait until it has
    assert (shares_of(ledger, A, B), ledger.allowance(A).surplus(1)) == ([0, 1], 1)
    assert ledger.allowance(B).workers_within(1) == 0
    ledger.note(A, LimitDemand(1, holds=0), now=70.0)
    assert ledger.share_out(70.0) == (B,)
    assert ledger.allowance(B).workers_within(1) == 1


def test_a_turn_begins_when_somebody_else_has_nothing() -> None:
    ledger = commons(1)
    ledger.note(A, LimitDemand(1, holds=1), now=0.0)
    ledger.share_out(0.0)
    assert ledger.share_out(10 * TURN) == ()
    ledger.note(B, LimitDemand(1), now=10 * TURN)
    ledger.share_out(10 * TURN)
    assert shares_of(ledger, A, B) == [1, 0]


def test_who_cannot_start_a_worker_loses_the_turn_as_well() -> None:
    ledger = commons(1)
    ledger.note(A, LimitDemand(1), now=0.0)
    ledger.note(B, LimitDemand(1), now=1.0)
    ledger.share_out(1.0)
    assert ledger.share_out(1.0 + TURN) == (B,)


def test_a_new_term_begins_with_the_workers_there_are() -> None:
    ledger = SharedLimits(OperatorLimits(3), {A: 2, B: 0}, now=0.0)
    ledger.note(B, LimitDemand(3), now=0.0)
    ledger.share_out(0.2)
    assert ledger.allowance(B).workers_within(9) == 1  # A was not heard yet, and holds two
    ledger.note(A, LimitDemand(2, holds=2), now=0.3)
    ledger.share_out(0.4)
    assert shares_of(ledger, A, B) == [2, 1]


def test_until_everybody_was_heard_each_gets_one_at_most() -> None:
    ledger = SharedLimits(OperatorLimits(5), {A: 0, B: 0}, now=0.0)
    ledger.note(A, LimitDemand(5), now=0.0)
    ledger.share_out(0.2)
    assert ledger.allowance(A).workers_within(9) == 1
    assert ledger.share_out(SETTLING) == (A,)  # B cannot be read, and holds nobody up for ever
    assert ledger.allowance(A).workers_within(9) == 5


def test_who_waited_before_a_restart_is_served_first_after_it() -> None:
    ledger = SharedLimits(OperatorLimits(1), {A: 1, B: 0, C: 0}, now=0.0)
    ledger.note(A, LimitDemand(1, holds=1), now=0.0)
    ledger.note(B, LimitDemand(1), now=0.0, waited=10.0)
    ledger.note(C, LimitDemand(1), now=0.0, waited=20.0)
    ledger.share_out(0.2)
    assert shares_of(ledger, A, B, C) == [0, 0, 1]


def test_a_policy_that_cannot_be_read_keeps_what_it_has_and_gets_nothing() -> None:
    ledger = commons(2)
    ledger.note(A, LimitDemand(2, holds=1), now=0.0)
    ledger.give_up(A)
    ledger.note(B, LimitDemand(2), now=0.0)
    ledger.share_out(0.2)
    assert shares_of(ledger, A, B) == [0, 2]
    assert ledger.allowance(B).workers_within(9) == 1


def test_bytes_go_to_those_that_can_have_a_worker() -> None:
    ledger = commons(1, 1000)
    ledger.note(A, LimitDemand(1, bytes_per_second=None), now=0.0)
    ledger.note(B, LimitDemand(1, bytes_per_second=None), now=1.0)
    ledger.share_out(1.0)
    assert [grant.share if (grant := ledger.allowance(key).bytes) else 0 for key in (A, B)] == [1000, 0]


def test_a_policy_s_own_limit_leaves_more_to_others() -> None:
    ledger = commons(None, 1000)
    ledger.note(A, LimitDemand(1, bytes_per_second=100), now=0.0)
    ledger.note(B, LimitDemand(1, bytes_per_second=None), now=0.0)
    assert ledger.share_out(1.0) == (A, B)
    assert [grant.share if (grant := ledger.allowance(key).bytes) else 0 for key in (A, B)] == [100, 900]


@dataclass
class Busy:
    """A model of a policy: jobs of its own length on each worker, one after the other, for ever or for so many."""

    seconds: float
    jobs: float
    most: int
    done: int = 0
    ends: list[float] = field(default_factory=list)  # of the job on each worker

    @property
    def demand(self) -> LimitDemand:
        return LimitDemand(int(min(self.most, self.jobs + len(self.ends))), holds=len(self.ends))

    def step(self, now: float, allowance: Allowance) -> None:
        over = [end for end in self.ends if end <= now]
        self.done += len(over)
        self.ends = [end for end in self.ends if end > now]
        surplus = allowance.surplus(len(self.ends) + len(over))
        while self.jobs > 0 and len(self.ends) < allowance.workers_within(self.most):
            if over and surplus >= len(over):
                break  # the workers that have just become free are given back
            self.jobs -= 1
            self.ends.append(now + self.seconds)
            if over:
                over.pop()


@settings(max_examples=examples(40))
@given(
    limit=st.integers(1, 6),
    policies=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from((1, 5, 50, float("inf"))), st.integers(1, 5)),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1000),
)
def test_nobody_starves_and_the_limit_holds(limit: int, policies: list[tuple[int, float, int]], seed: int) -> None:
    """Jobs end and policies are looked at in any order; the coordinator is replaced now and then."""
    dice = random.Random(seed)
    fleet = {("ns", f"p{n}"): Busy(*item) for n, item in enumerate(policies)}
    ledger: SharedLimits[Key] = SharedLimits(OperatorLimits(limit), dict.fromkeys(fleet, 0), now=0.0)
    now, progress = 0.0, dict.fromkeys(fleet, 0.0)
    patience = 2 * len(fleet) * (TURN + 40) + SETTLING
    for _ in range(1500):
        now += dice.choice((0.2, 1.0, 3.0))
        if dice.random() < 0.002:
            ledger = SharedLimits(OperatorLimits(limit), {key: len(item.ends) for key, item in fleet.items()}, now=now)
            progress = dict.fromkeys(fleet, now)
        for key in dice.sample(list(fleet), len(fleet)):
            before = fleet[key].done
            fleet[key].step(now, ledger.allowance(key))
            ledger.note(key, fleet[key].demand, now=now)
            if fleet[key].done > before or not fleet[key].demand.wants_work:
                progress[key] = now
        ledger.share_out(now)
        assert sum(len(item.ends) for item in fleet.values()) <= limit
        assert all(now - seen < patience for seen in progress.values())


def test_a_policy_with_running_jobs_is_queued_when_there_is_more_that_is_worth_a_raise() -> None:
    """Also when they had not used up to the byte what they might have; and not for each byte that becomes free."""
    ledger: SharedLimits[tuple[str, str]] = SharedLimits(OperatorLimits(bytes_per_second=1000), {}, now=0.0)
    ledger.note(A, LimitDemand(1, 1, bytes_per_second=None, granted=498), now=0.0)
    ledger.note(B, LimitDemand(1, 1, bytes_per_second=None, granted=500), now=0.0)
    ledger.share_out(1.0)
    ledger.note(B, LimitDemand(1, 1, bytes_per_second=490, granted=490), now=1.0)
    assert A not in ledger.share_out(2.0)
    ledger.note(B, LimitDemand(), now=2.0)
    assert A in ledger.share_out(3.0)
