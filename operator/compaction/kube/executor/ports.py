"""What the executor writes to: the objects of one policy, and its workers.

Two implementations each: the API server and a launcher (`api.py`, `workers.py`), and the memory of one process
(`local/run`). The order of the steps, and with it what a crash between two of them can do, is the executor's alone.

Every write names the version that it was decided on. A write that finds another version is not made and sets `stale`:
the decision has to be made again from a fresh snapshot. A write either took effect or raised; `ApiUnavailableError`
means that it may have.
"""

from __future__ import annotations

from typing import Protocol

from compaction.api.job.resource import CompactionJobStatus
from compaction.api.policy.resource import CompactionPolicyStatus
from compaction.core.reconcile.actions import (
    Announce,
    AssignJob,
    CreateJob,
    LaunchWorker,
    Premise,
    RaiseShare,
    StopWorker,
)
from compaction.core.reconcile.jobs.claims import Refused
from compaction.core.reconcile.observations import Identity, Moment


class PolicyObjects(Protocol):
    """The policy, its jobs and their Leases."""

    @property
    def stale(self) -> bool:
        """Whether a read or a write met another version than the decision was made from."""
        ...

    async def policy_is_absent(self) -> bool:
        """Whether a fresh read finds no such policy."""
        ...

    async def holds(self, premise: Premise, job: Identity) -> bool:
        """Whether fresh reads confirm what a decision about a job depends on."""
        ...

    def serves(self, worker: str) -> bool:
        """Whether a worker still takes jobs."""
        ...

    async def create_job(self, action: CreateJob) -> bool:
        """Create a job; one of that name stays as it is. False: the object was refused, and would be again."""
        ...

    async def put_lease(self, action: AssignJob, token: int, now: Moment) -> bool | Refused:
        """Create the job's Lease, or take over the one that the decision knows. False: it is another one by now."""
        ...

    async def raise_share(self, action: RaiseShare) -> bool:
        """Write the share of a running attempt on its Lease. False: the Lease has another version, or is gone."""
        ...

    async def write_job_status(self, job: Identity, status: CompactionJobStatus) -> bool:
        """False: the job has another version, or is gone."""
        ...

    async def write_policy_status(self, policy: Identity, status: CompactionPolicyStatus) -> bool:
        """False: the policy has another version, or is gone."""
        ...

    async def delete_job(self, job: Identity) -> None:
        """Delete a job of that version."""
        ...

    async def delete_lease(self, lease: Identity, *, any_version: bool = False) -> None:
        """Delete the Lease of a job or a worker, if it is still that one."""
        ...

    def announce(self, event: Announce) -> None:
        """Publish an Event. Never fails."""
        ...


class PolicyWorkers(Protocol):
    """The workers of the policy."""

    async def launch(self, action: LaunchWorker) -> str:
        """Start a worker; what to announce about it, "" when this process may start none (any more).

        Raises:
            LaunchUncertainError: it may have been started.
            LaunchError: it was not.
        """
        ...

    def stop(self, action: StopWorker) -> None:
        """Begin to stop a worker, whose Lease is deleted already."""
        ...

    async def forget(self, name: str) -> None:
        """Drop the records of a worker that has ended."""
        ...
