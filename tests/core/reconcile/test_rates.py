"""limits.bytesPerSecond: each job gets a share, together they never have more, and who waits says why."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from compaction.api.enums import JobState
from compaction.api.text.printing import format_bytes
from compaction.core.planning.scheduler import Grant
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import RaiseShare
from compaction.core.reconcile.observations import NO_ALLOWANCE, Allowance, OperatorLimits
from compaction.core.reconcile.shared_limits import SharedLimits
from compaction.errors import ApiUnavailableError
from support.cluster.executed import WorldObjects
from support.cluster.world import PlainCluster, cluster_with
from support.timing import seeds

LIMIT = 1000


def world_with(logs: int, *, limit: int | None = LIMIT, concurrent: int = 4, slots: int = 4) -> PlainCluster:
    limits: dict[str, object] = {"maxConcurrentJobs": concurrent}
    if limit is not None:
        limits["bytesPerSecond"] = limit
    world = cluster_with(logs, limits=limits, workers={"slots": slots, "max": 1})
    world.announce()
    world.rest()
    return world


def granted(world: PlainCluster) -> dict[str, int | None]:
    return {name: lease.bytes_per_second for name, lease in world.leases.items()}


def test_the_jobs_that_could_run_share_the_limit() -> None:
    world = world_with(6)
    assert sorted(granted(world).values(), key=str) == [250] * 4
    for name in granted(world):
        assert world.jobs[name].status.attempts[-1].bytes_per_second == 250
    assert world.status.granted_bytes_per_second == LIMIT
    assert [(row.reason, row.count) for row in world.status.waits] == [("ConcurrencyLimit", 2)]


def test_slots_count_where_they_are_fewer_than_the_limit_of_jobs() -> None:
    assert sorted(granted(world_with(6, slots=2)).values(), key=str) == [500, 500]


def test_a_job_alone_gets_everything_and_the_next_one_waits_with_a_reason() -> None:
    world = world_with(1)
    (first,) = granted(world)
    assert granted(world) == {first: LIMIT}
    world.add_log("/ra/new")
    world.pass_time(75)
    assert granted(world) == {first: LIMIT}
    waiting = world.status.waiting
    assert waiting is not None
    assert waiting.reason == "RateLimited"
    assert "spec.limits.bytesPerSecond" in waiting.message
    world.finish(first)
    world.rest()
    assert world.in_state(JobState.IN_PROGRESS) != []
    assert sum(given or 0 for given in granted(world).values()) <= LIMIT


def test_what_is_said_to_be_granted_includes_the_jobs_that_were_just_started() -> None:
    world = PlainCluster(limits={"maxConcurrentJobs": 4, "bytesPerSecond": LIMIT}, workers={"slots": 1, "max": 1})
    for i in range(3):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.wall += 20  # no write of the status is put off
    world.announce()
    world.reconcile()
    assert len(world.in_state(JobState.IN_PROGRESS)) == 1
    assert world.status.granted_bytes_per_second == LIMIT, "written with the assignment"
    (waiting,) = world.status.waits
    given = format_bytes(LIMIT)
    assert (waiting.reason, waiting.count) == ("RateLimited", 2)
    assert f"the running jobs have {given} of the {given} bytes per second" in waiting.message


def test_a_suspended_policy_says_what_its_running_jobs_still_have() -> None:
    world = world_with(6)
    world.change_spec(suspend=True)
    world.rest()
    assert len(world.in_state(JobState.IN_PROGRESS)) == 4
    assert world.status.granted_bytes_per_second == LIMIT
    for name in list(granted(world)):
        world.finish(name)
    world.rest()
    assert world.status.granted_bytes_per_second == 0


def test_without_a_limit_nobody_is_given_a_share() -> None:
    world = world_with(2, limit=None)
    assert set(granted(world).values()) == {None}
    assert world.status.granted_bytes_per_second is None


def test_a_limit_that_is_lowered_lets_the_running_finish_first() -> None:
    world = world_with(3)
    world.add_log("/ra/new")
    world.change_spec(limits={"bytesPerSecond": 100})
    world.pass_time(75)
    assert len(world.in_state(JobState.IN_PROGRESS)) == 3
    assert [row.reason for row in world.status.waits] == ["RateLimited"]
    for name in world.in_state(JobState.IN_PROGRESS):
        world.finish(name)
    world.rest()
    assert list(granted(world).values()) == [100]


def test_no_worker_is_started_for_jobs_that_no_bytes_are_left_for() -> None:
    world = PlainCluster(limits={"bytesPerSecond": LIMIT}, workers={"slots": 1, "max": 4})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    world.add_log("/ra/b")
    world.pass_time(75)
    assert len(world.workers) == 1
    assert world.status.waits[0].reason == "RateLimited"


def test_the_share_survives_a_coordinator_that_dies_between_lease_and_status() -> None:
    world = world_with(2)
    before = granted(world)
    for name in before:
        world.put_status(name, state=JobState.UNASSIGNED, fencing_token=0, attempts=())
    world.restart()
    world.rest()
    assert granted(world) == before
    assert {world.jobs[name].status.attempts[-1].bytes_per_second for name in before} == {500}


def test_the_end_that_is_told_is_no_earlier_than_the_limit_allows() -> None:
    world = world_with(6, limit=10, concurrent=1)
    (first,) = world.in_state(JobState.IN_PROGRESS)
    world.pass_time(1)
    world.finish(first)
    world.pass_time(15)
    assert world.status.eta_seconds is not None
    assert world.status.eta_seconds >= 5 * 50 * 3 / 10


# Bytes per second that end with a job go to those that run on: never above the limit, and little of it lies idle.

LEASE = 15
RENEWAL = LEASE / 3


def rated_world(logs: int, *, workers: int = 2, allowance: Allowance = NO_ALLOWANCE, **limits: Any) -> PlainCluster:
    """Each job in a worker of its own; everything that ended before the term has stopped."""
    world = PlainCluster(
        limits={"maxConcurrentJobs": 8, "bytesPerSecond": LIMIT, **limits}, workers={"slots": 1, "max": workers}
    )
    world.allowance = allowance
    for i in range(logs):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.announce()
    world.rest()
    world.pass_time(LEASE + 1)
    return world


def granted_rates(world: PlainCluster) -> list[int | None]:
    return [world.leases[name].bytes_per_second for name in running(world)]


def running(world: PlainCluster) -> list[str]:
    return world.in_state(JobState.IN_PROGRESS)


def forget_work(world: PlainCluster) -> None:
    """The store offers nothing more: what is deleted now is not planned again."""
    for log in world.logs.values():
        log.groups.clear()


def test_a_share_that_ends_with_its_job_goes_to_the_job_that_runs_in_another_worker() -> None:
    world = rated_world(2)
    assert granted_rates(world) == [500, 500]
    first, second = running(world)
    world.finish(first)
    world.pass_time(20)
    assert (running(world), granted_rates(world)) == ([second], [LIMIT])
    assert world.status.granted_bytes_per_second == LIMIT
    assert world.jobs[second].status.attempts[-1].bytes_per_second == LIMIT, "the attempt says what its Lease says"


def test_all_that_run_on_divide_it() -> None:
    world = rated_world(3, workers=3)
    assert granted_rates(world) == [333, 333, 333]
    world.finish(running(world)[0])
    world.pass_time(10)
    assert granted_rates(world) == [500, 500]


def test_nothing_is_raised_while_another_job_could_start_with_it() -> None:
    """A worker that starts, or a retry that waits for its backoff, finds its share."""
    world = rated_world(2)
    first, second = running(world)
    world.report(first, outcome="Failed")
    world.reconcile()
    assert world.state(first) is JobState.ABANDONED
    world.wall += 0.5
    world.settle()
    assert granted_rates(world) == [500], "the retry comes in a second"
    world.pass_time(10)
    assert sorted(running(world)) == sorted([first, second])
    assert granted_rates(world) == [500, 500]


def test_what_follows_from_the_output_of_a_job_is_planned_before_anything_is_raised() -> None:
    world = rated_world(2)
    first, second = running(world)
    world.finish(first)
    world.add_log("/ra/next")
    world.pass_time(30)
    assert granted_rates(world) == [500, 500]
    assert second in running(world)
    assert first not in running(world)


def test_a_scan_that_does_not_end_holds_nothing_back_for_longer_than_a_minute() -> None:
    world = rated_world(2)
    world.finish(running(world)[0])
    world.memory = store_work.sense_started(world.memory)
    world.pass_time(55)
    assert granted_rates(world) == [500]
    world.pass_time(15)
    assert granted_rates(world) == [LIMIT]


def test_a_job_that_could_not_start_anyway_holds_nothing_back() -> None:
    """All slots are taken, and the limit is raised."""
    world = rated_world(4)
    assert len(running(world)) == 2
    world.change_spec(limits={"bytesPerSecond": 2 * LIMIT})
    world.pass_time(10)
    assert granted_rates(world) == [LIMIT, LIMIT]


def test_a_suspended_policy_gives_its_last_jobs_everything() -> None:
    world = rated_world(2)
    world.change_spec(suspend=True)
    world.finish(running(world)[0])
    world.pass_time(10)
    assert granted_rates(world) == [LIMIT]


def test_less_than_a_twentieth_is_not_worth_the_writes() -> None:
    world = rated_world(2)
    world.change_spec(limits={"bytesPerSecond": 1052})
    world.pass_time(60)
    assert granted_rates(world) == [500, 500]
    world.change_spec(limits={"bytesPerSecond": 1053})
    world.pass_time(60)
    assert granted_rates(world) == [526, 526]


def test_jobs_without_a_limit_are_given_none() -> None:
    world = PlainCluster(workers={"slots": 1, "max": 2})
    for i in range(2):
        world.add_log(f"/ra/{i}")
    world.rest()
    world.announce()
    world.pass_time(20)
    world.finish(running(world)[0])
    world.pass_time(20)
    assert granted_rates(world) == [None]


# -- who may still write -----------------------------------------------------------------------------------------------


def test_an_attempt_that_cannot_be_told_keeps_its_share_until_its_worker_has_stopped() -> None:
    """Its job was deleted: the worker learns that with its next renewal, or its lease ends."""
    world = rated_world(2)
    first, _ = running(world)
    forget_work(world)
    del world.jobs[first]
    world.pass_time(LEASE - 1, step=1)
    assert granted_rates(world) == [500]
    world.pass_time(5, step=1)
    assert granted_rates(world) == [LIMIT]


def test_a_lease_that_was_deleted_by_hand_leaves_a_worker_that_may_still_write() -> None:
    world = rated_world(2)
    first, _ = running(world)
    forget_work(world)
    del world.leases[first], world.jobs[first]
    world.pass_time(LEASE - 1, step=1)
    assert granted_rates(world) == [500]
    world.pass_time(5, step=1)
    assert granted_rates(world) == [LIMIT]


def test_a_new_coordinator_waits_until_all_that_its_predecessor_knew_has_stopped() -> None:
    world = rated_world(2)
    first, _ = running(world)
    forget_work(world)
    del world.leases[first], world.jobs[first]
    world.restart()
    world.pass_time(LEASE - 1, step=1)
    assert granted_rates(world) == [500]
    world.pass_time(5, step=1)
    assert granted_rates(world) == [LIMIT]


def test_a_raise_without_an_answer_counts_and_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have happened: a job that comes does not get the same share once more."""
    world = rated_world(2)
    first, second = running(world)
    answers = WorldObjects.raise_share

    async def unanswered(objects: WorldObjects, action: RaiseShare) -> bool:
        raise ApiUnavailableError("no answer")

    monkeypatch.setattr(WorldObjects, "raise_share", unanswered)
    world.finish(first)
    for _ in range(5):
        world.wall += 1
        world.renew_all()
        world.reconcile()
    assert granted_rates(world) == [500]
    world.add_log("/ra/next")
    for _ in range(30):
        world.wall += 5
        world.renew_all()
        world.reconcile()
    assert running(world) == [second]
    assert [row.reason for row in world.status.waits] == ["RateLimited"]
    monkeypatch.setattr(WorldObjects, "raise_share", answers)
    world.pass_time(5)
    assert granted_rates(world) == [LIMIT]


