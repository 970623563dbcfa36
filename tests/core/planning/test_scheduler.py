"""The scheduler against the scenarios of docs/design/scheduling.md, with our outcomes, and its invariants."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compaction.api.enums import JobState, WaitReason
from compaction.core.planning.scheduler import (
    OVERDUE_SECONDS,
    QueuedJob,
    TenantLoad,
    WorkerLimits,
    WorkerSlots,
    assign,
    eviction_order,
    workers_to_launch,
)
from support.timing import examples

U, P, A, F = JobState.UNASSIGNED, JobState.IN_PROGRESS, JobState.ABANDONED, JobState.FAULTY
NOW = 1000.0


def job(
    name: str, state: JobState = U, *, level: int = 0, failures: int = 0, created: float = NOW, **more: object
) -> QueuedJob:
    return QueuedJob(
        name=name,
        target=str(more.pop("target", name)),
        tenant=str(more.pop("tenant", "")),
        level=level,
        state=state,
        failures=failures,
        created_at=created,
        **more,  # type: ignore[arg-type]
    )


def order(jobs: list[QueuedJob], *, slots: int = 100, capacity: int = 100, **more: object) -> list[str]:
    schedule = assign(jobs, [WorkerSlots("w", slots)], capacity=capacity, now=NOW, **more)  # type: ignore[arg-type]
    return [assignment.job for assignment in schedule.assignments]


class TestOrder:
    def test_s7_levels_first_then_age(self) -> None:
        jobs = [job("1", level=1), job("2", created=NOW - 2), job("3", created=NOW - 1), job("4", P), job("5", P)]
        assert order(jobs) == ["2", "3", "1"]

    def test_s8_retries_by_failures_and_never_a_parked_or_running_one(self) -> None:
        jobs = [job(n, A, failures=1, ended_at=NOW - 5) for n in "123"]
        jobs += [job("4", P), job("5", A, failures=2, ended_at=NOW - 5), job("6", F, failures=3)]
        assert order(jobs) == ["1", "2", "3", "5"]

    def test_s18_whatever_order_they_come_in(self) -> None:
        expected = ["j6", "j2", "j3", "j4", "j0", "j1", "j5"]
        jobs = [
            job("j6", created=NOW - 1),
            job("j2", A, ended_at=NOW - 9, created=NOW - 20),
            job("j3", A, ended_at=NOW - 9, failures=5, created=NOW - 20),
            job("j4", A, ended_at=NOW - 8, failures=5, created=NOW - 20),
            job("j0", level=1, created=NOW - 3),
            job("j1", level=1, created=NOW - 2),
            job("j5", level=1, created=NOW - 1),
        ]
        rng = random.Random(18)
        for _ in range(25):
            rng.shuffle(jobs)
            assert order(jobs) == expected

    def test_first_in_first_out_whatever_the_names(self) -> None:
        """The reference ties by hashed name, which is no order at all (§2.2)."""
        jobs = [job(name, created=NOW - age) for name, age in (("zz", 3), ("aa", 1), ("mm", 2))]
        assert order(jobs) == ["zz", "mm", "aa"]

    def test_a_retry_is_not_starved_by_new_jobs(self) -> None:
        old = job("retry", A, failures=2, ended_at=NOW - OVERDUE_SECONDS - 1, created=0)
        assert order([*(job(f"n{i}") for i in range(5)), old], slots=1) == ["retry"]

    def test_s19_nothing(self) -> None:
        assert order([]) == []


class TestLimits:
    def test_capacity_and_slots(self) -> None:
        jobs = [job(f"{i}", created=float(i)) for i in range(10)]
        assert len(order(jobs, slots=3)) == 3
        assert len(order(jobs, capacity=4)) == 4
        assert order(jobs, capacity=-1) == []

    def test_wait_reasons_say_what_is_missing(self) -> None:
        jobs = [job(f"{i}") for i in range(5)]
        assert assign(jobs, [WorkerSlots("w", 2)], capacity=9, now=NOW).waiting == {WaitReason.NO_FREE_SLOT: 3}
        assert assign(jobs, [WorkerSlots("w", 9)], capacity=2, now=NOW).waiting == {WaitReason.CONCURRENCY_LIMIT: 3}

    def test_one_job_of_a_log_at_a_time(self) -> None:
        jobs = [job("a1", target="a", created=1), job("a2", target="a", created=2), job("b1", target="b", created=3)]
        assert order(jobs) == ["a1", "b1"]
        assert order(jobs, busy_targets={"a"}) == ["b1"]
        waiting = assign(jobs, [WorkerSlots("w", 9)], capacity=9, now=NOW, busy_targets={"a"}).waiting
        assert waiting == {WaitReason.TARGET_BUSY: 2}

    def test_backoff(self) -> None:
        schedule = assign(
            [job("a", A, not_before=NOW + 5), job("b", A, not_before=NOW)], [WorkerSlots("w", 9)], capacity=9, now=NOW
        )
        assert [assignment.job for assignment in schedule.assignments] == ["b"]
        assert schedule.next_backoff_end == NOW + 5
        assert schedule.waiting == {WaitReason.BACKOFF: 1}

    def test_work_spreads_over_workers(self) -> None:
        jobs = [job(f"{i}", created=float(i)) for i in range(4)]
        schedule = assign(jobs, [WorkerSlots("a", 2), WorkerSlots("b", 2)], capacity=9, now=NOW)
        assert sorted(assignment.worker for assignment in schedule.assignments) == ["a", "a", "b", "b"]

    def test_a_retry_goes_to_another_worker_when_there_is_one(self) -> None:
        retry = job("r", A, failures=1, last_worker="a")
        two = [WorkerSlots("a", 5), WorkerSlots("b", 1)]
        assert assign([retry], two, capacity=9, now=NOW).assignments[0].worker == "b"
        # S11: with nobody else, the same worker gets it again
        assert assign([retry], two[:1], capacity=9, now=NOW).assignments[0].worker == "a"


class TestTenants:
    def test_turns_inside_a_level(self) -> None:
        jobs = [job(f"a{i}", tenant="a", created=float(i)) for i in range(3)]
        jobs += [job(f"b{i}", tenant="b", created=10.0 + i) for i in range(3)]
        assert order(jobs) == ["a0", "b0", "a1", "b1", "a2", "b2"]

    def test_with_one_slot_they_alternate(self) -> None:
        jobs = [job("a", tenant="a", created=1), job("b", tenant="b", created=2)]
        assert order(jobs, slots=1, load={"a": TenantLoad(0, 900.0), "b": TenantLoad(0, 800.0)}) == ["b"]

    def test_running_jobs_count(self) -> None:
        jobs = [job("a", tenant="a", created=1), job("b", tenant="b", created=2)]
        assert order(jobs, slots=1, load={"a": TenantLoad(1, 0.0), "b": TenantLoad(0, 800.0)}) == ["b"]

    def test_a_lower_level_of_a_busy_tenant_still_goes_first(self) -> None:
        jobs = [job("low", tenant="a"), job("high", tenant="b", level=1)]
        assert order(jobs, slots=1, load={"a": TenantLoad(5, 1.0)}) == ["low"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"ready": 0, "in_progress": 0, "free": 0, "live": 0, "launching": 0}, 0),
        ({"ready": 1, "in_progress": 0, "free": 0, "live": 0, "launching": 0}, 1),
        ({"ready": 9, "in_progress": 0, "free": 0, "live": 0, "launching": 0}, 2),  # 4 concurrent jobs, 2 slots each
        ({"ready": 9, "in_progress": 0, "free": 0, "live": 0, "launching": 2}, 0),
        ({"ready": 9, "in_progress": 2, "free": 0, "live": 1, "launching": 0}, 1),
        ({"ready": 9, "in_progress": 4, "free": 0, "live": 2, "launching": 0}, 0),
        ({"ready": 2, "in_progress": 0, "free": 2, "live": 1, "launching": 0}, 0),
        ({"ready": 9, "in_progress": 0, "free": 0, "live": 3, "launching": 0}, 0),  # at workers.max
    ],
)
def test_launching(state: dict[str, int], expected: int) -> None:
    assert workers_to_launch(WorkerLimits(max_workers=3, slots=2, max_concurrent_jobs=4), **state) == expected


def test_eviction_never_takes_a_live_lease_and_starts_with_the_longest_parked() -> None:
    assert eviction_order([("b", 2.0, False), ("live", 0.0, True), ("a", 1.0, False)]) == ("a", "b")


jobs_strategy = st.lists(
    st.builds(
        QueuedJob,
        name=st.uuids().map(str),
        target=st.sampled_from("abcdefgh"),
        tenant=st.sampled_from("xyz"),
        level=st.integers(0, 2),
        state=st.sampled_from(JobState),
        failures=st.integers(0, 3),
        created_at=st.floats(0, NOW),
        ended_at=st.floats(0, NOW),
        not_before=st.sampled_from([0.0, NOW - 1, NOW + 1]),
        last_worker=st.sampled_from(["", "w0", "w1"]),
    ),
    max_size=40,
)


@given(
    jobs=jobs_strategy,
    free=st.lists(st.integers(0, 3), max_size=3),
    capacity=st.integers(0, 10),
    busy=st.frozensets(st.sampled_from("abcdefgh"), max_size=3),
)
def test_never_over_assigns_and_never_idles(
    jobs: list[QueuedJob], free: list[int], capacity: int, busy: frozenset[str]
) -> None:
    workers = [WorkerSlots(f"w{i}", n) for i, n in enumerate(free)]
    schedule = assign(jobs, workers, capacity=capacity, now=NOW, busy_targets=busy)
    by_name = {item.name: item for item in jobs}
    taken = [by_name[assignment.job] for assignment in schedule.assignments]
    assert len({item.name for item in taken}) == len(taken)
    assert len({item.target for item in taken}) == len(taken)
    assert all(item.state in (U, A) and item.not_before <= NOW and item.target not in busy for item in taken)
    for worker in workers:
        assert sum(assignment.worker == worker.name for assignment in schedule.assignments) <= worker.free
    ready_targets = {item.target for item in jobs if item.state in (U, A) and item.not_before <= NOW} - busy
    assert len(taken) == min(len(ready_targets), sum(free), capacity)
    assert schedule.ready == len(ready_targets)
    queued = sum(item.state in (U, A) for item in jobs)
    assert sum(schedule.waiting.values()) + len(taken) == queued, "every job is assigned or waits for a reason"
    levels = [item.level for item in taken]
    assert levels == sorted(levels)
    assert schedule == assign(list(reversed(jobs)), workers, capacity=capacity, now=NOW, busy_targets=busy)


@dataclass
class Row:
    """A job in the model below."""

    created_at: float
    tenant: str
    failures: int = 0
    state: JobState = U
    worker: str = ""
    ended_at: float = 0.0
    fails: int = 0


@dataclass
class QueueModel:
    jobs: dict[str, Row] = field(default_factory=dict)
    now: float = 0.0


class SchedulerMachine(RuleBasedStateMachine):
    """Jobs arrive, are assigned, fail (at most twice each) or finish, over several rounds: all must end."""

    SLOTS = 3

    def __init__(self) -> None:
        super().__init__()
        self.world = QueueModel()

    @rule(tenant=st.sampled_from("xyz"), fails=st.integers(0, 2))
    def arrive(self, tenant: str, fails: int) -> None:
        self.world.now += 1
        self.world.jobs[f"job-{len(self.world.jobs)}"] = Row(self.world.now, tenant, fails=fails)

    @rule()
    def schedule(self) -> None:
        self.world.now += 1
        running = [row for row in self.world.jobs.values() if row.state is P]
        queue = [
            QueuedJob(n, n, row.tenant, 0, row.state, row.failures, row.created_at, row.ended_at)
            for n, row in self.world.jobs.items()
        ]
        free = self.SLOTS - len(running)
        load = {t: TenantLoad(sum(row.tenant == t for row in running)) for t in "xyz"}
        result = assign(queue, [WorkerSlots("w", free)], capacity=free, now=self.world.now, load=load)
        for assignment in result.assignments:
            older = [
                row
                for n, row in self.world.jobs.items()
                if row.state is U and row.tenant == self.world.jobs[assignment.job].tenant and n != assignment.job
            ]
            if self.world.jobs[assignment.job].state is U:
                assert all(row.created_at > self.world.jobs[assignment.job].created_at for row in older), (
                    "first in, first out"
                )
            self.world.jobs[assignment.job].state = P
            self.world.jobs[assignment.job].worker = assignment.worker

    @precondition(lambda self: any(row.state is P for row in self.world.jobs.values()))
    @rule(pick=st.integers(0, 100))
    def end_one(self, pick: int) -> None:
        self.world.now += 1
        running = [row for row in self.world.jobs.values() if row.state is P]
        row = running[pick % len(running)]
        row.ended_at = self.world.now
        if row.failures < row.fails:
            row.failures += 1
            row.state = A
        else:
            row.state = JobState.SUCCEEDED

    @invariant()
    def never_over_assigned(self) -> None:
        assert sum(row.state is P for row in self.world.jobs.values()) <= self.SLOTS

    def teardown(self) -> None:
        for _ in range(4 * len(self.world.jobs) + 1):
            if all(row.state is JobState.SUCCEEDED for row in self.world.jobs.values()):
                return
            self.schedule()
            if any(row.state is P for row in self.world.jobs.values()):
                self.end_one(0)
        assert all(row.state is JobState.SUCCEEDED for row in self.world.jobs.values()), "a job never ended"


SchedulerMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40)
TestSchedulerMachine = SchedulerMachine.TestCase


def test_a_long_queue_is_assigned_in_one_call() -> None:
    jobs = [job(f"{i:06d}", created=float(i), tenant=f"t{i % 7}") for i in range(100_000)]
    schedule = assign(jobs, [WorkerSlots(f"w{i}", 100) for i in range(1000)], capacity=100_000, now=NOW)
    assert len({assignment.job for assignment in schedule.assignments}) == 100_000
