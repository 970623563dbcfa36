"""status.history: each plan that was carried out once, with all that became of its jobs, whatever crashes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from compaction.api.names import LABEL_PLAN
from compaction.api.policy.policy_status import MAX_RUNS, RunRecord
from support.cluster.world import GAIN, Crash, F, P, PlainCluster, S, cluster_with

DONE: dict[str, Any] = {"outcome": "Failed", "reason": "StoreUnreadable"}


def record(world: PlainCluster) -> RunRecord:
    (found,) = world.status.history
    return found


def more(world: PlainCluster, number: int) -> None:
    """Something new to compact in the first log, and its job."""
    world.logs["/ra/0"].groups.append(f"{number + 10:016d}.segment")
    world.pass_time(130, step=65)


def test_a_run_begins_with_its_jobs_and_ends_with_the_last_of_them() -> None:
    world = cluster_with(3, limits={"maxConcurrentJobs": 1})
    begun = record(world)
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {begun.plan}
    assert (begun.jobs, begun.succeeded, begun.ended_at, begun.reason) == (3, 0, None, "Scan")
    world.announce()
    world.rest()
    (first,) = world.in_state(P)
    world.finish(first)
    world.rest()
    assert (record(world).succeeded, record(world).ended_at) == (1, None)
    world.work_off()
    ended = record(world)
    receipts = [job.status.receipt for job in world.jobs.values()]
    assert (ended.succeeded, ended.faulty) == (3, 0)
    assert ended.bytes_reclaimed == sum(receipt.bytes_reclaimed for receipt in receipts if receipt) > 0
    assert ended.ended_at == max(job.status.finished_at for job in world.jobs.values() if job.status.finished_at)
    assert (ended.started_at, ended.approved_at) == (begun.started_at, None)
    assert begun.debt_bytes == ended.debt_bytes == 3 * GAIN, "of the scan that the plan was made from"


def test_why_a_plan_was_made() -> None:
    world = cluster_with(1, trigger={"interval": "1m", "schedule": "* * * * *"})
    world.pass_time(70)
    assert record(world).reason == "Schedule"
    world.work_off()
    world.change_spec(trigger={"schedule": "0 2 29 2 *"})
    world.logs["/ra/0"].groups.append("0000000000000009.segment")
    world.annotate(run_now="first")
    world.rest()
    assert [run.reason for run in world.status.history] == ["Schedule", "RunNow"]


def test_an_approved_plan_says_when_by_whom_and_what_until_it_has_ended() -> None:
    world = cluster_with(2, approval="Manual")
    assert list(world.status.history) == [], "a plan that waits is no run"
    plan = world.status.plan
    assert plan is not None
    world.wall += 100
    world.annotate(approve=plan.hash, approved_by=f"{plan.hash}/ada")
    world.rest()
    begun = record(world)
    assert (begun.plan, begun.approved_by, begun.reason) == (plan.hash, "ada", "Scan")
    assert begun.approved_at is not None
    assert {work.job for work in begun.work} == set(world.jobs)
    world.add_log("/ra/later")
    world.pass_time(130)
    assert world.status.plan is not None
    assert world.status.plan.hash != plan.hash, "the next plan waits"
    assert {work.job for work in record(world).work} == set(world.jobs), "what was approved stays readable"
    world.work_off()
    assert (record(world).work, record(world).succeeded) == ((), 2)
    world.annotate(approve=world.status.plan.hash)
    world.rest()
    assert world.status.history[-1].approved_by == "", "who approved the last plan has not approved this one"


def test_a_parked_job_that_is_retried_counts_where_it_ends() -> None:
    world = cluster_with(1, limits={"maxAttempts": 1})
    name = world.only_job()
    world.announce()
    world.rest()
    world.report(name, **DONE)
    world.rest()
    assert world.state(name) is F
    parked = record(world)
    assert (parked.succeeded, parked.faulty, parked.ended_at is not None) == (0, 1, True)
    world.annotate_job(name, retry="now")
    world.rest()
    world.announce()
    world.rest()
    assert record(world).ended_at is None, "it runs again"
    world.finish(name)
    world.rest()
    assert world.state(name) is S
    assert (record(world).succeeded, record(world).faulty, record(world).jobs) == (1, 0, 1)


USED = {"driverCpuSeconds": 0.5, "executorCpuSeconds": 2.0, "executorPeakBytes": 3 << 20, "bytesRead": 150}


def test_what_a_run_cost_is_of_all_attempts_that_could_say_and_in_it_once() -> None:
    world = cluster_with(1, limits={"maxAttempts": 2})
    name = world.only_job()

    def attempt(**report: object) -> None:
        world.announce()
        world.pass_time(70)
        world.report(name, **report)  # type: ignore[arg-type]
        world.rest()

    attempt(**DONE, usage=USED)
    attempt(**DONE, usage={**USED, "executorCpuSeconds": 4.0, "executorPeakBytes": 5 << 20})
    assert world.state(name) is F
    assert record(world).cpu_seconds == 7.0
    assert record(world).executor_peak_bytes == 5 << 20
    world.annotate_job(name, retry="now")
    world.rest()
    world.announce()
    world.pass_time(70)
    world.commit(name, world.leases[name].token)
    world.report(name, usage={"driverCpuSeconds": 0.25})
    world.rest()
    job = world.jobs[name].status
    assert job.receipt is not None
    assert job.usage == job.receipt.usage
    assert job.usage is not None
    assert job.usage.bytes_read == 300
    assert [each.usage.executor_cpu_seconds if each.usage else 0 for each in job.attempts] == [2.0, 4.0, None]
    found, cost = record(world), world.status.cost
    assert (found.cpu_seconds, found.executor_peak_bytes) == (7.25, 5 << 20)
    assert cost is not None
    assert (cost.cpu_seconds, cost.bytes_reclaimed) == (7.25, world.status.bytes_reclaimed)
    assert cost.gain_per_cpu_second == round(cost.bytes_reclaimed / 7.25)
    world.restart()
    world.pass_time(130, step=65)
    assert (record(world), world.status.cost) == (found, cost), "it is counted once, whoever coordinates"


def test_what_no_attempt_could_say_is_absent_and_no_zero() -> None:
    world = cluster_with(1)
    world.work_off()
    assert record(world).cpu_seconds is None
    assert world.status.cost is None
    assert world.status.bytes_reclaimed > 0


def test_jobs_that_are_deleted_before_they_end_are_given_up() -> None:
    world = cluster_with(2)
    del world.jobs[min(world.jobs)]
    world.work_off()
    found = world.status.history[0]
    assert (found.jobs, found.succeeded + found.faulty) == (2, 1)
    assert found.ended_at is not None


def test_the_newest_twenty_are_kept_also_when_their_jobs_are_gone() -> None:
    world = cluster_with(1, successfulJobsHistoryLimit=1)
    world.work_off()
    for number in range(MAX_RUNS + 3):
        more(world, number)
        world.work_off()
    runs = world.status.history
    assert len(runs) == MAX_RUNS
    assert len(world.jobs) < MAX_RUNS
    assert all((run.succeeded, run.jobs) == (1, 1) and run.ended_at is not None for run in runs)
    assert sorted(run.started_at for run in runs) == [run.started_at for run in runs]
    assert world.status.succeeded == MAX_RUNS + 4
    before = world.status.history
    world.restart()
    world.pass_time(130, step=65)
    assert world.status.history == before, "what ended stays as it is"


@pytest.mark.parametrize("manual", [False, True])
def test_each_job_is_in_its_record_once_wherever_the_coordinator_dies(manual: bool) -> None:
    steps = 0
    for step in range(1, 60):
        world = cluster_with(2, approval="Manual" if manual else "Auto")
        if manual:
            assert world.status.plan is not None
            world.annotate(approve=world.status.plan.hash)
        crashed = False
        for round in range(14):
            with suppress(Crash):
                world.reconcile(crash_after=step if round >= 3 and not crashed else None)
                world.announce()
                for name in world.in_state(P):
                    lease = world.leases.get(name)
                    if lease is not None and lease.report is None:
                        world.finish(name)
                world.wall += 1
                continue
            crashed = True
        world.work_off()
        assert sum(run.succeeded for run in world.status.history) == world.status.succeeded == 2
        assert sum(run.jobs for run in world.status.history) == 2
        assert all(run.ended_at is not None for run in world.status.history)
        reclaimed = sum(run.bytes_reclaimed for run in world.status.history)
        assert reclaimed == world.status.bytes_reclaimed
        if not crashed:
            break
        steps += 1
    assert 1 <= steps < 59
