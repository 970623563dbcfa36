"""The actions that a reconcile decides on. Plain data; `kube/executor/executor.py` carries it out in the order of
`Decision`.

Every write names the version it was decided on (`Identity`): when the world has moved on, the write fails and the
decision is made again from a fresh picture. So two coordinators, or one that crashed between two steps, can do no
harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from compaction.api.job.job import CompactionJobSpec, CompactionJobStatus
from compaction.api.job.job_status import AttemptStatus
from compaction.api.policy.policy import CompactionPolicySpec, CompactionPolicyStatus
from compaction.core.planning.debt import HeldJob
from compaction.core.reconcile.observations import NO_DEMAND, LimitDemand, Memory, OperatorIdentity, frozen


@dataclass(frozen=True, slots=True)
class Premise:
    """The part of a decision that depends on the silence of a cache that may lag: fresh reads must confirm it before
    anything is written. `absent` Leases do not exist; `unchanged` ones still have this version (no renewal, no report).
    """

    absent: tuple[str, ...] = ()
    unchanged: tuple[OperatorIdentity, ...] = ()


NO_PREMISE: Final = Premise()


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Write a job's status and then (when `lease` is given) delete its Lease, if the premise holds.

    `ended`: the attempt that ends with this write; None for a write that ends none. `retire`: close the job in the
    fence of its `target`, too.
    """

    job: OperatorIdentity
    status: CompactionJobStatus | None
    lease: OperatorIdentity | None = None
    premise: Premise = NO_PREMISE
    target: str = ""
    retire: bool = False
    ended: AttemptStatus | None = None


@dataclass(frozen=True, slots=True)
class AssignJob:
    """Give a job to a worker: token, claim in the store, Lease, status (in this order; docs/control-plane.md).

    `spec` is what is claimed; `status` is the job's status before the assignment; `lease` the Lease to take over, if
    one exists; `bytes_per_second` the job's share of the policy's limit, if it has one.
    """

    job: OperatorIdentity
    worker: str
    spec: CompactionJobSpec
    status: CompactionJobStatus
    generation: int
    lease: OperatorIdentity | None
    lease_token: int
    duration: int
    premise: Premise = NO_PREMISE
    bytes_per_second: int | None = None


@dataclass(frozen=True, slots=True)
class RaiseShare:
    """Let a running attempt read and write more: its worker finds the share on the job's Lease at its next renewal."""

    lease: OperatorIdentity
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class CreateJob:
    """Create a planned job (AlreadyExists is success: names are made of everything a job consists of). `plan` is the
    hash of the plan it is part of.
    """

    name: str
    spec: CompactionJobSpec
    plan: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Fence the job off in its target (no attempt of it commits any more), then delete it and its Lease."""

    job: OperatorIdentity
    target: str
    reason: str
    lease: OperatorIdentity | None = None


@dataclass(frozen=True, slots=True)
class DeleteLease:
    """Delete a Lease: of a worker that must stop, or of no job."""

    lease: OperatorIdentity


@dataclass(frozen=True, slots=True)
class LaunchWorker:
    """Start a worker under a new name. `memory`: bytes of its driver, `executor_memory` of each executor, where
    they have pods.
    """

    name: str
    memory: int = 0
    executor_memory: int = 0


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Make a worker end: its Lease goes first, so that it gets no more jobs and aborts by itself."""

    name: str
    lease: OperatorIdentity | None
    grace: float
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    """Drop the launcher's records of a worker that has ended."""

    name: str


class StoreTask(StrEnum):
    """Work on the store that runs in a thread."""

    SENSE = "sense"
    SWEEP = "sweep"
    PREVIEW = "preview"


@dataclass(frozen=True, slots=True)
class RunStoreTask:
    """Start a scan of the store, a sweep of it, or the scans of a preview: with the spec in force and with `proposed`,
    of the request with that `mark`; they change nothing.

    For a sweep, `active` are the attempts (job, token) whose unfinished files must stay. For a scan, `quarantined` are
    the sources by target as this very decision knows them (the status is written later), `busy` the targets a job is
    working on, `jobs` and `released` as in `storage.adapter.SenseRequest`.
    """

    task: StoreTask
    active: frozenset[tuple[str, int]] = frozenset()
    quarantined: Mapping[str, frozenset[str]] = field(default_factory=frozen)
    busy: frozenset[str] = frozenset()
    jobs: Mapping[str, HeldJob] = field(default_factory=frozen)
    released: frozenset[tuple[str, str]] = frozenset()
    proposed: CompactionPolicySpec | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Announce:
    """An Event, on the policy or on one of its jobs."""

    reason: str
    message: str
    warning: bool = False
    job: OperatorIdentity | None = None


@dataclass(frozen=True, slots=True)
class WritePolicyStatus:
    """Write the policy's status, and when that is done announce what it says for the first time."""

    policy: OperatorIdentity
    status: CompactionPolicyStatus
    events: tuple[Announce, ...] = ()


@dataclass(frozen=True, slots=True)
class Rest:
    """Deciding again decides nothing until `until`, as long as nothing that the decision depends on changes, and each
    `look` at the store, the next one due at `look_at`, finds what the last one found. Times are monotonic seconds.

    `interval` is the policy's; `waits_since`: since when it waits for a worker that it cannot be given (None: it does
    not). See `store_work.pause`.
    """

    look: RunStoreTask
    look_at: float
    until: float
    interval: float
    waits_since: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One reconcile's outcome. Carried out in the order of the fields; `memory` replaces the coordinator's memory.

    `policy_absent`: everything depends on the policy's absence, which a fresh read must confirm first. `demand`: what
    the policy has and could use of the operator's limits when this has been carried out. `rest` is None when deciding
    again may decide something.
    """

    memory: Memory
    policy_absent: bool = False
    end_attempts: tuple[EndAttempt, ...] = ()
    stop_workers: tuple[StopWorker, ...] = ()
    forget_workers: tuple[ForgetWorker, ...] = ()
    delete_leases: tuple[DeleteLease, ...] = ()
    delete_jobs: tuple[DeleteJob, ...] = ()
    assignments: tuple[AssignJob, ...] = ()
    raises: tuple[RaiseShare, ...] = ()
    create_jobs: tuple[CreateJob, ...] = ()
    launches: tuple[LaunchWorker, ...] = ()
    store_tasks: tuple[RunStoreTask, ...] = ()
    policy_status: WritePolicyStatus | None = None
    events: tuple[Announce, ...] = ()
    requeue_after: float | None = None
    demand: LimitDemand = NO_DEMAND
    rest: Rest | None = None

    @property
    def acts(self) -> bool:
        """True when carrying this out changes what the next reconcile sees."""
        return bool(
            self.end_attempts
            or self.stop_workers
            or self.forget_workers
            or self.delete_leases
            or self.delete_jobs
            or self.assignments
            or self.raises
            or self.create_jobs
            or self.launches
            or self.policy_status
        )
