"""What a launcher of workers must be able to do. One worker = one uniquely named, create/delete-only thing.

The coordinator decides; a launcher only starts, looks and stops. The commit in the store is the truth about work, a
worker's Lease the truth about its life: an observation is a hint that makes reactions faster, nothing is decided on its
absence (docs/design/spark-applications.md). Every method is idempotent by the worker's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.api.policy.workers import WorkersSpec
from compaction.core.kind import NO_SECRETS, StoreSecrets, StoreVolume
from compaction.kube.launchers.baseline import BASELINE, PodAllowance


class PolicyKey(NamedTuple):
    """Which policy a worker belongs to."""

    namespace: str
    name: str


class WorkerPhase(StrEnum):
    """The phase of a launched worker, as its launcher reports it."""

    PENDING = "Pending"  # accepted, not running yet
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"  # ended by itself with exit code 0
    FAILED = "Failed"  # ended with another code, or by a signal
    LOST = "Lost"  # it is gone and nobody knows how it ended


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a worker that runs in pods needs besides. `owner_uid` is the policy's; `volume` what the store is on, if it
    is on one; `memory` the bytes that the driver pod gets this time, `executor_memory` each executor. `allowance`: what
    the installation allows.
    """

    workers: WorkersSpec
    owner_uid: str
    memory: int
    executor_memory: int
    volume: StoreVolume | None = None
    allowance: PodAllowance = BASELINE


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """Everything needed to start one worker. `master` and `conf` are handed to Spark as they are."""

    name: str
    policy: PolicyKey
    slots: int
    idle_seconds: float
    lease_seconds: int
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pod: PodRequest | None = None
    secrets: StoreSecrets = NO_SECRETS


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """A started worker: its name is the identity, the rest is for people reading logs."""

    name: str
    policy: PolicyKey
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """One worker as the launcher sees it now. Ended workers are reported until `forget` is called for them.

    `trouble` says why one has not begun, `ending` how it ended; `ui` is the address of Spark's UI, where there is one;
    `memory` the bytes that its driver pod has, `executor_memory` those of each executor; `waited` the seconds in which
    it could not begin to start: not submitted yet, in a queue, or without room. `leaving`: it is being deleted, or held
    back; it takes no more jobs.
    """

    name: str
    policy: PolicyKey
    phase: WorkerPhase
    started: datetime
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    trouble: WorkerTrouble | None = None
    ending: WorkerEnding | None = None
    ui: str = ""
    memory: int = 0
    executor_memory: int = 0
    waited: float = 0.0
    leaving: bool = False

    @property
    def ended(self) -> bool:
        """True when the worker will do nothing any more."""
        return self.phase not in (WorkerPhase.PENDING, WorkerPhase.RUNNING)

    @property
    def ref(self) -> WorkerRef:
        """The reference to stop or forget this worker with."""
        return WorkerRef(self.name, self.policy)


class Launcher(Protocol):
    """Implemented for subprocesses (process.py) and for objects on the API server (objects.py)."""

    async def launch(self, request: WorkerRequest) -> WorkerRef:
        """Start a worker; the name must be new. Raises LaunchError naming the cause."""
        ...

    async def observe(self) -> list[WorkerObservation]:
        """Every worker known to this backend, also those started by an earlier coordinator."""
        ...

    async def stop(self, ref: WorkerRef, *, grace: float) -> None:
        """Ask it to end, and make it end after `grace` seconds. Stopping what has ended, or never was, is no error."""
        ...

    async def forget(self, ref: WorkerRef) -> None:
        """Drop the records of an ended worker; its observation was acted upon."""
        ...
