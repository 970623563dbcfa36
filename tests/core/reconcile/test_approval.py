"""approval: Manual. Jobs are created only when somebody approved exactly this plan, and then exactly these."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from compaction.api.base import timestamp_from_epoch
from compaction.api.conditions import get_condition
from compaction.api.enums import PlanApproval
from compaction.api.names import LABEL_PLAN
from compaction.api.policy.policy import CompactionPolicy, PlanStatus
from compaction.core.reconcile.planning import approval, replan
from compaction.core.reconcile.planning.replan import CREATED_AT_ONCE
from support.cluster.world import Crash, PlainCluster


def manual(logs: int = 2, **spec: object) -> PlainCluster:
    world = PlainCluster(approval="Manual", **spec)
    for i in range(logs):
        world.add_log(f"/ra/{i}")
    world.rest()
    return world


def plan_of(world: PlainCluster) -> PlanStatus:
    assert world.status.plan is not None
    return world.status.plan


def approve(world: PlainCluster, plan: str | None = None) -> None:
    world.annotate(approve=plan_of(world).hash if plan is None else plan)
    world.rest()


def test_a_plan_is_shown_and_waits() -> None:
    world = manual()
    plan = plan_of(world)
    assert world.jobs == {}
    assert (plan.approval, plan.jobs, plan.cost_bytes, plan.gain_bytes) == (PlanApproval.PENDING, 2, 100, 200)
    assert [(work.target, work.groups, work.gain_bytes) for work in plan.work] == [("/ra/0", 1, 100), ("/ra/1", 1, 100)]
    assert plan.waiting_since == timestamp_from_epoch(1_800_000_000)
    waiting = world.status.waiting
    assert waiting is not None
    assert (waiting.reason, waiting.since) == ("ApprovalPending", plan.waiting_since)
    assert f"compaction.dev/approve={plan.hash}" in waiting.message
    ready = get_condition(world.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "ApprovalPending")


def test_the_approved_plan_is_carried_out_exactly_and_once() -> None:
    world = manual()
    plan = plan_of(world)
    looks = world.readings
    approve(world)
    assert world.readings == looks + 1, "the world is looked at once more"
    assert sorted(world.jobs) == sorted(work.job for work in plan.work)
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {plan.hash}
    assert (plan_of(world).hash, plan_of(world).approval) == (plan.hash, PlanApproval.APPROVED)
    assert plan_of(world).created_at == plan.created_at
    assert [reason for reason, _ in world.events].count("Planned") == 1
    world.pass_time(180)
    assert (plan_of(world).hash, plan_of(world).approval) == (plan.hash, PlanApproval.APPROVED)
    assert [reason for reason, _ in world.events].count("Planned") == 1


def test_the_hash_does_not_depend_on_time_or_coordinator() -> None:
    world = manual()
    before = plan_of(world)
    world.pass_time(600)
    world.restart()
    world.rest()
    assert plan_of(world) == before, "the same plan, with its whole age"


def test_an_approval_of_another_plan_creates_nothing_and_is_named() -> None:
    world = manual()
    approve(world, "0123456789abcdef")
    world.pass_time(15)
    assert world.jobs == {}
    assert world.status.waiting is not None
    assert "0123456789abcdef, which is approved, is not the plan any more" in world.status.waiting.message


def test_an_approval_that_was_carried_out_is_not_said_to_be_void() -> None:
    """Its annotation stays, and the next plan waits for its own."""
    world = manual()
    first = plan_of(world).hash
    approve(world)
    assert world.status.approved == first
    world.add_log("/ra/new")
    world.wall += 61
    world.rest()
    waiting = next(row for row in world.status.waits if row.reason == "ApprovalPending")
    assert waiting.message.endswith(f"compaction.dev/approve={plan_of(world).hash}")
    world.restart()
    world.rest()
    assert first not in next(row.message for row in world.status.waits if row.reason == "ApprovalPending")


def test_a_changed_world_makes_the_approval_void() -> None:
    world = manual()
    first = plan_of(world)
    world.add_log("/ra/new")
    approve(world)
    second = plan_of(world)
    assert world.jobs == {}, "what was approved is not what would be done now"
    assert second.hash != first.hash
    assert (second.approval, second.jobs) == (PlanApproval.PENDING, 3)
    assert second.waiting_since == first.waiting_since, "something waits for approval all the time"
    approve(world)
    assert len(world.jobs) == 3


def test_another_parameter_is_another_plan() -> None:
    world = manual()
    first = plan_of(world).hash
    world.change_spec(store={"segmentLogs": {"root": "/ra", "maxEntriesPerSegment": 128}})
    world.rest()
    assert plan_of(world).hash not in ("", first)


def test_a_plan_whose_work_vanished_waits_no_more() -> None:
    world = manual()
    for log in world.logs.values():
        log.groups.clear()
    world.wall += 61
    world.rest()
    assert (plan_of(world).hash, plan_of(world).approval, plan_of(world).waiting_since) == ("", None, None)
    assert world.status.waiting is None


@pytest.mark.parametrize("steps", range(1, 9))
def test_a_coordinator_that_dies_while_it_creates_is_followed_by_one_that_creates_the_rest(steps: int) -> None:
    world = manual(logs=4)
    plan = plan_of(world)
    world.annotate(approve=plan.hash)
    world.reconcile()
    try:
        world.reconcile(crash_after=steps)
    except Crash:
        world.restart()
    world.rest()
    assert sorted(world.jobs) == sorted(work.job for work in plan.work)
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {plan.hash}


def test_what_comes_up_later_is_a_plan_of_its_own() -> None:
    world = manual()
    approve(world)
    done = plan_of(world)
    world.add_log("/ra/new")
    world.pass_time(61)
    pending = plan_of(world)
    assert (pending.approval, pending.jobs) == (PlanApproval.PENDING, 1)
    assert pending.hash != done.hash
    assert len(world.jobs) == 2
    approve(world)
    assert len(world.jobs) == 3


def test_automatic_again_means_no_more_waiting() -> None:
    world = manual()
    world.change_spec(approval="Auto")
    world.rest()
    assert len(world.jobs) == 2
    assert (plan_of(world).approval, plan_of(world).work) == (None, ())


def test_a_full_queue_evicts_for_an_approved_plan_only() -> None:
    world = manual(logs=1, limits={"maxJobsQueued": 1, "maxAttempts": 1})
    approve(world)
    world.announce()
    world.rest()
    (name,) = world.jobs
    world.report(name, outcome="Failed")
    world.rest()
    world.add_log("/ra/new")
    world.pass_time(70)
    assert plan_of(world).approval is PlanApproval.PENDING
    assert list(world.jobs) == [name], "nothing is given up for a plan that nobody wants yet"
    approve(world)
    world.rest()
    assert name not in world.jobs


def test_a_plan_of_a_schedule_waits_and_is_kept_up_to_date_between_its_times() -> None:
    world = manual(trigger={"schedule": "0 2 * * *", "interval": "10m"})
    assert world.status.plan is None or world.status.plan.hash == ""
    world.wall += 20 * 3600
    world.rest()
    first = plan_of(world)
    assert first.approval is PlanApproval.PENDING
    world.add_log("/ra/new")
    world.wall += 601
    world.rest()
    assert plan_of(world).jobs == 3
    approve(world)
    assert len(world.jobs) == 3
    world.add_log("/ra/newer")
    world.wall += 601
    world.rest()
    assert plan_of(world).approval is PlanApproval.APPROVED, "the next plan is made at the next time"


def test_a_job_made_by_hand_needs_no_approval() -> None:
    world = manual(logs=1)
    approve(world)
    (name,) = world.jobs
    world.jobs[name] = world.jobs[name].model_copy(
        update={"metadata": world.jobs[name].metadata.model_copy(update={"owner_references": ()})}
    )
    world.memory = replace(world.memory, planning=replace(world.memory.planning, plan=None))
    world.annotate(approve="")
    world.announce()
    world.rest()
    assert world.status.active == 1


def test_an_approved_plan_larger_than_one_decision_creates_is_created_whole() -> None:
    """Its first jobs run while the rest is created, and the store is looked at meanwhile."""
    world = manual(logs=CREATED_AT_ONCE + 2)
    plan = plan_of(world)
    world.annotate(approve=plan.hash)
    while not world.jobs:
        world.reconcile()
    assert len(world.jobs) == CREATED_AT_ONCE
    del world.logs["/ra/0"].groups[:]  # what the first of them did
    world.wall += 61
    world.sense()
    world.rest()
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {plan.hash}
    assert len(world.jobs) == CREATED_AT_ONCE + 2
    assert plan_of(world).approval is PlanApproval.APPROVED


def test_an_approval_that_is_taken_back_ends_the_creation() -> None:
    world = manual(logs=CREATED_AT_ONCE + 2)
    world.annotate(approve=plan_of(world).hash)
    while not world.jobs:
        world.reconcile()
    world.annotate(approve="")
    world.rest()
    assert len(world.jobs) == CREATED_AT_ONCE
    world.pass_time(61)
    assert len(world.jobs) == CREATED_AT_ONCE
    assert plan_of(world).approval is PlanApproval.PENDING


AT_ONCE, LARGE = 8, 12


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of a dozen jobs is large."""
    monkeypatch.setattr(replan, "CREATED_AT_ONCE", AT_ONCE)


