"""Jobs that can never succeed, claims that fail, and what is charged for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compaction.api.conditions import get_condition
from compaction.api.enums import AttemptOutcome, JobReason, JobState, WaitReason
from compaction.api.job.job import AttemptStatus, CompactionJobStatus
from compaction.api.job.job_status import JobReport
from compaction.core.reconcile.jobs.job import LONGEST_BACKOFF, not_before, reported
from compaction.core.reconcile.observations import ClaimProblem, Moment, WorkerMemory, frozen
from compaction.core.reconcile.policy import reconcile
from support.cluster.world import PlainCluster

NOW = Moment(1_800_000_000.0, 50.0)


def planned(**spec: object) -> PlainCluster:
    world = PlainCluster(**spec)
    world.add_log("/ra/a")
    world.settle()
    return world


def by_hand(world: PlainCluster, *, path: str = "/ra/a") -> str:
    """The only job, as if a person had made it."""
    name = world.only_job()
    body = world.jobs[name].to_object()
    del body["metadata"]["ownerReferences"]
    body["spec"]["sources"]["segmentLog"]["path"] = path
    world.jobs[name] = type(world.jobs[name]).from_object(body)
    return name


def problem(world: PlainCluster, name: str, *, terminal: bool = False, pause: float = 5.0) -> None:
    """The claim of a job was refused just now."""
    found = ClaimProblem(WaitReason.STORE_ERROR, "/ra/a is no log", world.wall, world.wall + pause, terminal)
    world.memory = replace(world.memory, claims=frozen({name: found}))


@pytest.mark.parametrize("state", [JobState.UNASSIGNED, JobState.ABANDONED])
def test_a_planned_job_whose_log_is_gone_is_deleted_tried_before_or_not(state: JobState) -> None:
    world = planned()
    name = world.only_job()
    world.put_status(name, state=state)
    del world.logs["/ra/a"]
    world.wall += 61
    world.settle()
    assert world.jobs == {}


@pytest.mark.parametrize("state", [JobState.UNASSIGNED, JobState.ABANDONED])
def test_a_job_made_by_hand_for_what_is_no_log_is_faulty_once_a_look_confirms_it(state: JobState) -> None:
    world = planned()
    name = by_hand(world)
    world.put_status(name, state=state)
    del world.logs["/ra/a"]
    problem(world, name, terminal=True)
    world.reconcile()
    assert world.state(name) is state, "the store may be gone for a moment only"
    world.wall += 61
    problem_since = world.memory.claims[name]
    world.memory = replace(world.memory, claims=frozen({name: replace(problem_since, retry_at=world.wall + 60)}))
    world.settle()
    failed = get_condition(world.jobs[name].status.conditions, "Failed")
    assert (world.state(name), failed and failed.reason) == (JobState.FAULTY, JobReason.SOURCES_GONE)


def test_a_refused_job_stays_refused_and_its_fence_is_not_touched() -> None:
    world = planned()
    name = by_hand(world, path="/etc")
    attempt = AttemptStatus(
        token=1, worker="w", started_at=NOW.time, outcome=AttemptOutcome.LOST, charged=False, reason="x"
    )
    world.put_status(name, state=JobState.ABANDONED, attempts=(attempt,))
    decision = reconcile(world.snapshot())
    (end,) = decision.end_attempts
    assert not end.retire
    world.logs["/etc"] = world.logs["/ra/a"]
    world.settle()
    assert world.state(name) is JobState.FAULTY


def test_no_worker_is_started_for_a_job_that_could_not_claim_its_log() -> None:
    world = PlainCluster(workers={"max": 3})
    world.launch_works = False
    world.add_log("/ra/a")
    world.settle()
    world.memory = replace(world.memory, workers=WorkerMemory())
    problem(world, world.only_job(), pause=0.0)
    world.wall += 1
    assert reconcile(world.snapshot()).launches == ()
    claim = world.memory.claims[world.only_job()]
    world.memory = replace(world.memory, claims=frozen({world.only_job(): replace(claim, retry_at=world.wall - 301)}))
    assert len(reconcile(world.snapshot()).launches) == 1, "it is tried again in the end"


def test_a_backoff_written_by_a_clock_that_was_ahead_ends() -> None:
    """Found by the simulator: a pause of a minute from whenever one looked ended when the clock had caught up."""
    ahead = Moment(NOW.wall + 1e6, 0.0)
    attempt = AttemptStatus(
        token=1, worker="w", started_at=ahead.time, ended_at=ahead.time, outcome=AttemptOutcome.FAILED, charged=True
    )
    later = Moment(NOW.wall + LONGEST_BACKOFF, LONGEST_BACKOFF)
    assert not_before(CompactionJobStatus(attempts=(attempt,)), later) <= later.wall


def test_a_late_proof_of_damage_is_not_charged_a_second_time() -> None:
    attempt = AttemptStatus(
        token=1, worker="w", started_at=NOW.time, ended_at=NOW.time, outcome=AttemptOutcome.EXPIRED, charged=True
    )
    before = CompactionJobStatus(state=JobState.ABANDONED, fencing_token=1, failures=1, attempts=(attempt,))
    report = JobReport.model_validate(
        {"token": 1, "outcome": "Failed", "reason": "SourceCorrupt", "message": "bad", "charged": False}
    )
    after = reported(before, report, max_attempts=3, now=NOW, generation=1)
    assert (after.state, after.failures) == (JobState.FAULTY, 1)


def test_the_age_of_a_wait_survives_other_reasons_and_a_job_in_doubt_is_not_active() -> None:
    world = planned()
    name = world.only_job()
    world.wall += 1
    world.settle()
    assert world.policy is not None
    first = world.policy.status.waiting
    assert first is not None
    world.announce()
    problem(world, name, pause=0.0)
    world.wall += 1
    decision = reconcile(world.snapshot())
    assert [action.job.name for action in decision.assignments] == [name]
    assert decision.policy_status is not None
    status = decision.policy_status.status
    assert (status.active, status.queued) == (0, 1)
    assert status.waiting is not None
    assert (status.waiting.reason, status.waiting.since) == (WaitReason.STORE_ERROR, first.since)
