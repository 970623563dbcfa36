"""What is charged to a job and what is not: infrastructure that goes away is nobody's failure.

The rules: docs/design/scheduling.md#attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compaction.api.conditions import get_condition
from compaction.api.enums import AttemptOutcome, JobReason, JobState, WaitReason
from compaction.api.job.job import AttemptStatus, CompactionJobStatus
from compaction.api.job.job_status import JobReport
from compaction.core.reconcile.jobs.job import LONGEST_BACKOFF, not_before, reported
from compaction.core.reconcile.observations import ClaimProblem, Moment, WorkerMemory, frozen
from compaction.core.reconcile.policy import reconcile
from compaction.kube.informer.cache import CacheKey
from compaction.kube.metrics.measure import SUPERSEDED, measure
from compaction.kube.metrics.registry import Metrics
from compaction.segments.reasons import SegmentReason
from support.cluster.world import F, PlainCluster
from support.timing import examples


def assigned_world() -> tuple[PlainCluster, str]:
    world = PlainCluster(limits={"maxAttempts": 3})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    return world, world.only_job()


def worker_of(world: PlainCluster, job: str) -> str:
    return world.leases[job].holder


def process_ends(world: PlainCluster, job: str) -> None:
    """Evicted, preempted, out of memory: its launcher sees it."""
    world.die(worker_of(world, job))


def worker_lease_goes(world: PlainCluster, job: str) -> None:
    """The node is gone with all that knew of the process; the garbage collector took the worker's Lease."""
    worker = world.workers[worker_of(world, job)]
    worker.process, worker.has_lease = "none", False


def job_lease_goes(world: PlainCluster, job: str) -> None:
    del world.leases[job]


def job_lease_changes_hands(world: PlainCluster, job: str) -> None:
    world.leases[job].holder = "somebody-else"


def worker_stops(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.WORKER_STOPPED, charged=False)


def engine_goes(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.ENGINE_LOST, charged=False)


def fenced_off(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.STALE_TOKEN, charged=False)


def store_locked(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=SegmentReason.STORE_LOCKED, charged=False)


def worker_is_silent(world: PlainCluster, job: str) -> None:
    world.wall += 16


def worker_says_failed(world: PlainCluster, job: str) -> None:
    world.report(job, outcome="Failed", reason=JobReason.STORE_UNREADABLE)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (process_ends, JobReason.WORKER_LOST),
        (worker_lease_goes, JobReason.WORKER_LOST),
        (job_lease_goes, JobReason.WORKER_LOST),
        (job_lease_changes_hands, JobReason.REVOKED),
        (worker_stops, JobReason.WORKER_STOPPED),
        (engine_goes, JobReason.ENGINE_LOST),
        (fenced_off, JobReason.STALE_TOKEN),
        (store_locked, SegmentReason.STORE_LOCKED),
    ],
)
def test_infrastructure_is_recorded_and_not_charged(
    loss: Callable[[PlainCluster, str], None], reason: JobReason
) -> None:
    world, job = assigned_world()
    loss(world, job)
    world.reconcile()
    status = world.jobs[job].status
    attempt = status.attempts[0]
    assert (attempt.reason, attempt.charged) == (reason, False)
    assert attempt.outcome not in (AttemptOutcome.RUNNING, AttemptOutcome.SUCCEEDED)
    assert status.failures == 0
    assert status.state in (JobState.ABANDONED, JobState.IN_PROGRESS), "it goes on"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(worker_is_silent, JobReason.LEASE_EXPIRED), (worker_says_failed, JobReason.STORE_UNREADABLE)],
)
def test_a_failure_of_the_attempt_is_charged(failure: Callable[[PlainCluster, str], None], reason: JobReason) -> None:
    world, job = assigned_world()
    failure(world, job)
    world.reconcile()
    attempt = world.jobs[job].status.attempts[0]
    assert (attempt.reason, attempt.charged, world.jobs[job].status.failures) == (reason, True, 1)


# A job that fails as a whole is halved until the culprit is alone, whatever is forgotten on the way.

P, FAILURE = JobState.IN_PROGRESS, JobState.FAULTY


def run(world: PlainCluster, culprits: set[str], *, rounds: int, restart_every: int = 0) -> list[frozenset[str]]:
    """Workers do every job but those with a culprit in them; returns the groups of the jobs that failed, in order."""
    failed: list[frozenset[str]] = []
    for round in range(1, rounds + 1):
        world.settle()
        if restart_every and round % restart_every == 0:
            world.restart()
            world.settle()
        if not any(worker.has_lease for worker in world.workers.values()):
            world.announce()
            world.settle()
        for job in world.in_state(P):
            sources = world.jobs[job].spec.sources.segment_log
            assert sources is not None
            names = frozenset(group.segments[0] for group in sources.groups)
            if names & culprits:
                failed.append(names)
                world.report(job, outcome="Failed", reason="VerificationFailed")
            else:
                world.finish(job)
        world.wall += 61
        for worker in world.workers.values():
            worker.changed_at = world.wall
    return failed