def large() -> tuple[PlainCluster, PlanStatus]:
    """An approved plan of which the first jobs exist; its coordinator creates no more."""
    world = manual(logs=LARGE, limits={"maxConcurrentJobs": 2})
    plan = plan_of(world)
    world.annotate(approve=plan.hash)
    while not world.jobs:
        world.reconcile()
    assert len(world.jobs) == AT_ONCE
    world.creation_works = False
    return world, plan


def run_one(world: PlainCluster) -> str:
    """The first job of the plan that got a worker succeeds."""
    world.reconcile()
    world.announce()
    world.reconcile()
    job = next(iter(world.leases))
    world.commit(job, world.leases[job].token)
    world.report(job)
    return job


def die_and_come_back(world: PlainCluster) -> None:
    world.restart()
    world.creation_works = True
    for _ in range(3):
        world.pass_time(31)


def test_the_status_names_the_jobs_of_an_approved_plan_before_the_first_of_them_exists() -> None:
    world = manual()
    world.annotate(approve=plan_of(world).hash)
    while not plan_of(world).unmade:
        world.reconcile()
        assert world.jobs == {}
    world.rest()
    assert len(world.jobs) == 2
    world.pass_time(15)
    assert plan_of(world).unmade == "", "all of them exist"


@pytest.mark.usefixtures("few_at_once")
def test_a_restart_in_the_middle_of_a_large_plan_creates_the_rest_although_some_have_run() -> None:
    world, plan = large()
    done = run_one(world)
    die_and_come_back(world)
    assert len(world.jobs.keys() | {done}) == LARGE
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {plan.hash}
    assert (plan_of(world).hash, plan_of(world).approval, plan_of(world).unmade) == (
        plan.hash,
        PlanApproval.APPROVED,
        "",
    )
    assert [reason for reason, _ in world.events].count("Planned") == 1


