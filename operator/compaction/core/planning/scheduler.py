"""Jobs to workers, and shares of one limit to all that want some of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from compaction.api.enums import JobState, WaitReason

# Shares of `limits.bytesPerSecond`: who may start, and how fast it may go.
#
# Invariants (tests/core/planning/test_sharing.py): what is granted never exceeds the limit, unless the limit was
# lowered under running jobs; when nothing runs, a job may start; while a job could run, less than a tenth of the limit
# is granted to none, and while jobs run and no other could start, less than a twentieth. A share is never cut: those
# that start later divide what is left, however much that is.

_WORTH: Final = 10
"""A job starts with less than a fair share when at least this part of the limit is left: else it would lie idle."""

_WORTH_RAISING: Final = 20
"""Running jobs get what is left when it is at least this part of the limit: each raise is a write for each of them."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The limit of a policy, and what its running jobs have of it (bytes per second).

    `share`: of each job if all that could run began now. `coming`: how many could start beside those that run.
    `ceiling`: what they may have together for now, where others still hold what is this policy's; None is the limit.
    """

    limit: int
    granted: int
    share: int
    coming: int = 1
    ceiling: int | None = None

    @property
    def left(self) -> int:
        """The bytes per second that no job is granted."""
        limit = self.limit if self.ceiling is None else min(self.limit, self.ceiling)
        return max(0, limit - self.granted)

    @property
    def room(self) -> int:
        """The number of further jobs that may start."""
        whole = self.left // self.share
        # What others still hold does not lie idle: a job that began with a little of it would keep that to its end.
        lies_idle = self.limit - self.granted == self.left
        # Of a limit of nothing (a policy that had no job when the operator's limit was divided) a tenth is nothing.
        return whole or int(lies_idle and self.left * _WORTH >= max(1, self.limit))

    @property
    def each(self) -> int:
        """The share of each of the next jobs: all that is left, divided between those that could start; at least 1."""
        return max(1, self.left // max(1, min(self.room, self.coming)))

    def beside(self, others: int) -> Rates:
        """The same where so many bytes per second more are granted, to what is no job of these."""
        return replace(self, granted=self.granted + others)

    def after(self, started: int) -> Rates:
        """The same when so many more jobs have got what is theirs."""
        return replace(self, granted=self.granted + self.each * started)


def share_of(limit: int, *, jobs: int) -> int:
    """The share of each of so many jobs that could run at once: at least 1."""
    return max(1, limit // max(1, jobs))


def worth_raising(left: int, limit: int) -> bool:
    """Return whether what is left of a limit is enough to raise the shares of the jobs that run."""
    return left * _WORTH_RAISING >= max(1, limit)


def topped_up(granted: Sequence[int], left: int) -> tuple[int, ...]:
    """The shares of running jobs when `left` is divided between them: the smallest are raised first, none is cut."""
    level, lowest = 0, sorted(granted)
    whole = left
    for count, share in enumerate(lowest, 1):
        whole += share
        level = whole // count
        if count == len(lowest) or level <= lowest[count]:
            break
    return tuple(max(share, level) for share in granted)


# One limit for many: what each of those that want something may have of it. Max-min fair, in whole units.
#
# Each member gets what it wants, or as much as the largest share of those that want more (water filling); what cannot
# be divided goes to those that stand first in line. Invariants (tests/core/planning/test_sharing.py):
#
# * Never above the limit: neither the shares together, nor what is held and may be taken besides.
# * No member gets nothing while another gets more than one, and none gets more than it wants.
# * Work is conserved: something is left only when everybody has what they want.
# * A member above its share releases no more than others lack.
#
# Source: D. Bertsekas, R. Gallager, Data Networks (1992), §6.5.2: max-min fair flow control.


@dataclass(frozen=True, slots=True)
class SharedDemand:
    """Units that a member wants in all (including what it holds), and holds now."""

    wants: int
    holds: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """`share` is theirs in fairness. `may_hold` is what they may grow to now, while others hold what is theirs: never
    more than the share, never more than is free. `may_keep` is what a member need not release to others that have less;
    it is not smaller than `may_hold`.
    """

    share: int
    may_hold: int
    may_keep: int


def shares(limit: int, wants: Sequence[int]) -> tuple[int, ...]:
    """The max-min fair share of each, in line order. O(n log n) for n claims, whatever the limit is."""
    left, behind = max(0, limit), len(wants)
    level = 0
    for want in sorted(max(0, want) for want in wants):
        if want * behind > left:
            level = left // behind
            break
        left -= want
        behind -= 1
        level = want
    given = [min(max(0, want), level) for want in wants]
    spare = limit - sum(given)
    for place, want in enumerate(wants):
        if spare <= 0:
            break
        if want > given[place]:
            given[place] += 1
            spare -= 1
    return tuple(given)


def share_out(limit: int, line: Sequence[SharedDemand]) -> tuple[Grant, ...]:
    """Divide the limit into one grant for each demand, in line order: shares; what is free to those that stand first;
    what has to be released by those that have too much, the last in line first.
    """
    holds = [claim.holds for claim in line]
    fair = shares(limit, [claim.wants for claim in line])
    held = sum(holds)
    may_hold = [min(pair) for pair in zip(fair, holds, strict=True)]
    lacking = sum(fair) - sum(may_hold)
    free = max(0, limit - held)
    for place in range(len(line)) if lacking else ():
        if free <= 0:
            break
        more = min(free, fair[place] - may_hold[place])
        free -= more
        may_hold[place] += more
    needed = max(0, held + lacking - limit)
    may_keep = [max(pair) for pair in zip(holds, may_hold, strict=True)]
    for place in reversed(range(len(line))):
        if needed <= 0:
            break
        back = min(needed, max(0, holds[place] - fair[place]))
        may_keep[place] -= back
        needed -= back
    return tuple(map(_grant, fair, may_hold, may_keep))


@lru_cache(maxsize=4096)
def _grant(share: int, may_hold: int, may_keep: int) -> Grant:
    """One object for all that may have the same: of a thousand in line most may have nothing."""
    return Grant(share, may_hold, may_keep)


# The assignment of jobs to workers at this moment.
#
# Order (docs/design/scheduling.md#order-of-assignment): lower level first; inside a level jobs that have waited too
# long (oldest first), then never assigned before retried, fewer failures, longer since the last attempt ended, then
# age (first in, first out). Inside a level tenants take turns: the one with the fewest jobs running, then the one
# served longest ago. A target runs one job at a time.
#
# Invariants (tests/core/planning):
#
# * Never more assignments than free slots, nor more than `capacity`; no job twice; one job per target.
# * Work is conserved: a slot stays free only when no job may take it.
# * A constant stream of new jobs cannot keep a retried one waiting for ever (`OVERDUE_SECONDS`).
#
# Cost: one pass over the queue and a heap of targets: O(n + k log n) for n jobs and k assignments.

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
    """The service that a tenant gets: jobs running, and when it last got one (epoch seconds)."""

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
    """Return the number of further workers to launch.

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
