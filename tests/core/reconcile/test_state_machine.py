"""Every edge of the job's state machine is reached through `reconcile`, and nothing but its edges ever happens.

The edges are those of `core.reconcile.jobs.job.TRANSITIONS`: a new one without a scenario here fails, and so does a
scenario whose edge is not taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from compaction.api.enums import JobReason, JobState
from compaction.api.job.job import CompactionJob
from compaction.api.job.job_status import JobReport
from compaction.api.names import ANNOTATION_RETRY
from compaction.core.reconcile.jobs import job as job_life
from compaction.core.reconcile.jobs.job import TRANSITIONS, JobEvent, next_state
from compaction.core.reconcile.jobs.steps import GoneWorker, JobRefusal, StepRules, take_step
from compaction.core.reconcile.observations import JobLease, JobView, Moment, OperatorIdentity
from support.cluster.world import A, Crash, F, P, PlainCluster, S, SimLease, U

Edge = tuple[JobState, JobEvent]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Edge]:
    """The edges that are asked for, in order, whether the table has them or not."""
    edges: list[Edge] = []

    def record(state: JobState, event: JobEvent) -> JobState:
        edges.append((state, event))
        return next_state(state, event)

    monkeypatch.setattr(job_life, "next_state", record)
    return edges


# --- worlds, each right before its edge ---


def planned(**spec: Any) -> PlainCluster:
    world = PlainCluster(**spec)
    world.add_log("/ra/a")
    world.settle()
    world.announce()
    return world


def running(**spec: Any) -> PlainCluster:
    world = planned(**spec)
    world.settle()
    return world


def abandoned(**spec: Any) -> PlainCluster:
    """One attempt failed; the next one waits for its backoff. The worker's Lease of the job is still remembered."""
    world = running(**spec)
    world.report(world.only_job(), outcome="Failed")
    world.reconcile()
    assert world.state(world.only_job()) is A
    return world


def faulty(**spec: Any) -> PlainCluster:
    world = running(limits={"maxAttempts": 1, **spec})
    world.report(world.only_job(), outcome="Failed")
    world.settle()
    return world


def hold(world: PlainCluster, *, token: int) -> None:
    """A Lease of the job with this token, as another coordinator left it before it wrote the status."""
    job, (worker,) = world.only_job(), world.workers
    world.leases[job] = SimLease(f"l{world.bump()}", int(world.bump()), worker, token, 15.0, world.wall)
    world.logs["/ra/a"].claimed[job] = token


def outside(world: PlainCluster) -> PlainCluster:
    """The job as if a person had made it, for a directory that is not the policy's."""
    name = world.only_job()
    body = world.jobs[name].to_object()
    del body["metadata"]["ownerReferences"]
    body["spec"]["sources"]["segmentLog"]["path"] = "/etc"
    world.jobs[name] = CompactionJob.from_object(body)
    return world


def assign_and_die() -> PlainCluster:
    world = planned()
    with suppress(Crash):
        world.reconcile(crash_after=2)
    assert (world.state(world.only_job()), len(world.leases)) == (U, 1), "died between Lease and status"
    return world


def taken_over() -> PlainCluster:
    world = running()
    hold(world, token=2)
    return world


def done() -> PlainCluster:
    world = running()
    world.finish(world.only_job())
    return world


def failed() -> PlainCluster:
    world = running()
    world.report(world.only_job(), outcome="Failed")
    return world


def failed_for_the_last_time() -> PlainCluster:
    world = running(limits={"maxAttempts": 1})
    world.report(world.only_job(), outcome="Failed")
    return world


def rested() -> PlainCluster:
    world = abandoned()
    world.wall += 2
    world.renew_all()
    for worker in world.workers.values():
        worker.changed_at = world.wall
    return world


def abandoned_and_held() -> PlainCluster:
    world = abandoned()
    hold(world, token=2)
    return world


