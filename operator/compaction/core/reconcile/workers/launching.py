"""Workers that were launched and have not announced themselves: which of them wait, which have failed, which must go.

A worker that starts is given `LAUNCH_TIMEOUT`, from when nothing holds it back any more. One that waits for room, or in
a queue, waits: another in its place would only stand further back. A queue may take back a worker that had begun: it
still holds its place. One whose image or pod is wrong is replaced at once when the spec has changed, and said
to be stuck before its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compaction.api.enums import WorkerEnding, WorkerTrouble
from compaction.core.reconcile.actions import ForgetWorker, StopWorker
from compaction.core.reconcile.memory import WorkerMemory
from compaction.core.reconcile.observations import PolicySnapshot, WorkerProcess

LAUNCH_TIMEOUT: Final = 300.0
"""A worker that has not announced itself after so many seconds is stopped and counts as failed."""
LAUNCH_UNSEEN: Final = 60.0
"""A launch of which the launcher knows nothing after so many seconds did not happen."""
STUCK_AFTER: Final = 60.0
"""Trouble that lasts longer is said in the policy's conditions: kubelets try again, and short troubles pass."""
STOP_GRACE: Final = 10.0
PATIENT: Final = frozenset({WorkerTrouble.UNSCHEDULABLE, WorkerTrouble.QUEUED})
"""Troubles that end by themselves when there is room."""
_NOBODYS_FAULT: Final = frozenset({WorkerEnding.DISRUPTED, WorkerEnding.DELETED})


@dataclass(slots=True)
class Launching:
    """The workers on their way. `launches` maps them to when they were launched (monotonic); `trouble` is the one that
    has waited longest for something; `failures` are messages, `hopeless` when one of them is of a trouble that lasted.
    """

    launches: dict[str, float]
    stopping: set[str] = field(default_factory=set)
    stops: list[StopWorker] = field(default_factory=list)
    forgets: list[ForgetWorker] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    trouble: WorkerProcess | None = None
    hopeless: bool = False

    @property
    def count(self) -> int:
        """Workers on their way; one that does not end yet takes the place of another."""
        return len(self.launches) + len(self.stopping)


def launching(
    snapshot: PolicySnapshot, launches: Mapping[str, float], *, announced: frozenset[str], leaves: Callable[[str], str]
) -> Launching:
    """The workers of a snapshot that have no Lease. `launches` are those known so far; `announced` had one once;
    `leaves` says why one has to go, if it has.
    """
    now, memory = snapshot.now.monotonic, snapshot.memory.workers
    found = Launching(dict(launches))
    leased = {worker.name for worker in snapshot.workers}
    seen = {process.name for process in snapshot.processes}
    for process in snapshot.processes:
        if process.name in leased:
            continue
        if process.ended:
            found.forgets.append(ForgetWorker(process.name))
            if found.launches.pop(process.name, None) is not None and process.ending not in _NOBODYS_FAULT:
                found.failures.append(f"{process.name} ended before it announced itself: {process.message}")
        elif process.name not in announced or process.trouble in PATIENT:
            _waits(found, process, memory, now, leaves=leaves(process.name))
    for name, since in tuple(found.launches.items()):
        # A launcher lists every few seconds: what it has not shown for a minute was deleted, or never created.
        if name not in seen and now - since > LAUNCH_UNSEEN:
            del found.launches[name]
            found.failures.append(f"nothing was seen of {name} after its launch")
    return found


def _waits(found: Launching, process: WorkerProcess, memory: WorkerMemory, now: float, *, leaves: str) -> None:
    """A worker that runs, or will, and has not announced itself."""
    replaced = bool(leaves) and process.trouble is not None
    if not replaced and (process.starting <= LAUNCH_TIMEOUT or process.trouble in PATIENT):
        found.launches.setdefault(process.name, now)
        if process.trouble is not None and (found.trouble is None or process.age > found.trouble.age):
            found.trouble = process
        return
    found.launches.pop(process.name, None)
    found.stopping.add(process.name)
    if process.name in memory.stopping:
        return
    if replaced:
        reason = f"{process.name} {leaves}"
    else:
        reason = f"{process.name} did not announce itself within {LAUNCH_TIMEOUT:.0f} s"
        reason += f": {process.message}" if process.trouble is not None else ""
        found.failures.append(reason)
        found.hopeless |= process.trouble is not None
    found.stops.append(StopWorker(process.name, None, STOP_GRACE, reason))


def stuck(trouble: WorkerProcess | None) -> str:
    """What a person has to act on, if a worker has been waiting for it for long enough; empty otherwise."""
    if trouble is None or trouble.trouble in PATIENT:
        return ""
    # An operator that is silent was given its time already.
    since = trouble.age if trouble.trouble is WorkerTrouble.OPERATOR_SILENT else trouble.starting
    if since < STUCK_AFTER:
        return ""
    return f"{trouble.name} cannot start ({trouble.trouble}): {trouble.message}"
