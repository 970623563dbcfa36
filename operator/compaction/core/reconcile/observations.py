"""The picture that one reconcile of a policy reads: a frozen view, the memory of the coordinator, the operator's
allowance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

from compaction.api.base import format_timestamp, to_timestamp
from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.job.job import CompactionJob
from compaction.api.job.job_status import JobReport
from compaction.api.policy.configuration import NO_DEFAULTS, PolicyDefaults
from compaction.api.policy.policy import CompactionPolicy, PlanStatus
from compaction.api.policy.policy_status import PolicyPreview
from compaction.api.requests import RequestStatus, RunNowStatus
from compaction.core.planning.debt import ScanResult, TargetProblem
from compaction.core.planning.planner import PlannedJob
from compaction.core.planning.scheduler import Grant

# The coordinator's memory of a policy between two reconciles, in parts that one module or room each owns.
#
# Losing it (a restart) loses no work. Times are monotonic seconds unless a field says otherwise; what is None after a
# restart is read from the status.

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

    `reading` and `generation` are the scan and the spec that it was made from; `skipped` is a scan for its figures
    alone, from which none is made; `on_hold`: it was made while the operator was on hold, and has no jobs. `jobs` are
    those (`Snapshot.job_versions`) beside which it was made, None when it made some. `pending` are the jobs of a plan
    that waits for approval whose sources no other plan may take. `scheduled_for` is the schedule's anchor (epoch
    seconds, core/reconcile/timing.py), and `evicted` says from when on (epoch seconds) a job of that name may be
    planned again; both None after a restart.
    """

    reading: int = -1
    skipped: int = -1
    on_hold: bool = False
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
    when the store will have something new although nothing arrives, as the last scan said. `preview_running`: a
    preview is scanned for.
    """

    sense_running: bool = False
    look_wanted: float = -math.inf
    looks: frozenset[str] = frozenset()
    look_due: float | None = None
    preview_running: bool = False
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
class RequestMemory:
    """Of `core/reconcile/requests` and `preview`: the marks of the requests that were answered last, and the
    answers.
    """

    run_now_mark: str = ""
    scan_mark: str = ""
    run_now: RunNowStatus | None = None
    scan: RequestStatus | None = None
    preview_mark: str = ""
    preview: PolicyPreview | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The state that a reconcile remembers for the next one.

    `finished` maps a target to the end of its last job. `waits` and `reasons`: since when each waiting job waits, and
    since when something waits for a reason (wall clock); None after a restart, and so are `requests`.
    """

    planning: PlanMemory = PlanMemory()
    workers: WorkerMemory = field(default_factory=WorkerMemory)
    store: StoreMemory = StoreMemory()
    shares: ShareMemory = field(default_factory=ShareMemory)
    finished: Mapping[str, float] = field(default_factory=frozen)
    waits: Mapping[str, datetime] | None = None
    reasons: Mapping[str, datetime] | None = None
    claims: Mapping[str, ClaimProblem] = field(default_factory=frozen)
    requests: RequestMemory | None = None
    status_written_at: float = -1e9


# The limits of one operator over all its policies, what a policy demands of them, and what it is allowed.
#
# A policy's reconcile sees its allowance and says its demand; `core/reconcile/shared_limits.py` makes one of the
# other.


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """Limits over all policies together; None is no limit. `bytes_per_second` is what all rewrites read and write."""

    max_workers: int | None = None
    bytes_per_second: int | None = None

    @property
    def any(self) -> bool:
        """True when there is anything to share out."""
        return self.max_workers is not None or self.bytes_per_second is not None


NO_LIMITS = OperatorLimits()


@dataclass(frozen=True, slots=True)
class LimitDemand:
    """The demand of a policy: what it could use now, running jobs included, and what it has.

    `bytes_per_second` None is as much as there is; `granted` is what its running jobs were promised.
    """

    workers: int = 0
    holds: int = 0
    bytes_per_second: int | None = 0
    granted: int = 0

    @property
    def wants_work(self) -> bool:
        """True when the policy has jobs that run or could."""
        return self.workers > 0


NO_DEMAND = LimitDemand()


@dataclass(frozen=True, slots=True)
class Allowance:
    """The part of the operator's limits that a policy may have; a grant is None where there is no limit."""

    limits: OperatorLimits = NO_LIMITS
    workers: Grant | None = None
    bytes: Grant | None = None

    def workers_within(self, own: int) -> int:
        """Return the number of workers that may run, where the policy itself allows `own`."""
        return own if self.workers is None else min(own, self.workers.may_hold)

    def surplus(self, holds: int) -> int:
        """Return the number of workers, of `holds`, that have to be released."""
        return 0 if self.workers is None else max(0, holds - self.workers.may_keep)


NO_ALLOWANCE = Allowance()


# Everything one reconcile of a policy reads: a frozen view of the policy, its children, its store, and the clocks.
#
# The controller takes the picture; nothing here does I/O. Two clocks: `Moment.wall` (epoch seconds) is only written
# into status and compared with what this project itself wrote there; `Moment.monotonic` measures silence, pauses and
# ages of what this process saw. Remote timestamps are never compared with either
# (docs/design/leases-and-tokens.md#expiry).