def late(**report: Any) -> PlainCluster:
    """The attempt was given up because its Lease had expired; now its worker is back, and nobody else has begun."""
    world = running()
    job = world.only_job()
    lease = world.leases[job]
    world.wall += 16
    for worker in world.workers.values():
        worker.slots, worker.changed_at = 0, world.wall
    world.settle()
    assert world.state(job) is A
    world.leases[job] = lease
    if not report:
        assert world.commit(job, 1)
    world.report(job, **report)
    return world


def allowed_more() -> PlainCluster:
    world = faulty()
    world.change_spec(limits={"maxAttempts": 2})
    return world


def parked_and_held() -> PlainCluster:
    world = faulty()
    hold(world, token=2)
    return world


DAMAGE = {"source": "0000000000000001.segment", "reason": "SourceCorrupt", "message": "bad", "identity": "id"}
SCENARIOS: dict[Edge, Callable[[], PlainCluster]] = {
    (U, JobEvent.ASSIGN): planned,
    (U, JobEvent.ADOPT): assign_and_die,
    (U, JobEvent.REFUSE): lambda: outside(planned()),
    (P, JobEvent.ADOPT): taken_over,
    (P, JobEvent.SUCCEED): done,
    (P, JobEvent.END_RETRY): failed,
    (P, JobEvent.END_FINAL): failed_for_the_last_time,
    (A, JobEvent.ASSIGN): rested,
    (A, JobEvent.ADOPT): abandoned_and_held,
    (A, JobEvent.SUCCEED): late,
    (A, JobEvent.END_FINAL): lambda: late(outcome="Failed", reason="SourceCorrupt", skipped=[DAMAGE]),
    (A, JobEvent.REFUSE): lambda: outside(abandoned()),
    (F, JobEvent.REOPEN): allowed_more,
    (F, JobEvent.ADOPT): parked_and_held,
}


def test_every_edge_has_a_scenario() -> None:
    assert set(SCENARIOS) == set(TRANSITIONS)


@pytest.mark.parametrize("edge", SCENARIOS, ids=lambda edge: f"{edge[0].value}-{edge[1].value}")
def test_each_edge_is_taken_by_reconcile(edge: Edge, taken: list[Edge]) -> None:
    world = SCENARIOS[edge]()
    job = world.only_job()
    assert world.state(job) is edge[0]
    taken.clear()
    world.reconcile()
    assert edge in taken, f"not taken, but {taken}"
    path = list(itertools.accumulate(taken, lambda state, step: TRANSITIONS[step], initial=edge[0]))
    assert path[:-1] == [state for state, _ in taken], "one edge begins where the last one ended"
    assert world.state(job) is path[-1], "what is written is where the edges lead"


# --- and nothing else ---

NOW = Moment(1_800_000_000.0, 50.0)
TOKEN = 5
LEASES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "live": {},
    "expired": {"silence": 15.0},
    "released": {"holder": ""},
    "another holder": {"holder": "w-2"},
    "smaller token": {"token": TOKEN - 1},
    "larger token": {"token": TOKEN + 1},
    "unreadable report": {"report_error": "outcome: Input should be 'Succeeded'"},
    **{
        f"{outcome} {reason} {token:+}": {"report": {"outcome": outcome, "reason": reason, "token": TOKEN + token}}
        for outcome, reason in (
            ("Succeeded", "Completed"),
            ("Failed", "StoreUnreadable"),
            ("Failed", "SourceCorrupt"),
            ("Skipped", "SourcesChanged"),
        )
        for token in (-1, 0, 1)
    },
}
"""What may be found on the Lease of a job whose newest token is TOKEN."""


