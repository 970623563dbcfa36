"""Which job goes to which worker now.

Order (docs/design/scheduling.md#order-of-assignment): lower level first; inside a level
jobs that have waited too long (oldest first), then never assigned before retried, fewer failures, longer since the
last attempt ended, then age (first in, first out). Inside a level tenants take turns: the one with the fewest jobs
running, then the one served longest ago. A target runs one job at a time.

Invariants (tests/planning):

* Never more assignments than free slots, nor more than `capacity`; no job twice; one job per target.
* Work is conserved: a slot stays free only when no job may take it.
* A constant stream of new jobs cannot keep a retried one waiting for ever (`OVERDUE_SECONDS`).

Cost: one pass over the queue and a heap of targets: O(n + k log n) for n jobs and k assignments.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compaction.api.enums import JobState, WaitReason

OVERDUE_SECONDS = 600.0
"""A job that waits longer goes before all others of its level, oldest first."""


class QueuedJob(NamedTuple):
    """An unfinished job. Times are epoch seconds; `ended_at` is the end of its last attempt, `not_before` its backoff.

    `last_worker` is avoided for a retry when another worker has a slot.
    """

    name: str
    target: str
    tenant: str
    level: int
    state: JobState
    failures: int
    created_at: float
    ended_at: float = 0.0
    not_before: float = 0.0
    last_worker: str = ""


class TenantLoad(NamedTuple):
    """How well a tenant is served: jobs running, and when it last got one (epoch seconds)."""

    running: int = 0
    served_at: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerSlots:
    """A live worker and how many more jobs it takes."""

    name: str
    free: int


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """Give `job` to `worker`."""

    job: str
    worker: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """The assignments, best first; how many jobs wait and for what; when the next backoff ends (epoch seconds)."""

    assignments: tuple[SlotAssignment, ...]
    waiting: Mapping[WaitReason, int]
    ready: int
    next_backoff_end: float | None


class _Rank(NamedTuple):
    """Sort key of a job inside its level; the smallest is served first."""

    punctual: bool
    overdue_since: float
    retried: bool
    failures: int
    ended_at: float
    created_at: float
    name: str
    last_worker: str


_RETRIED: Mapping[JobState, bool] = {JobState.UNASSIGNED: False, JobState.ABANDONED: True}


def assign(
    jobs: Iterable[QueuedJob],
    workers: Iterable[WorkerSlots],
    *,
    capacity: int,
    now: float,
    busy_targets: Collection[str] = frozenset(),
    load: Mapping[str, TenantLoad] | None = None,
) -> Schedule:
    """Assign as many jobs as slots and `capacity` (jobs that may still start) allow. `now` is epoch seconds.

    Jobs that are neither Unassigned nor Abandoned are ignored.
    """
    waiting: Counter[WaitReason] = Counter()
    heads, next_backoff_end = _heads(jobs, busy_targets, waiting, now=now)
    slots = _Slots(workers)
    room = max(0, capacity)
    assignments: list[SlotAssignment] = []
    for level in sorted(heads):
        turns = _Turns(heads[level], load or {})
        while room > len(assignments) and slots.free > 0 and (rank := turns.take()) is not None:
            assignments.append(SlotAssignment(rank.name, slots.take(avoid=rank.last_worker)))
    left = sum(len(targets) for tenants in heads.values() for targets in tenants.values())
    if left:
        reason = WaitReason.CONCURRENCY_LIMIT if len(assignments) >= room else WaitReason.NO_FREE_SLOT
        waiting[reason] += left
    return Schedule(tuple(assignments), waiting, left + len(assignments), next_backoff_end)


_Heads = dict[int, dict[str, list[_Rank]]]


def _heads(
    jobs: Iterable[QueuedJob], busy: Collection[str], waiting: Counter[WaitReason], *, now: float
) -> tuple[_Heads, float | None]:
    """The best job of every idle target, by level and tenant."""
    best: dict[str, tuple[int, _Rank, str]] = {}
    next_end: float | None = None
    behind = 0
    overdue_since = now - OVERDUE_SECONDS
    for job in jobs:
        retried = _RETRIED.get(job.state)
        if retried is None:
            continue
        if job.target in busy:
            behind += 1
            continue
        if job.not_before > now:
            waiting[WaitReason.BACKOFF] += 1
            next_end = job.not_before if next_end is None else min(next_end, job.not_before)
            continue
        since = job.ended_at if retried else job.created_at
        punctual = since > overdue_since
        # Constant while punctual, so that the next fields of the rank decide; among overdue jobs the oldest goes first.
        overdue = 0.0 if punctual else since
        rank = _Rank(punctual, overdue, retried, job.failures, job.ended_at, job.created_at, job.name, job.last_worker)
        entry = (job.level, rank, job.tenant)
        known = best.get(job.target)
        if known is not None:
            behind += 1
        if known is None or entry < known:
            best[job.target] = entry
    if behind:
        waiting[WaitReason.TARGET_BUSY] += behind
    heads: _Heads = {}
    for level, rank, tenant in best.values():
        heads.setdefault(level, {}).setdefault(tenant, []).append(rank)
    return heads, next_end


class _Turns:
    """Tenants of one level taking turns; `take` removes and returns the next job, or None when none is left."""

    def __init__(self, tenants: dict[str, list[_Rank]], load: Mapping[str, TenantLoad]) -> None:
        self._tenants = tenants
        self._heap: list[tuple[int, float, _Rank, str]] = []
        for tenant, ranks in tenants.items():
            heapq.heapify(ranks)
            running, served_at = load.get(tenant, TenantLoad())
            self._heap.append((running, served_at, ranks[0], tenant))
        heapq.heapify(self._heap)

    def take(self) -> _Rank | None:
        if not self._heap:
            return None
        running, served_at, _, tenant = self._heap[0]
        ranks = self._tenants[tenant]
        rank = heapq.heappop(ranks)
        if ranks:
            heapq.heapreplace(self._heap, (running + 1, served_at, ranks[0], tenant))
        else:
            heapq.heappop(self._heap)
        return rank


class _Slots:
    """Free slots; the worker with the most goes first, so that work spreads."""

    def __init__(self, workers: Iterable[WorkerSlots]) -> None:
        self._heap = [(-worker.free, worker.name) for worker in workers if worker.free > 0]
        heapq.heapify(self._heap)
        self.free = -sum(free for free, _ in self._heap)

    def take(self, *, avoid: str) -> str:
        free, name = heapq.heappop(self._heap)
        # The worker of the failed attempt may be what is wrong. Without another one it gets the job all the same.
        if name == avoid and self._heap:
            other = heapq.heappop(self._heap)
            heapq.heappush(self._heap, (free, name))
            free, name = other
        if free + 1 < 0:
            heapq.heappush(self._heap, (free + 1, name))
        self.free -= 1
        return name


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """`spec.workers` and `spec.limits.maxConcurrentJobs`, the part that launching uses."""

    max_workers: int
    slots: int
    max_concurrent_jobs: int


def workers_to_launch(
    limits: WorkerLimits, *, ready: int, in_progress: int, free: int, live: int, launching: int
) -> int:
    """How many more workers to launch.

    `ready` jobs could start at once if there were slots; `in_progress` run; `free` slots are open on `live` workers;
    `launching` workers were started and have not announced themselves. Never more than the jobs (or the limit of
    concurrent jobs) can use.
    """
    usable = min(ready, limits.max_concurrent_jobs - in_progress)
    # Workers on their way count as if they were here: starting takes longer than the next decision.
    missing = usable - free - launching * limits.slots
    wanted = -(-max(0, missing) // max(1, limits.slots))
    return max(0, min(wanted, limits.max_workers - live - launching))


def eviction_order(faulty: Sequence[tuple[str, float, bool]]) -> tuple[str, ...]:
    """Faulty jobs in the order in which a full queue drops them: longest parked first, never one with a live lease.

    Takes (name, finished_at, lease is live).
    """
    return tuple(name for _, name in sorted((ended, name) for name, ended, live in faulty if not live))
