"""The workers of a policy one by one, for its status: who is there, what it waits for, where its web page is."""

from __future__ import annotations

from compaction.api.enums import WorkerState
from compaction.api.policy.status import MAX_WORKER_STATUSES, WorkerStatus
from compaction.core.reconcile.observations import PolicySnapshot, WorkerProcess


def statuses(snapshot: PolicySnapshot) -> tuple[WorkerStatus, ...]:
    """Workers by name; those that have ended are left out."""
    leases = {worker.name: worker for worker in snapshot.workers if worker.is_live}
    processes = {process.name: process for process in snapshot.processes if not process.ended}
    rows = [_row(name, name in leases, processes.get(name)) for name in sorted(leases.keys() | processes.keys())]
    return tuple(rows[:MAX_WORKER_STATUSES])


def _row(name: str, announced: bool, process: WorkerProcess | None) -> WorkerStatus:
    if announced or process is None:
        return WorkerStatus(name=name, state=WorkerState.READY, ui=process.ui if process is not None else "")
    if process.trouble is not None:
        return WorkerStatus(name=name, state=WorkerState.PENDING, reason=process.trouble.value, message=process.message)
    return WorkerStatus(name=name, state=WorkerState.STARTING, ui=process.ui)