# -- the operator's limit ----------------------------------------------------------------------------------------------


def test_of_the_operator_s_limit_no_more_is_taken_than_others_leave() -> None:
    limits = OperatorLimits(bytes_per_second=2 * LIMIT)
    world = rated_world(2, allowance=Allowance(limits, None, Grant(600, 600, 600)))
    assert granted_rates(world) == [300, 300]
    world.finish(running(world)[0])
    world.pass_time(10)
    assert granted_rates(world) == [600]
    world.allowance = Allowance(limits, None, Grant(900, 700, 700))
    world.pass_time(10)
    assert granted_rates(world) == [700], "others still hold what is this policy's"
    world.allowance = Allowance(limits, None, Grant(2 * LIMIT, 2 * LIMIT, 2 * LIMIT))
    world.pass_time(10)
    assert granted_rates(world) == [LIMIT], "its own limit holds besides"


def test_what_may_still_be_written_with_is_not_offered_to_other_policies() -> None:
    world = rated_world(
        2, allowance=Allowance(OperatorLimits(bytes_per_second=LIMIT), None, Grant(LIMIT, LIMIT, LIMIT))
    )
    first, _ = running(world)
    forget_work(world)
    del world.jobs[first]
    assert world.reconcile().demand.granted == LIMIT
    world.pass_time(LEASE + 5)
    for job in running(world):
        world.finish(job)
    world.rest()
    assert world.reconcile().demand.granted == 0