@pytest.mark.usefixtures("few_at_once")
def test_what_was_not_approved_waits_also_after_a_restart() -> None:
    """A log that came up meanwhile, and one whose sources are others now: their work is another plan."""
    world, plan = large()
    run_one(world)
    missing = [path for path in world.logs if path not in {job.spec.target for job in world.jobs.values()}]
    changed, *others = missing
    world.logs[changed].groups[:] = ["0000000000000077.segment"]
    world.add_log("/ra/new")
    die_and_come_back(world)
    lanes = {job.spec.target for job in world.jobs.values()}
    assert set(others) <= lanes
    assert not {changed, "/ra/new"} & lanes
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {plan.hash}
    while any(job.status.state in ("Unassigned", "InProgress", "Abandoned", None) for job in world.jobs.values()):
        world.pass_time(5)
        world.announce()
        for job in list(world.leases):
            world.commit(job, world.leases[job].token)
            world.report(job)
    world.pass_time(62)
    assert (plan_of(world).approval, plan_of(world).jobs) == (PlanApproval.PENDING, 2)


def test_a_job_whose_log_is_busy_when_the_next_coordinator_looks_is_found_later() -> None:
    """A log with two jobs, of which the first is being committed: the look finds neither."""
    world = manual(logs=1, limits={"maxBytesPerJob": 50})
    world.logs["/ra/0"].groups[:] = ["0000000000000001.segment", "0000000000000002.segment"]
    world.pass_time(61)
    plan = plan_of(world)
    assert plan.jobs == 2
    world.annotate(approve=plan.hash)
    world.rest()
    first, second = world.jobs
    del world.jobs[second]  # it was never created
    world.announce()
    world.rest()
    groups = list(world.logs["/ra/0"].groups)
    world.policy = with_unmade(world, [second])
    world.logs["/ra/0"].groups.clear()
    world.restart()
    world.pass_time(31)
    assert list(world.jobs) == [first]
    assert world.memory.planning.unmade.sought == {second}
    world.logs["/ra/0"].groups[:] = groups
    world.commit(first, world.leases[first].token)
    world.report(first)
    world.pass_time(62)
    assert second in world.jobs
    assert world.jobs[second].metadata.labels[LABEL_PLAN] == plan.hash


