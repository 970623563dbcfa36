"""Blocks under the planner and the scheduler that all stores share: names, limits, splitting, lanes, turns.

The rows of docs/design/scheduling.md#scenarios-of-the-scheduler are tested once, for all stores
(tests/core/reconcile/test_scheduler_rows.py). Those that depend on what a job is made of are here again with jobs of
blocks; OF_ALL_STORES says of the others why not.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from blocks.planning.queues import block, queue_of, rules_of
from compaction.api.enums import JobState, WaitReason
from compaction.blocks.model import BlockWork, work_of
from compaction.blocks.planning.batches import BlockClass, BlockReason, QueuedBlock
from compaction.blocks.planning.offers import offer
from compaction.blocks.planning.queue import BlockQueue
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.planning.planner import (
    JobInventory,
    Plan,
    PlanLimits,
    PlannedJob,
    Planner,
    PlanTrigger,
    TargetHistory,
)
from compaction.core.planning.scheduler import QueuedJob, TenantLoad, WorkerSlots, assign
from house.sources import ROOT

NOW = 1000.0
OF_ALL_STORES = {
    "leases and tokens are of the job, whatever it rewrites": ["S1", "S2", "S3", "S4", "S5", "S6", "S9", "S10", "S11"],
    "objects of jobs: their plan is their spec": ["S12", "S19", "S20", "S21", "S24"],
    "metrics count jobs by state": ["S22", "S23"],
}
HERE = {
    "S7": "test_s7_s18_levels_then_turns_then_age",
    "S8": "test_s8_retries_and_lanes",
    "S13": "test_s13_a_queue_at_its_limit_says_what_it_left_out",
    "S14": "test_s14_s15_a_queue_of_parked_jobs_makes_room",
    "S15": "test_s14_s15_a_queue_of_parked_jobs_makes_room",
    "S16": "test_s16_s17_no_eviction_while_there_is_room",
    "S17": "test_s16_s17_no_eviction_while_there_is_room",
    "S18": "test_s7_s18_levels_then_turns_then_age",
}


def test_no_row_is_forgotten() -> None:
    rows = [*HERE, *(row for rows in OF_ALL_STORES.values() for row in rows)]
    assert sorted(rows) == sorted(f"S{number}" for number in range(1, 25))
    names = {node.name for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.FunctionDef)}
    assert set(HERE.values()) <= names
    shared = (ROOT / "tests/core/reconcile/test_scheduler_rows.py").read_text()
    assert [row for row in rows if f'"{row} ' not in shared] == []


def planner(*, queued: int = 100, max_bytes: int = 1 << 60, uid: str = "uid") -> Planner:
    return Planner("blocks", uid, PlanLimits(max_bytes, queued), PlanTrigger())


def plan(
    queue: BlockQueue,
    *,
    using: Planner | None = None,
    inventory: JobInventory | None = None,
    history: dict[str, TargetHistory] | None = None,
    most: int | None = None,
) -> Plan:
    offered = offer(queue, now=NOW, sensed_at=0.0, most=most)
    return (using or planner()).plan(
        offered.candidates, history or {}, inventory or JobInventory(), now=NOW, left_out=offered.left_out
    )


def work(job: PlannedJob) -> BlockWork:
    (group,) = job.groups
    return work_of(job.target, job.level, group.sources)


def sources(result: Plan) -> list[tuple[str, ...]]:
    return [work(job).sources for job in result.jobs]


def queued(job: PlannedJob, number: int = 0, state: JobState = JobState.UNASSIGNED, failures: int = 0) -> QueuedJob:
    return QueuedJob(job.name, job.target, job.tenant, job.level, state, failures, NOW + number)


def batches(*owners: str, level: int = 0) -> list[QueuedBlock]:
    """A batch of two for each owner."""
    return [block(2 * n + k, owner, level, bytes=10) for n, owner in enumerate(owners) for k in (0, 1)]


class TestJobs:
    def test_one_batch_one_job_with_what_a_rewrite_needs(self) -> None:
        queue = queue_of(block(9, "A7", bytes=30), block(10, "A7", bytes=12), rules=rules_of(2))
        (job,) = plan(queue).jobs
        assert work(job) == BlockWork("A", 7, 0, ("10", "9"))
        assert work(job).output_level == 1
        assert (job.cost_bytes, job.gain_bytes, job.target) == (42, 0, "A/7/L0/10")
        assert job.name.startswith("blocks-")

    def test_a_tenant_of_any_name(self) -> None:
        odd = [block(n)._replace(kin=BlockClass("a/b/3/L0", 0)) for n in range(2)]
        (job,) = plan(queue_of(*odd, rules=rules_of(2))).jobs
        assert work(job) == BlockWork("a/b/3/L0", 0, 0, ("0", "1"))

    def test_a_name_is_made_of_the_sources_in_whatever_order_they_came(self) -> None:
        one = queue_of(block(1, id="x"), block(2, id="y"), rules=rules_of(2))
        other = queue_of(block(3, id="y"), block(4, id="x"), rules=rules_of(2))
        assert plan(one).hash == plan(other).hash != ""
        assert plan(one, using=planner(uid="another")).hash != plan(one).hash

    def test_a_batch_is_never_cut_or_joined_by_the_planner(self) -> None:
        assert sources(plan(queue_of(*batches("A0", "A0"), rules=rules_of(2)), using=planner(max_bytes=1))) == [
            ("0", "1"),
            ("2", "3"),
        ]

    def test_every_block_has_a_job_or_a_reason(self) -> None:
        queue = queue_of(*batches("A0", "A0", "A0"), block(90), block(91, level=5), rules=rules_of(2))
        result = plan(queue, most=1)
        assert sources(result) == [("0", "1")]
        assert {(row.reason, row.count, row.example) for row in result.left_out} == {
            (BlockReason.WAITING_FOR_MORE, 1, "90"),
            (BlockReason.HIGHEST_LEVEL, 1, "91"),
            (LeftOutReason.QUEUE_FULL, 2, "A/0/L0/2"),
        }


class TestFaulty:
    def test_bisected_until_no_half_has_two_blocks(self) -> None:
        """One bad block of twenty: the others get through (docs/design/blocks.md#one-bad-block), those excepted that
        only a job of one block would have told from it: such a job gains nothing and uses up a level.
        """
        queue = queue_of(*(block(n) for n in range(20)), rules=rules_of(20))
        (job,) = plan(queue).jobs
        lane = job.target
        faulty: set[str] = set()
        done: set[str] = set()
        for _ in range(20):
            inventory = JobInventory(frozenset(faulty), frozenset(faulty), frozenset(faulty))
            jobs = plan(queue, inventory=inventory).jobs
            if not jobs:
                break
            assert {job.target for job in jobs} == {lane}, "the parts take turns"
            assert len({name for job in jobs for name in work(job).sources}) == sum(
                len(work(job).sources) for job in jobs
            )
            for item in jobs:
                assert len(work(item).sources) > 1
                assert item.name not in faulty
                queue.hold(item.target, item.level, work(item).sources)
                if "13" in work(item).sources:
                    faulty.add(item.name)
                else:
                    done.update(work(item).sources)
                    queue.remove(work(item).sources)
        assert done == {str(n) for n in range(20)} - {"13", "14"}
        left = plan(queue, inventory=JobInventory(frozenset(faulty), frozenset(faulty), frozenset(faulty)))
        assert {row.reason for row in left.left_out} == {LeftOutReason.FAULTY_JOB}
        assert [item.id for held in queue.held.values() for item in held.blocks] == ["13", "14"]

    def test_parked_as_a_whole_when_it_was_not_the_sources(self) -> None:
        queue = queue_of(*batches("A0"), rules=rules_of(2))
        (job,) = plan(queue).jobs
        queue.hold(job.target, 0, work(job).sources)
        result = plan(queue, inventory=JobInventory(frozenset({job.name}), frozenset({job.name})))
        assert (result.jobs, [row.reason for row in result.left_out]) == ((), [LeftOutReason.FAULTY_JOB])

    def test_while_a_job_runs_its_blocks_are_in_no_other(self) -> None:
        queue = queue_of(*batches("A0"), rules=rules_of(2))
        (job,) = plan(queue).jobs
        queue.hold(job.target, 0, work(job).sources)
        queue.push_all([block(7), block(8)])
        history = {job.target: TargetHistory(has_unfinished_job=True)}
        result = plan(queue, inventory=JobInventory(frozenset({job.name})), history=history)
        assert sources(result) == [("7", "8")]
        assert [row.reason for row in result.left_out] == [LeftOutReason.JOB_UNFINISHED]

    def test_what_was_evicted_is_planned_again(self) -> None:
        """The reference loses the blocks of an evicted job for good (§2.5)."""
        queue = queue_of(*batches("A0", "A0"), rules=rules_of(2))
        first, _ = plan(queue).jobs
        queue.hold(first.target, 0, work(first).sources)
        assert queue.release(first.target) == 2
        assert sources(plan(queue)) == [("0", "1"), ("2", "3")]
        assert first.name in {job.name for job in plan(queue).jobs}
        again = plan(queue, inventory=JobInventory(recently_evicted=frozenset({first.name})))
        assert sources(again) == [("2", "3")]


class TestQueueLimit:
    queue = staticmethod(lambda: queue_of(*batches("A0", "B0", "A0"), rules=rules_of(2)))

    def test_s13_a_queue_at_its_limit_says_what_it_left_out(self) -> None:
        result = plan(self.queue(), using=planner(queued=2))
        assert sources(result) == [("0", "1"), ("2", "3")]
        assert [(row.reason, row.count) for row in result.left_out] == [(LeftOutReason.QUEUE_FULL, 1)]

    def test_s14_s15_a_queue_of_parked_jobs_makes_room(self) -> None:
        full = JobInventory(evictable=("f1", "f2"), queue_size=2)
        result = plan(self.queue(), using=planner(queued=2), inventory=full)
        assert (len(result.jobs), result.evict) == (2, ("f1", "f2"))

    @pytest.mark.parametrize("limit", [6, 1000])
    def test_s16_s17_no_eviction_while_there_is_room(self, limit: int) -> None:
        inventory = JobInventory(evictable=("f1", "f2", "f3"), queue_size=3)
        result = plan(self.queue(), using=planner(queued=limit), inventory=inventory)
        assert (len(result.jobs), result.evict) == (3, ())


class TestScheduling:
    def order(self, jobs: list[QueuedJob], **more: object) -> list[str]:
        schedule = assign(jobs, [WorkerSlots("w", 100)], capacity=100, now=NOW, **more)  # type: ignore[arg-type]
        return [assignment.job for assignment in schedule.assignments]

    def test_s7_s18_levels_then_turns_then_age(self) -> None:
        """The order in which jobs are made is the order in which they are assigned."""
        queue = queue_of(*batches("A0", "A0", "A1", "B0"), *(block(n, "C0", 1) for n in (20, 21)), rules=rules_of(2, 2))
        jobs = plan(queue).jobs
        assert [(job.tenant, job.level) for job in jobs] == [("A", 0), ("B", 0), ("A", 0), ("A", 0), ("C", 1)]
        line = [queued(job, number) for number, job in enumerate(jobs)]
        assert self.order(line[::-1]) == [job.name for job in jobs]
        busy = {"A": TenantLoad(running=2)}
        served = self.order(line, load=busy)
        assert served[0] == jobs[1].name, "A has two running already"

    def test_s8_retries_and_lanes(self) -> None:
        """Jobs of one key run beside one another; a retried one comes after those never tried."""
        first, second = plan(queue_of(*batches("A0", "A0"), rules=rules_of(2))).jobs
        assert first.target != second.target
        tried = queued(first, state=JobState.ABANDONED, failures=1)._replace(ended_at=NOW - 5)
        assert self.order([tried, queued(second, 1)]) == [second.name, first.name]

    def test_the_parts_of_a_faulty_job_take_turns(self) -> None:
        queue = queue_of(*batches("A0", "A0"), rules=rules_of(4))
        (job,) = plan(queue).jobs
        queue.hold(job.target, 0, work(job).sources)
        names = frozenset({job.name})
        halves = plan(queue, inventory=JobInventory(names, names, names)).jobs
        schedule = assign([queued(half) for half in halves], [WorkerSlots("w", 9)], capacity=9, now=NOW)
        assert len(schedule.assignments) == 1
        assert schedule.waiting == {WaitReason.TARGET_BUSY: 1}