# -- in virtual time ---------------------------------------------------------------------------------------------------


@dataclass
class Traffic:
    """Policies whose jobs move bytes as fast as their workers know that they may: each reads its Lease when it renews.

    `operator`: the limit is the operator's, over all; otherwise there is one policy, and it is its own.
    """

    seed: int
    policies: int
    operator: bool
    now: float = 0.0
    known: dict[tuple[int, str], int] = field(default_factory=dict)
    left: dict[tuple[int, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.ledger: SharedLimits[tuple[str, str]] = SharedLimits(
            OperatorLimits(bytes_per_second=LIMIT if self.operator else None), {}, now=0.0
        )
        self.worlds = [self._world() for _ in range(self.policies)]
        self.jobs = sum(len(world.logs) for world in self.worlds)

    def _world(self) -> PlainCluster:
        own = {} if self.operator else {"bytesPerSecond": LIMIT}
        workers = {"slots": self.dice.choice((1, 2)), "max": self.dice.choice((2, 3))}
        world = PlainCluster(limits={"maxConcurrentJobs": 6, **own}, workers=workers)
        for i in range(self.dice.randint(2, 4)):
            world.add_log(f"/ra/{i}")
        return world

    def step(self, seconds: float) -> float:
        """Time passes: bytes move, workers renew, jobs end, everything is decided again. Returns the bytes moved."""
        moved = 0.0
        self.now += seconds
        for number, world in enumerate(self.worlds):
            world.wall += seconds
            for name, lease in list(world.leases.items()):
                key = (number, name)
                if lease.report is not None:
                    continue
                size = self.left.setdefault(key, self.dice.uniform(100.0, 800.0) * LIMIT)
                passed = min(size, self.known.setdefault(key, lease.bytes_per_second or 0) * seconds)
                moved += passed
                self.left[key] = size - passed
                if self.left[key] <= 0:
                    world.finish(name)
                elif self.now % RENEWAL < seconds:
                    world.renew(name)
                    self.known[key] = lease.bytes_per_second or 0
            for worker in world.workers.values():
                worker.changed_at = world.wall
            world.announce()
            self._decide(number, world)
        self.ledger.share_out(self.now)
        return moved

    def _decide(self, number: int, world: PlainCluster) -> None:
        key = ("ns", str(number))
        if self.operator:
            world.allowance = self.ledger.allowance(key)
        decision = world.reconcile()
        self.ledger.note(key, decision.demand, now=self.now)

    @property
    def rates(self) -> tuple[int, int]:
        """Bytes per second of all that runs: as the Leases say, and as the workers know."""
        written = {
            (number, name): lease.bytes_per_second or 0
            for number, world in enumerate(self.worlds)
            for name, lease in world.leases.items()
            if lease.report is None
        }
        return sum(written.values()), sum(self.known.get(key, rate) for key, rate in written.items())

    @property
    def begun(self) -> int:
        return len(self.left)

    @property
    def over(self) -> bool:
        return self.begun == self.jobs and all(left <= 0 for left in self.left.values())


@pytest.mark.parametrize(("policies", "operator"), [(1, False), (1, True), (2, True)])
@pytest.mark.parametrize("seed", seeds(4))
def test_at_least_095_of_the_limit_is_used_to_the_end_and_never_more(seed: int, policies: int, operator: bool) -> None:
    traffic = Traffic(seed, policies, operator)
    moved = tail = 0.0
    while not traffic.over:
        more = traffic.step(1.25)
        assert max(traffic.rates) <= LIMIT
        if traffic.begun == traffic.jobs and not traffic.over:
            moved, tail = moved + more, tail + 1.25
        assert traffic.now < 10_000, "a job never ended"
    assert tail > 200
    assert moved >= 0.95 * LIMIT * tail
