"""What the coordinator remembers about a policy between two reconciles, in parts that one module or room each owns.

Losing it (a restart) loses no work. Times are monotonic seconds unless a field says otherwise; what is None after a
restart is read from the status.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TypeVar

from compaction.api.policy.resource import PlanStatus
from compaction.core.planning.planner import PlannedJob

Key = TypeVar("Key")
Value = TypeVar("Value")


def frozen(mapping: Mapping[Key, Value] | None = None) -> Mapping[Key, Value]:
    """A read-only copy of a mapping."""
    return MappingProxyType(dict(mapping or {}))


@dataclass(frozen=True, slots=True)
class ClaimProblem:
    """A claim that the store refused: the job waits. `terminal`: it is refused for ever."""

    reason: str
    message: str
    since: float
    retry_at: float
    terminal: bool = False


@dataclass(frozen=True, slots=True)
class Unmade:
    """Jobs of the newest plan that do not exist yet; `plan` is its hash. `sought` are names of jobs of an approved plan
    that another coordinator was to create, and that no scan of the store has led to yet.
    """

    plan: str = ""
    jobs: tuple[PlannedJob, ...] = ()
    sought: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Of everything that is missing."""
        return self.sought.union(job.name for job in self.jobs)


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Of `core/reconcile/planning` and `jobs/evictions`: the newest plan, and what it was made from.

    `reading` and `generation` are the scan and the spec that it was made from; `jobs` those (`Snapshot.job_versions`)
    beside which it was made, None when it made some. `pending` are the jobs of a plan that waits for approval whose
    sources no other plan may take. `scheduled_for` is the schedule's anchor (epoch seconds, core/reconcile/timing.py),
    and `evicted` says from when on (epoch seconds) a job of that name may be planned again; both None after a restart.
    """

    reading: int = -1
    jobs: tuple[str, ...] | None = None
    generation: int = -1
    plan: PlanStatus | None = None
    unmade: Unmade = Unmade()
    pending: tuple[PlannedJob, ...] = ()
    scheduled_for: float | None = None
    evicted: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Of `core/reconcile/workers`: launches, and what failed ones teach.

    `launches` maps a worker that has not announced itself to its launch; `announced` are workers that have; `stopping`
    were asked to end and have not yet. The failures are those of `generation` of the spec. `driver_memory` and
    `executor_memory` are bytes, None after a restart.
    """

    launches: Mapping[str, float] = field(default_factory=frozen)
    announced: frozenset[str] = frozenset()
    stopping: frozenset[str] = frozenset()
    generation: int = -1
    failures: int = 0
    error: str = ""
    not_before: float = 0.0
    driver_memory: int | None = None
    executor_memory: int | None = None


@dataclass(frozen=True, slots=True)
class StoreMemory:
    """Of `core/reconcile/store_work`: scans and sweeps.

    Plans rest on scans that began after `look_wanted`, which moves when something new comes into `looks`. `look_due`:
    when the store will have something new although nothing arrives, as the last scan said.
    """

    sense_running: bool = False
    look_wanted: float = -math.inf
    looks: frozenset[str] = frozenset()
    look_due: float | None = None
    sweep_running: bool = False
    sweep_due: float | None = None


@dataclass(frozen=True, slots=True)
class HeldShare:
    """The bytes per second of an attempt, and the seconds of its lease. `until`: when it has certainly stopped, where
    it ended without a report (monotonic seconds); None while it runs.
    """

    bytes_per_second: int
    duration: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class ShareMemory:
    """Of `core/reconcile/workers/shares`. `held`: by job and token. `known_at`: from when on it names every attempt
    that may still write (monotonic seconds); None when the term begins.
    """

    held: Mapping[tuple[str, int], HeldShare] = field(default_factory=frozen)
    known_at: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered.

    `finished` maps a target to the end of its last job. `waits` and `reasons`: since when each waiting job waits, and
    since when something waits for a reason (wall clock); None after a restart.
    """

    planning: PlanMemory = PlanMemory()
    workers: WorkerMemory = field(default_factory=WorkerMemory)
    store: StoreMemory = StoreMemory()
    shares: ShareMemory = field(default_factory=ShareMemory)
    finished: Mapping[str, float] = field(default_factory=frozen)
    waits: Mapping[str, datetime] | None = None
    reasons: Mapping[str, datetime] | None = None
    claims: Mapping[str, ClaimProblem] = field(default_factory=frozen)
    status_written_at: float = -1e9