def job_in(state: JobState, *, retry: bool) -> CompactionJob:
    """A job in a state, after some attempts (none before the first assignment)."""
    world = planned()
    name = world.only_job()
    assigned_before = state is not U
    attempts = [{"token": TOKEN, "worker": "w-1", "startedAt": "2026-11-21T06:00:00Z", "outcome": "Running"}]
    world.put_status(
        name,
        state=state,
        fencing_token=TOKEN if assigned_before else 0,
        worker="w-1" if state is P else None,
        failures={A: 1, F: 3}.get(state, 0),
        attempts=[{**attempts[0], "outcome": "Running" if state is P else "Failed"}] if assigned_before else [],
    )
    job = world.jobs[name]
    annotations = {ANNOTATION_RETRY: "now"} if retry else {}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


def lease_of(given: dict[str, Any] | None) -> JobLease | None:
    if given is None:
        return None
    report = given.get("report")
    return JobLease(
        OperatorIdentity("job", "uid", "1"),
        holder=given.get("holder", "w-1"),
        token=given.get("token", TOKEN),
        duration=15.0,
        silence=given.get("silence", 0.0),
        report=JobReport.from_object(report) if report else None,
        report_error=given.get("report_error", ""),
    )


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("state", JobState)
def test_whatever_is_found_only_edges_of_the_table_are_taken(state: JobState, retry: bool, taken: list[Edge]) -> None:
    """Every state with every kind of Lease and report, worker, refusal and limit: never an error, never a change of
    state without its edge, and a job that succeeded stays what it is.
    """
    job, seen = job_in(state, retry=retry), 0
    for lease, gone, refusal, limit, released in itertools.product(
        LEASES.values(),
        (None, GoneWorker("it ended"), GoneWorker("it has no Lease", absent_lease="w-1")),
        (None, JobRefusal(JobReason.OTHER_STORE, "not below the root")),
        (1, 2, 9),
        (False, True),
    ):
        taken.clear()
        rules = StepRules(
            max_attempts=limit,
            gone=lambda _, gone=gone: gone,  # type: ignore[misc]
            refuse=lambda _, refusal=refusal: refusal,  # type: ignore[misc]
            released=lambda _, released=released: released,  # type: ignore[misc]
        )
        step = take_step(JobView(job, lease_of(lease)), rules, NOW)
        path = list(itertools.accumulate(taken, lambda _, edge: TRANSITIONS[edge], initial=state))
        assert path[:-1] == [before for before, _ in taken]
        assert step.state is path[-1]
        assert state is not S or (step.status == job.status and not taken)
        seen += 1
    assert seen == len(LEASES) * 36


@pytest.mark.parametrize(
    ("state", "lease", "after"),
    [
        (P, "live", P),
        (P, "expired", A),
        (P, "Succeeded Completed +0", S),
        (P, "Succeeded Completed -1", P),
        (P, "Succeeded Completed +1", P),
        (P, "larger token", P),
        (A, "Succeeded Completed +0", S),
        (A, "Failed StoreUnreadable +0", A),
        (F, "Succeeded Completed +0", F),
        (S, "larger token", S),
        (S, "Failed SourceCorrupt +0", S),
    ],
)
def test_what_a_lease_makes_of_a_job(state: JobState, lease: str, after: JobState) -> None:
    """The outcomes that matter most, spelled out: only the equal token counts, and what ended stays ended."""
    rules = StepRules(max_attempts=3, gone=lambda _: None, refuse=lambda _: None)
    assert take_step(JobView(job_in(state, retry=False), lease_of(LEASES[lease])), rules, NOW).state is after


def test_a_lease_expires_at_its_very_end_and_a_renewal_before_that_counts() -> None:
    """A renewal at the instant of expiry: what is seen at 15.0 s of silence comes too late, a moment earlier not."""
    rules = StepRules(max_attempts=3, gone=lambda _: None, refuse=lambda _: None)
    job, lease = job_in(P, retry=False), lease_of({})
    assert lease is not None
    for silence, after in ((14.999999, P), (15.0, A), (15.000001, A)):
        assert take_step(JobView(job, replace(lease, silence=silence)), rules, NOW).state is after
    assert take_step(JobView(job, replace(lease, silence=0.0)), rules, NOW).state is P, "renewed just in time"
