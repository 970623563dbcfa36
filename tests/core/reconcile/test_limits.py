"""Limits met exactly: the last attempt, the last place in the queue, the renewal in the instant of expiry."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.base import timestamp_from_epoch
from compaction.api.enums import JobState, WorkerTrouble
from compaction.core.planning.scheduler import Grant
from compaction.core.reconcile.observations import Allowance, LimitDemand, OperatorLimits
from compaction.core.reconcile.policy import reconcile
from compaction.core.reconcile.shared_limits import SETTLING, TURN, SharedLimits
from support.cluster.world import PlainCluster
from support.timing import examples

LEASE = 15.0


def started(**limits: int) -> PlainCluster:
    """One log, one job, one worker, and the job running."""
    world = PlainCluster(limits=limits)
    world.add_log("/ra/a")
    world.settle()
    world.announce()
    world.settle()
    assert world.state(world.only_job()) is JobState.IN_PROGRESS
    return world


def pass_time(world: PlainCluster, seconds: float) -> None:
    """Time passes, and workers renew their own Leases; those of jobs stay silent."""
    world.wall += seconds
    for worker in world.workers.values():
        worker.changed_at = world.wall


def expire(world: PlainCluster) -> None:
    pass_time(world, LEASE + 1)
    world.settle()


def fail(world: PlainCluster) -> None:
    world.report(world.only_job(), outcome="Failed")
    pass_time(world, 1)
    world.settle()


@pytest.mark.parametrize("attempts", [1, 2, 3, 20])
@pytest.mark.parametrize("end", [expire, fail], ids=["expired", "failed"])
def test_exactly_as_many_attempts_as_the_limit_says(attempts: int, end: object) -> None:
    assert callable(end)
    world = started(maxAttempts=attempts)
    job = world.only_job()
    for number in range(1, attempts + 1):
        assert world.state(job) is JobState.IN_PROGRESS, f"attempt {number} of {attempts} was not made"
        assert world.jobs[job].status.fencing_token == number
        end(world)
        if world.state(job) is JobState.ABANDONED:  # a failure waits before the next attempt, never for longer
            pass_time(world, 61)
            world.settle()
    status = world.jobs[job].status
    assert (status.state, status.failures) == (JobState.FAULTY, attempts)
    pass_time(world, 3600)
    world.settle()
    assert world.jobs[job].status.fencing_token == attempts, "nobody tries it again"


def test_the_queue_takes_exactly_as_many_jobs_as_the_limit_says() -> None:
    world = PlainCluster(limits={"maxJobsQueued": 2})
    for name in "abc":
        world.add_log(f"/ra/{name}")
    world.settle()
    assert len(world.jobs) == 2
    world.announce()
    world.settle()
    for job in list(world.jobs):
        world.finish(job)
    for _ in range(3):
        pass_time(world, 61)
        world.settle()
    logs = {job.spec.sources.segment_log.path for job in world.jobs.values() if job.spec.sources.segment_log}
    assert logs == {"/ra/a", "/ra/b", "/ra/c"}, "what found no place is planned when there is one"


@pytest.mark.parametrize(("renewed", "token"), [(True, 1), (False, 2)])
def test_a_renewal_seen_in_the_instant_of_expiry_counts(renewed: bool, token: int) -> None:
    world = started()
    job = world.only_job()
    pass_time(world, LEASE)
    if renewed:
        world.renew(job)
    world.settle()
    assert world.jobs[job].status.fencing_token == token
    assert world.commit(job, 1) is renewed, "the store and the coordinator agree whose job it is"


# Limits of the operator, as one policy meets them: launches, workers given back, bytes per second, and the words.

LIMITS = OperatorLimits(max_workers=4, bytes_per_second=1000)


def allowed(workers: Grant | None = None, rate: Grant | None = None) -> Allowance:
    return Allowance(LIMITS, workers, rate)


def world_with(logs: int, allowance: Allowance, *, workers: int = 3, slots: int = 1, **limits: int) -> PlainCluster:
    world = PlainCluster(workers={"max": workers, "slots": slots}, limits={"maxConcurrentJobs": 8, **limits})
    world.allowance = allowance
    for i in range(logs):
        world.add_log(f"/ra/{i}")
    settle(world)
    return world


def settle(world: PlainCluster) -> None:
    world.rest()
    world.announce()
    world.rest()


def reasons(world: PlainCluster) -> dict[str, int]:
    return {row.reason: row.count for row in world.status.waits}


def test_no_more_workers_are_started_than_the_policy_may_hold() -> None:
    world = world_with(5, allowed(Grant(2, 2, 2)))
    assert len(world.workers) == 2
    assert reasons(world) == {"OperatorWorkerLimit": 3}
    [row] = world.status.waits
    assert row.message == "all policies have 4 workers together (--max-workers), 2 of them are this policy's"


def test_before_its_turn_a_policy_starts_none_and_says_so_with_an_age() -> None:
    world = world_with(2, allowed(Grant(0, 0, 0), Grant(0, 0, 0)))
    assert world.workers == {}
    world.pass_time(30)
    waiting = world.status.waiting
    assert waiting is not None
    assert waiting.reason == "OperatorWorkerLimit"
    assert "turn" in waiting.message
    assert (timestamp_from_epoch(world.wall) - waiting.since).total_seconds() >= 30


def test_its_own_limit_still_holds() -> None:
    world = world_with(5, allowed(Grant(4, 4, 4)), workers=1)
    assert len(world.workers) == 1
    assert reasons(world) == {"NoFreeSlot": 4}


def test_workers_are_given_back_as_their_jobs_end() -> None:
    world = world_with(6, allowed(Grant(3, 3, 3)))
    assert len(world.in_state(JobState.IN_PROGRESS)) == 3
    world.allowance = allowed(Grant(1, 1, 1))
    world.rest()
    assert len(world.workers) == 3  # nothing is interrupted
    for _ in range(2):
        for job in world.in_state(JobState.IN_PROGRESS)[:2]:
            world.finish(job)
        settle(world)
    assert len([worker for worker in world.workers.values() if worker.process == "running"]) == 1
    assert len(world.in_state(JobState.IN_PROGRESS)) == 1


def test_an_idle_worker_is_given_back_at_once() -> None:
    world = world_with(1, allowed(Grant(1, 1, 1)))
    world.finish(world.only_job())
    world.rest()
    assert len(world.workers) == 1
    world.allowance = allowed(Grant(0, 0, 0))
    world.rest()
    assert world.workers == {}


def wish_of(world: PlainCluster) -> tuple[int, int, int | None, int]:
    demand = reconcile(world.snapshot()).demand
    return demand.workers, demand.holds, demand.bytes_per_second, demand.granted


def test_a_policy_wishes_what_it_could_use_alone() -> None:
    world = world_with(5, allowed(Grant(1, 1, 1), Grant(500, 500, 500)), slots=2)
    assert wish_of(world) == (3, 1, None, 500)  # 2 jobs run with 250 each, 3 wait
    world.change_spec(suspend=True)
    world.rest()
    assert wish_of(world) == (1, 1, 500, 500)
    for job in world.in_state(JobState.IN_PROGRESS):
        world.finish(job)
    world.rest()
    assert wish_of(world) == (0, 1, 0, 0)


def test_a_policy_that_is_gone_wishes_nothing_and_still_holds_its_workers() -> None:
    world = world_with(1, allowed(Grant(1, 1, 1)))
    world.policy = None
    assert wish_of(world) == (0, 1, 0, 0)


def test_jobs_have_the_policy_s_share_of_the_operator_s_bytes() -> None:
    world = world_with(4, allowed(None, Grant(600, 600, 600)), slots=4, workers=1)
    assert [lease.bytes_per_second for lease in world.leases.values()] == [150] * 4
    assert world.status.granted_bytes_per_second == 600


def test_a_share_that_others_still_have_is_waited_for() -> None:
    world = world_with(2, allowed(None, Grant(600, 200, 200)), slots=4, workers=1)
    assert world.leases == {}
    assert reasons(world) == {"OperatorRateLimit": 2}
    world.allowance = allowed(None, Grant(600, 300, 300))
    settle(world)
    assert [lease.bytes_per_second for lease in world.leases.values()] == [300]


def test_the_smaller_of_both_limits_counts_and_is_named() -> None:
    world = world_with(2, allowed(None, Grant(600, 600, 600)), slots=4, workers=1, bytesPerSecond=400)
    assert [lease.bytes_per_second for lease in world.leases.values()] == [200, 200]
    world.add_log("/ra/new")
    world.pass_time(75)
    assert reasons(world) == {"RateLimited": 1}


def test_a_worker_that_waits_for_room_is_given_back_first() -> None:
    """Or a policy whose pods find no room would keep what others could use."""
    world = world_with(1, allowed(Grant(2, 2, 2)))
    world.add_log("/ra/more")
    world.pass_time(75)
    world.rest()
    (pending,) = (name for name, worker in world.workers.items() if not worker.has_lease)
    world.workers[pending].trouble = WorkerTrouble.UNSCHEDULABLE
    world.allowance = allowed(Grant(1, 1, 1))
    world.rest()
    assert pending not in world.workers
    assert len(world.in_state(JobState.IN_PROGRESS)) == 1


# The ledger of the operator's limits: turns, restarts, and that nobody starves whatever the others do.

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
