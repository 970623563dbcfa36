"""Planner and scheduler: a million segments planned, a hundred thousand queued jobs assigned, and how the cost grows.

The rivals are what operators without a queue of their own do: one object at a time, each looking at all the others (a
reconcile per log that searches all jobs; a slot at a time given to the best of the whole queue).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.harness import Curve, Fact, Race, Side, Workspace, most_seconds, sample
from compaction.api.enums import JobState
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.core.planning.planner import JobInventory, Plan, PlanLimits, Planner, PlanTrigger
from compaction.core.planning.scheduler import QueuedJob, Schedule, WorkerSlots, assign

SEGMENTS_PER_LOG = 100
GROUP = 8
NOW = 1_700_000_000.0
LIMITS = PlanLimits(max_bytes_per_job=1 << 30, max_jobs_queued=1 << 30)


def candidates(segments: int) -> list[Candidate]:
    """Logs of 100 segments, every one of them in a group of up to 8."""
    return [_candidate(number) for number in range(max(1, segments // SEGMENTS_PER_LOG))]


def _candidate(number: int) -> Candidate:
    names = [f"{item:016d}.segment" for item in range(1, SEGMENTS_PER_LOG + 1)]
    groups = tuple(
        GroupCandidate(
            sources=tuple(names[at : at + GROUP]),
            identities=tuple(
                f"66305:{number}{at}:5242880:1700000000123456789" for at in range(at, at + len(names[at : at + GROUP]))
            ),
            copy_bytes=10 << 20,
            gain_bytes=30 << 20,
        )
        for at in range(0, SEGMENTS_PER_LOG, GROUP)
    )
    return Candidate(
        target=f"/data/tenant-{number % 100:02d}/log-{number:06d}",
        tenant=f"tenant-{number % 100:02d}",
        base_version=str(SEGMENTS_PER_LOG * 4096),
        groups=groups,
        obsolete=(),
        debt_bytes=30 << 20,
        debt_sources=SEGMENTS_PER_LOG,
        sensed_at=1.0,
    )


def planner() -> Planner:
    """For a policy whose thresholds let everything through."""
    return Planner(
        policy_name="logs",
        owner_uid="2f5dcd5e-0000-4000-8000-000000000000",
        limits=LIMITS,
        trigger=PlanTrigger(),
    )


def plan_all(segments: int) -> Callable[[], Plan]:
    """One plan over everything."""
    offered = candidates(segments)
    return lambda: planner().plan(offered, {}, JobInventory(), now=NOW)


def plan_one_by_one(segments: int) -> Callable[[], object]:
    """A plan per log, each searching the list of all jobs made so far."""
    offered = candidates(segments)

    def run() -> list[str]:
        jobs: list[str] = []
        for candidate in offered:
            made = planner().plan([candidate], {}, JobInventory(names=frozenset(jobs)), now=NOW).jobs
            jobs += [job.name for job in made]
        return jobs

    return run


def queue(jobs: int) -> list[QueuedJob]:
    """Jobs of 100 tenants, one per log, a tenth of them retried."""
    return [
        QueuedJob(
            name=f"logs-{number * 2654435761 % 2**32:08x}-{number}",
            target=f"/data/tenant-{number % 100:02d}/log-{number:06d}",
            tenant=f"tenant-{number % 100:02d}",
            level=number % 3,
            state=JobState.ABANDONED if number % 10 == 0 else JobState.UNASSIGNED,
            failures=int(number % 10 == 0),
            created_at=NOW - 500 + number * 31 % 499,
            ended_at=NOW - 100 if number % 10 == 0 else 0.0,
        )
        for number in range(jobs)
    ]


def workers(jobs: int) -> list[WorkerSlots]:
    """Enough slots for all, 64 to a worker."""
    return [WorkerSlots(f"w-{number}", 64) for number in range(jobs // 64 + 1)]


def assign_all(jobs: int) -> Callable[[], Schedule]:
    """Every job gets a slot in one run."""
    waiting, slots = queue(jobs), workers(jobs)
    return lambda: assign(waiting, slots, capacity=jobs, now=NOW)


def assign_slot_by_slot(jobs: int) -> Callable[[], object]:
    """The best job of the whole queue for each slot in turn."""
    waiting, slots = queue(jobs), workers(jobs)

    def run() -> dict[str, str]:
        given: dict[str, str] = {}
        running: dict[str, int] = {}
        left = list(waiting)
        for worker in slots:
            for _ in range(worker.free):
                if not left:
                    return given
                best = min(left, key=lambda job: (job.level, running.get(job.tenant, 0), job.failures, job.created_at))
                left.remove(best)
                given[best.name] = worker.name
                running[best.tenant] = running.get(best.tenant, 0) + 1
        return given

    return run


def measure(workspace: Workspace) -> Iterator[Race | Curve | Fact]:
    """See the module."""
    segments, jobs = workspace.pick(1_000_000, 2_000), workspace.pick(3_000, 500)
    yield Race(
        f"plan {segments:,} segments",
        "segments",
        segments,
        Side("one plan", plan_all(segments)),
        Side("a plan per log", plan_one_by_one(segments)),
        target=most_seconds(2.0),
        rounds=3,
    )
    yield Race(
        f"assign {jobs:,} queued jobs",
        "jobs",
        jobs,
        Side("lanes and heaps", assign_all(jobs)),
        Side("slot by slot", assign_slot_by_slot(jobs)),
        rounds=3,
    )
    many = workspace.pick(100_000, 500)
    rate = many / min(sample(assign_all(many)).wall for _ in range(3))
    yield Fact(f"assign {many:,} queued jobs", f"{rate:,.0f} jobs/s", ">= 20,000 jobs/s", met=rate >= 20_000)
    yield Curve(
        "planning",
        "segments",
        workspace.pick((10_000, 30_000, 100_000, 300_000, 1_000_000), (1_000, 4_000)),
        plan_all,
        "a plan per log",
        plan_one_by_one,
        workspace.pick((10_000, 30_000, 100_000, 300_000), (1_000, 4_000)),
        most_exponent=1.15,
    )
    yield Curve(
        "scheduling",
        "jobs",
        workspace.pick((10_000, 30_000, 100_000, 300_000, 1_000_000), (1_000, 4_000)),
        assign_all,
        "slot by slot",
        assign_slot_by_slot,
        workspace.pick((1_000, 3_000), (100, 400)),
        most_exponent=1.15,
    )