def with_unmade(world: PlainCluster, names: list[str]) -> CompactionPolicy:
    """The policy as it was before the last of these jobs was seen to exist."""
    assert world.policy is not None
    plan = approval.with_unmade(plan_of(world), names)
    return world.policy.model_copy(update={"status": world.policy.status.model_copy(update={"plan": plan})})


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("change", ["the approval is taken back", "another plan is approved", "the spec is another"])
def test_a_restart_creates_nothing_more_once_the_approval_is_another(change: str) -> None:
    world, _ = large()
    run_one(world)
    created = len(world.jobs)
    if change == "the spec is another":
        world.change_spec(store={"segmentLogs": {"root": "/ra", "maxEntriesPerSegment": 128}})
    else:
        world.annotate(approve="" if change == "the approval is taken back" else "0123456789abcdef")
    die_and_come_back(world)
    assert len(world.jobs) <= created
    assert plan_of(world).approval is PlanApproval.PENDING


@pytest.mark.usefixtures("few_at_once")
def test_a_status_that_cannot_be_read_asks_again() -> None:
    world, _ = large()
    run_one(world)
    created = len(world.jobs)
    plan = plan_of(world).model_copy(update={"unmade": "no base64!"})
    assert world.policy is not None
    status = world.policy.status.model_copy(update={"plan": plan})
    world.policy = world.policy.model_copy(update={"status": status})
    die_and_come_back(world)
    assert len(world.jobs) <= created
    assert plan_of(world).approval is PlanApproval.PENDING


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("steps", [1, 2, 3, 6, AT_ONCE, AT_ONCE + 2])
def test_wherever_a_coordinator_dies_the_whole_plan_is_created(steps: int) -> None:
    world = manual(logs=LARGE, limits={"maxConcurrentJobs": 2})
    plan = plan_of(world)
    world.annotate(approve=plan.hash)
    left = steps
    with suppress(Crash):
        for _ in range(20):
            before = len(world.jobs) + world.status_writes + world.readings
            world.reconcile(crash_after=left)
            left -= len(world.jobs) + world.status_writes + world.readings - before
    done = run_one(world) if world.jobs else ""
    die_and_come_back(world)
    assert len(world.jobs.keys() | ({done} if done else set())) == LARGE
    assert {job.metadata.labels[LABEL_PLAN] for job in world.jobs.values()} == {plan.hash}


@pytest.mark.usefixtures("few_at_once")
def test_a_job_that_was_not_created_is_created_again() -> None:
    """The API server did not answer: the plan cannot be made again by then, and need not be."""
    world, _ = large()
    world.reconcile()
    world.creation_works = True
    world.rest()
    assert len(world.jobs) == LARGE