__all__ = [
    "Hold",
    "JobLease",
    "JobView",
    "Moment",
    "OperatorIdentity",
    "PolicySnapshot",
    "PreviewScans",
    "ScanResult",
    "TargetProblem",
    "WorkerLease",
    "WorkerProcess",
]


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on both clocks (seconds)."""

    wall: float
    monotonic: float

    @property
    def time(self) -> datetime:
        """The wall clock as a datetime in UTC."""
        return datetime.fromtimestamp(self.wall, tz=UTC)


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """The object and the version of it that was seen: the precondition of every write about it."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class JobLease:
    """A job's Lease. `silence`: seconds since this process last saw it change. `holder` is empty when it is not held.

    `report` is the worker's last word, if any; `report_error` says why an unreadable one is.
    """

    identity: OperatorIdentity
    holder: str
    token: int
    duration: float
    silence: float
    progress: int | None = None
    bytes_per_second: int | None = None
    report: JobReport | None = None
    report_error: str = ""

    @property
    def is_live(self) -> bool:
        """True while the holder renews in time."""
        return bool(self.holder) and self.silence < self.duration


@dataclass(frozen=True, slots=True)
class JobView:
    """A job and its Lease."""

    job: CompactionJob
    lease: JobLease | None = None

    @property
    def name(self) -> str:
        """The job's name, unique in its namespace."""
        return self.job.metadata.name

    @property
    def identity(self) -> OperatorIdentity:
        """The version of the job that was seen."""
        meta = self.job.metadata
        return OperatorIdentity(meta.name, meta.uid, meta.resource_version)


@dataclass(frozen=True, slots=True)
class WorkerLease:
    """A worker that announced itself. `owner_uid` is the uid of the policy it was started for; `version` is what it
    says, if it does.
    """

    identity: OperatorIdentity
    slots: int
    duration: float
    silence: float
    owner_uid: str
    stopping: bool = False
    version: str = ""

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.identity.name

    @property
    def is_live(self) -> bool:
        """True while the worker renews in time."""
        return self.silence < self.duration


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker as its launcher sees it: a hint that is faster than leases. `age` is seconds since its start.

    `trouble` says why one has not begun, `ending` how it ended, as its launcher reports it; `memory` is what its
    driver has (bytes), `executor_memory` what each executor has, `ui` the address of Spark's web page, if there is one.
    `waited` are the seconds of its age in which it could not begin to start; one that is `leaving` is being deleted or
    held back, and takes no more jobs.
    """

    name: str
    ended: bool
    age: float
    message: str = ""
    trouble: WorkerTrouble | None = None
    ending: WorkerEnding | None = None
    memory: int = 0
    executor_memory: int = 0
    ui: str = ""
    waited: float = 0.0
    leaving: bool = False

    @property
    def starting(self) -> float:
        """Seconds that it has had to start."""
        return max(0.0, self.age - self.waited)


@dataclass(frozen=True, slots=True)
class Hold:
    """The operator is on hold: nothing is planned, started or deleted, whatever policies and catalogs say. `since`: as
    the Lease of the hold says it. `drain`: what runs is stopped.
    """

    reason: str
    by: str = ""
    since: datetime | None = None
    drain: bool = False

    @property
    def said(self) -> str:
        """The hold in words, for a status."""
        since = f" since {format_timestamp(to_timestamp(self.since))}" if self.since is not None else ""
        by = f" by {self.by}" if self.by else ""
        return f"the operator is on hold{since}{by}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SinkView:
    """The sink as one object sees it. `delivered`: number of the last of its events that was taken, in this term.
    `patience`: seconds for which finished jobs stay for their events.
    """

    delivered: int = 0
    patience: float = 3600.0


@dataclass(frozen=True, slots=True)
class PreviewScans:
    """What two specs find in their store at the same time: that in force (`uid` and `generation` of the policy say
    which one it was) and the proposed one of the request with this mark. They are one scan where nothing that a scan
    depends on differs.
    """

    mark: str
    uid: str
    generation: int
    in_force: ScanResult
    proposed: ScanResult


@dataclass(frozen=True, slots=True)
class PolicySnapshot:
    """The picture. `policy` is None when it does not exist (any more); its children then have to go.

    `stray_leases` are job Leases without a job. `version` is the operator's own. `allowance` is what the policy may
    have of the operator's limits. `held_by` says which older policy compacts its store, or is empty; `hold` is that of
    the operator. `defaults` are those of the operator's configuration, `defaulted` is what they add to the spec on the
    API server; `sink` is what is known of the sink. `preview` is what was scanned for a preview; `proposed_held_by` is
    `held_by` with its spec.
    """

    namespace: str
    name: str
    now: Moment
    policy: CompactionPolicy | None
    jobs: tuple[JobView, ...] = ()
    stray_leases: tuple[JobLease, ...] = ()
    workers: tuple[WorkerLease, ...] = ()
    processes: tuple[WorkerProcess, ...] = ()
    reading: ScanResult | None = None
    memory: Memory = field(default_factory=Memory)
    version: str = ""
    allowance: Allowance = field(default_factory=Allowance)
    held_by: str = ""
    hold: Hold | None = None
    defaults: PolicyDefaults = NO_DEFAULTS
    defaulted: Mapping[str, Any] = field(default_factory=frozen)
    sink: SinkView | None = None
    preview: PreviewScans | None = None
    proposed_held_by: str = ""

    @property
    def job_versions(self) -> tuple[str, ...]:
        """The resourceVersions of all jobs, which say which jobs there are, and as what: they are unique among the
        objects of a kind.
        """
        return tuple(view.job.metadata.resource_version for view in self.jobs)
