"""The scheduler's scenarios of docs/design/scheduling.md, row by row: ROWS says which test has which.

Rows that were tested already keep their place; those that were not are here. Where our outcome differs by design, the
test's docstring says so and why. The differences:

* a token is counted per job by the store, not taken from a log's index; only the *equal* one counts;
* exactly maxAttempts attempts, not one more;
* a full queue evicts AT its limit, and never a job with a live lease;
* first in, first out, where the reference goes by hashed names;
* the plan of a job is its immutable spec: there is no second store that could disagree.
"""

from __future__ import annotations

import ast
import threading
from pathlib import Path

import pytest

from compaction.api.enums import AttemptOutcome
from compaction.api.policy.policy import CompactionPolicyStatus
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.registry import Metrics
from house.sources import ROOT
from support.cluster.world import F, P, PlainCluster, SimLease, U

_LIFECYCLE = "tests/core/reconcile/test_lifecycle.py"
_SCHEDULER = "tests/core/planning/test_scheduler.py"
_PLANNER = "tests/core/planning/test_planner.py"
_MACHINE = "tests/core/reconcile/test_state_machine.py"
_HERE = "tests/core/reconcile/test_scheduler_rows.py"

ROWS = {
    "S1 renew owner": (_LIFECYCLE, "test_s1_s9_a_late_renewal_counts_until_the_silence_is_noticed"),
    "S2 not owner": (_LIFECYCLE, "test_s2_s6_another_token_is_refused_also_a_larger_one"),
    "S3 unknown": (_HERE, "test_s3_a_lease_of_a_job_that_does_not_exist_is_removed_and_changes_nothing"),
    "S4 wrong status": (_LIFECYCLE, "test_s4_an_unreadable_report_is_a_failure_that_says_so"),
    "S5 complete": (_LIFECYCLE, "test_s5_complete"),
    "S6 complete not owner": (_LIFECYCLE, "test_s2_s6_another_token_is_refused_also_a_larger_one"),
    "S7 assign": (_SCHEDULER, "test_s7_levels_first_then_age"),
    "S8 reassign": (_SCHEDULER, "test_s8_retries_by_failures_and_never_a_parked_or_running_one"),
    "S9 late renew": (_LIFECYCLE, "test_s1_s9_a_late_renewal_counts_until_the_silence_is_noticed"),
    "S10 late complete": (_LIFECYCLE, "test_s10_a_late_success_counts_while_nobody_else_has_the_job"),
    "S11 self reassign": (_HERE, "test_s11_without_word_from_their_worker_all_go_to_it_again_with_larger_tokens"),
    "S12 add": (_HERE, "test_s12_what_is_planned_becomes_jobs_without_token"),
    "S13 limit": (_HERE, "test_s13_a_queue_at_its_limit_takes_no_more_and_loses_nothing"),
    "S14 assign then evict": (_HERE, "test_s14_a_waiting_job_is_assigned_before_anything_is_evicted"),
    "S15 evict": (_HERE, "test_s15_a_queue_of_parked_jobs_never_blocks_planning"),
    "S16 no evict": (_PLANNER, "test_s16_s17_no_eviction_while_there_is_room"),
    "S17 no limit": (_PLANNER, "test_s16_s17_no_eviction_while_there_is_room"),
    "S18 order": (_SCHEDULER, "test_s18_whatever_order_they_come_in"),
    "S19 nothing": (_SCHEDULER, "test_s19_nothing"),
    "S20 apply": (_HERE, "test_s20_new_updated_completed_and_evicted_in_one_history"),
    "S21 restore": (_HERE, "test_s21_a_new_coordinator_assigns_what_it_finds_once"),
    "S22 metrics": (_HERE, "test_s22_metrics_follow_the_jobs_and_go_with_the_policy"),
    "S23 race": (_HERE, "test_s23_scrapes_while_jobs_come_and_go"),
    "S24 plan store": (_HERE, "test_s24_the_plan_of_a_job_is_its_spec_and_goes_with_it"),
    "attempts off by one": (_LIFECYCLE, "test_exactly_max_attempts_attempts"),
    "renewal at the instant of expiry": (
        _MACHINE,
        "test_a_lease_expires_at_its_very_end_and_a_renewal_before_that_counts",
    ),
    "lost reply after assignment": (_LIFECYCLE, "test_adoption_after_a_crash_between_lease_and_status"),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_its_test(row: str) -> None:
    file, name = ROWS[row]
    tree = ast.parse((ROOT / Path(file)).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_no_row_is_forgotten() -> None:
    rows = [row.split()[0] for row in ROWS if row[0] == "S" and row[1].isdigit()]
    assert rows == [f"S{number}" for number in range(1, 25)]


def with_logs(count: int, **spec: object) -> PlainCluster:
    world = PlainCluster(**spec)
    for number in range(count):
        world.add_log(f"/ra/{number}")
    return world


def status_of(world: PlainCluster) -> CompactionPolicyStatus:
    assert world.policy is not None
    return world.policy.status


def log_of(world: PlainCluster, job: str) -> str:
    sources = world.jobs[job].spec.sources.segment_log
    assert sources is not None
    return sources.path


def park(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed")
    world.rest()
    assert world.state(job) is F


def test_s3_a_lease_of_a_job_that_does_not_exist_is_removed_and_changes_nothing() -> None:
    """The reference answers nil; we have a Lease to delete as well, or it would stay for ever."""
    world = with_logs(1)
    world.settle()
    before = dict(world.jobs)
    world.leases["0"] = SimLease("l0", 1, "w-1", 7, 15.0, world.wall)
    world.settle()
    assert world.leases == {}
    assert world.jobs == before


def test_s11_without_word_from_their_worker_all_go_to_it_again_with_larger_tokens() -> None:
    world = with_logs(3, workers={"max": 1, "slots": 3})
    world.rest()
    world.announce()
    world.rest()
    assert [job.status.fencing_token for job in world.jobs.values()] == [1, 1, 1]
    (worker,) = world.workers
    world.wall += 20
    world.workers[worker].changed_at = world.wall  # the worker lives, but says nothing of its jobs
    world.rest()
    assert [world.state(job) for job in world.jobs] == [P, P, P]
    for job in world.jobs.values():
        assert (job.status.fencing_token, job.status.worker, job.status.failures) == (2, worker, 1)
        assert job.status.attempts[0].outcome is AttemptOutcome.EXPIRED


def test_s12_what_is_planned_becomes_jobs_without_token() -> None:
    """The reference gives a new job the log index as its token; ours has none until the store has claimed one."""
    world = with_logs(3)
    world.rest()
    assert len(world.jobs) == 3
    for job in world.jobs.values():
        assert (job.status.state or U, job.status.fencing_token, job.status.failures) == (U, 0, 0)
        assert job.metadata.creation_timestamp is not None


def test_s13_a_queue_at_its_limit_takes_no_more_and_loses_nothing() -> None:
    """As the reference: the third of two is declined. Ours says so in the plan, and takes it when there is room."""
    world = with_logs(3, limits={"maxJobsQueued": 2}, workers={"max": 1, "slots": 2})
    world.rest()
    assert len(world.jobs) == 2
    plan = status_of(world).plan
    assert plan is not None
    assert [(item.reason, item.count) for item in plan.left_out] == [("QueueFull", 1)]
    world.announce()
    world.rest()
    for job in list(world.jobs):
        world.finish(job)
    world.pass_time(130)
    assert {log_of(world, job) for job in world.jobs} == {"/ra/0", "/ra/1", "/ra/2"}


def test_s14_a_waiting_job_is_assigned_before_anything_is_evicted() -> None:
    """Limit 2; three parked, one waiting. The reference must assign first, or its head hides the parked ones; ours
    evicts only for work that is planned, so what waits is assigned and the parked stay until somebody needs the room.
    """
    world = with_logs(4, limits={"maxAttempts": 1, "maxJobsQueued": 4}, workers={"max": 1, "slots": 3})
    world.rest()
    world.announce()
    world.rest()
    parked = world.in_state(P)
    assert len(parked) == 3
    (waiting,) = world.in_state(U)
    world.change_spec(limits={"maxJobsQueued": 2}, workers={"slots": 1})
    for job in parked:
        world.report(job, outcome="Failed")
    world.reconcile()
    world.rest()
    world.announce()  # the worker that was started with three slots was replaced
    world.rest()
    assert world.state(waiting) is P
    assert world.deleted == []
    assert sorted(world.in_state(F)) == sorted(parked)


def test_s15_a_queue_of_parked_jobs_never_blocks_planning() -> None:
    """Two of two are parked. The reference neither evicts (not above its limit) nor adds (not below): planning stands
    still for good (§2.5). Ours evicts AT the limit, the longest parked first, as many as the new work needs.
    """
    world = with_logs(2, limits={"maxAttempts": 1, "maxJobsQueued": 2}, workers={"max": 1, "slots": 2})
    world.rest()
    world.announce()
    world.rest()
    first, second = sorted(world.jobs)
    park(world, first)
    world.wall += 5
    world.renew_all()
    park(world, second)
    assert world.deleted == []
    world.add_log("/ra/new")
    world.pass_time(130)
    assert world.deleted[:1] == [first], "the longest parked goes, and only one was needed"
    assert second in world.jobs
    assert "/ra/new" in {log_of(world, job) for job in world.jobs}


def test_s20_new_updated_completed_and_evicted_in_one_history() -> None:
    """One is new, one renewed, one completed, one evicted: each ends where it belongs, and the totals are exact."""
    world = with_logs(
        3,
        limits={"maxAttempts": 1, "maxJobsQueued": 3},
        workers={"max": 1, "slots": 3},
        successfulJobsHistoryLimit=0,
    )
    world.rest()
    world.announce()
    world.rest()
    updated, completed, evicted = sorted(world.jobs)
    park(world, evicted)
    world.finish(completed)
    world.rest()
    world.renew(updated, progress=40)
    for number in ("4", "5"):
        world.add_log(f"/ra/{number}")
    world.pass_time(130)
    assert completed not in world.jobs
    assert evicted in world.deleted
    assert (world.state(updated), world.jobs[updated].status.fencing_token) == (P, 1)
    assert {"/ra/4", "/ra/5"} <= {log_of(world, job) for job in world.jobs}
    assert status_of(world).succeeded == 1


def test_s21_a_new_coordinator_assigns_what_it_finds_once() -> None:
    world = with_logs(2, workers={"max": 1, "slots": 2})
    world.rest()
    world.restart()
    world.announce()
    world.rest()
    assert [(job.status.state, job.status.fencing_token) for job in world.jobs.values()] == [(P, 1), (P, 1)]
    writes = world.writes
    world.restart()
    world.rest()
    assert [(job.status.state, job.status.fencing_token) for job in world.jobs.values()] == [(P, 1), (P, 1)]
    assert world.writes == writes, "there was nothing left to assign"


KEY = CacheKey("ns", "p")


def sample(metrics: Metrics, state: str) -> float | None:
    labels = {"namespace": "ns", "policy": "p", "state": state}
    return metrics.registry.get_sample_value("compaction_jobs", labels)


def test_s22_metrics_follow_the_jobs_and_go_with_the_policy() -> None:
    """A job that is deleted leaves a zero, a policy that is deleted leaves nothing."""
    metrics = Metrics()
    metrics.set_jobs(KEY, {"Unassigned": 2})
    metrics.set_jobs(KEY, {"Unassigned": 1})
    assert (sample(metrics, "Unassigned"), sample(metrics, "Succeeded")) == (1.0, None)
    metrics.set_jobs(KEY, {})
    assert sample(metrics, "Unassigned") == 0.0
    metrics.forget_policy(KEY)
    assert sample(metrics, "Unassigned") is None


def test_s23_scrapes_while_jobs_come_and_go() -> None:
    """100 times added, assigned and done while another thread scrapes all the time: neither disturbs the other."""
    metrics, problems, over, scrapes = Metrics(), [], threading.Event(), []

    def scrape() -> None:
        from prometheus_client import generate_latest

        while not over.is_set():
            try:
                scrapes.append(len(generate_latest(metrics.registry)))
            except RuntimeError as error:  # "dictionary changed size during iteration"
                problems.append(error)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for number in range(100):
            world = with_logs(1)
            world.rest()
            world.announce()
            world.rest()
            job = world.only_job()
            assert world.state(job) is P
            key = CacheKey("ns", f"p{number}")
            metrics.set_jobs(key, {world.state(job).value: 1})
            world.finish(job)
            world.rest()
            metrics.set_jobs(key, {world.state(job).value: 1})
            metrics.forget_policy(CacheKey("ns", f"p{number - 5}"))
    finally:
        over.set()
        thread.join()
    assert problems == []
    assert scrapes


def test_s24_the_plan_of_a_job_is_its_spec_and_goes_with_it() -> None:
    """The reference keeps plans apart from states and panics when one is missing; here the object is both."""
    world = with_logs(1)
    world.rest()
    job = world.only_job()
    assert log_of(world, job) == "/ra/0"
    del world.jobs[job]
    world.restart()
    world.rest()
    assert log_of(world, world.only_job()) == "/ra/0", "deleted by hand, planned again from what the store says"
    assert world.only_job() == job, "under the same name"