def assert_none_twice(failed: list[frozenset[str]]) -> None:
    """Single groups are tried again, when others had their turn; several together never."""
    whole = [names for names in failed if len(names) > 1]
    assert len(set(whole)) == len(whole), "a split was forgotten"


@pytest.mark.parametrize(("history", "queued"), [(10, 1000), (0, 1000), (10, 1), (0, 1), (1, 2)])
@pytest.mark.parametrize("restart_every", [0, 2])
def test_it_converges_whatever_is_forgotten(history: int, queued: int, restart_every: int) -> None:
    world = PlainCluster(failedJobsHistoryLimit=history, limits={"maxAttempts": 1, "maxJobsQueued": queued})
    log = world.add_log("/ra/a", 8)
    culprit = log.groups[5]
    failed = run(world, {culprit}, rounds=40, restart_every=restart_every)
    assert log.groups == [culprit], "everything else was compacted"
    assert [len(names) for names in failed][:3] == [8, 4, 2]
    assert_none_twice(failed)


@given(
    groups=st.integers(2, 9),
    culprits=st.sets(st.integers(0, 8), max_size=4),
    history=st.integers(0, 2),
    queued=st.integers(1, 4),
    restart_every=st.integers(0, 3),
)
@settings(max_examples=examples(25))
def test_only_the_culprits_are_left(
    groups: int, culprits: set[int], history: int, queued: int, restart_every: int
) -> None:
    world = PlainCluster(failedJobsHistoryLimit=history, limits={"maxAttempts": 1, "maxJobsQueued": queued})
    log = world.add_log("/ra/a", groups)
    bad = {log.groups[i] for i in culprits if i < groups}
    failed = run(world, bad, rounds=60, restart_every=restart_every)
    assert set(log.groups) == bad
    assert_none_twice(failed)


def test_a_record_goes_when_its_work_is_done() -> None:
    world = PlainCluster(failedJobsHistoryLimit=0, limits={"maxAttempts": 1})
    log = world.add_log("/ra/a", 4)
    run(world, set(log.groups), rounds=4)
    assert len(world.in_state(FAILURE)) > 0
    run(world, set(), rounds=40)
    assert log.groups == []
    assert world.in_state(FAILURE) == []


# Jobs that can never succeed, claims that fail, and what is charged for them.

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


# The column FAULTY, the metric and the alert count the same: parked jobs whose work was not planned again.

POLICY = CacheKey("ns", "logs")
SEGMENT = "0000000000000001.segment"


def parked(reason: JobReason) -> PlainCluster:
    """A policy whose only job is parked for that reason, and is not planned again."""
    world = PlainCluster(limits={"maxAttempts": 1})
    world.add_log("/ra/a")
    world.rest()
    world.announce()
    world.rest()
    damage = {"source": SEGMENT, "reason": reason.value, "message": "bad", "identity": "id"}
    skipped = [damage] if reason == JobReason.SOURCE_CORRUPT else []
    world.quarantine_identity["/ra/a", SEGMENT] = "id"
    world.report(world.only_job(), outcome="Failed", reason=reason.value, skipped=skipped)
    world.logs["/ra/a"].groups.clear()
    look_again(world)
    assert world.in_state(F) == [world.only_job()]
    return world


def look_again(world: PlainCluster) -> None:
    world.wall += 61
    world.renew_all()
    world.rest()


def counted(world: PlainCluster) -> tuple[int, float | None, float | None]:
    """(FAULTY, the metric's Faulty, its Superseded)."""
    metrics, snapshot = Metrics(), world.snapshot()
    measure(metrics, POLICY, snapshot, reconcile(snapshot))

    def jobs(state: str) -> float | None:
        return metrics.registry.get_sample_value(
            "compaction_jobs", {"namespace": "ns", "policy": "logs", "state": state}
        )

    return world.status.faulty, jobs(JobState.FAULTY.value), jobs(SUPERSEDED)


def test_a_job_that_used_up_its_attempts_is_counted() -> None:
    assert counted(parked(JobReason.STORE_UNREADABLE)) == (1, 1, 0)


def test_a_job_whose_sources_changed_is_not() -> None:
    assert counted(parked(JobReason.SOURCES_CHANGED)) == (0, 0, 1)


def test_a_job_with_a_damaged_source_is_counted_until_the_quarantine_is_over() -> None:
    world = parked(JobReason.SOURCE_CORRUPT)
    assert counted(world) == (1, 1, 0)
    world.quarantine_identity["/ra/a", SEGMENT] = "restored"
    look_again(world)
    assert world.status.quarantined == ()
    assert counted(world) == (0, 0, 1)
