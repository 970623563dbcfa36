"""Everything one reconcile of a policy reads: a frozen view of the policy, its children, its store, and the
clocks.

The controller takes the picture; nothing here does I/O. Two clocks: `Moment.wall` (epoch seconds) is only written into
status and compared with what this project itself wrote there; `Moment.monotonic` measures silence, pauses and ages of
what this process saw. Remote timestamps are never compared with either (docs/design/leases-and-tokens.md#expiry).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.job.report import JobReport
from compaction.api.job.resource import CompactionJob
from compaction.api.policy.resource import CompactionPolicy
from compaction.core.planning.reading import ScanResult, TargetProblem
from compaction.core.reconcile.allowance import Allowance
from compaction.core.reconcile.memory import Memory

__all__ = [
    "Identity",
    "JobLease",
    "JobView",
    "Moment",
    "PolicySnapshot",
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
class Identity:
    """Which version of which object was seen: the precondition of every write about it."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class JobLease:
    """A job's Lease. `silence`: seconds since this process last saw it change. `holder` is empty when it is not held.

    `report` is the worker's last word, if any; `report_error` says why an unreadable one is.
    """

    identity: Identity
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
    def identity(self) -> Identity:
        """The version of the job that was seen."""
        meta = self.job.metadata
        return Identity(meta.name, meta.uid, meta.resource_version)


@dataclass(frozen=True, slots=True)
class WorkerLease:
    """A worker that announced itself. `owner_uid` is the uid of the policy it was started for; `version` is what it
    says, if it does.
    """

    identity: Identity
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
class PolicySnapshot:
    """The picture. `policy` is None when it does not exist (any more); its children then have to go.

    `stray_leases` are job Leases without a job. `version` is the operator's own. `allowance` is what the policy may
    have of the operator's limits. `held_by` says which older policy compacts its store, or is empty.
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

    @property
    def job_versions(self) -> tuple[str, ...]:
        """Which jobs there are, and as what: resourceVersions are unique among the objects of a kind."""
        return tuple(view.job.metadata.resource_version for view in self.jobs)
