"""How much memory the next worker's pods get: what the policy says, or more after one was killed for using more than it
had.

It is doubled from what that pod had, so the same death seen twice raises it once; never beyond maxMemory. Drivers and
executors learn apart. Kept in status, so that a restart does not learn them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from compaction.api.enums import WorkerEnding
from compaction.api.policy.pods import GrowingPod
from compaction.api.policy.resource import CompactionPolicy
from compaction.api.text.formatting import format_bytes
from compaction.core.reconcile.actions import Announce
from compaction.core.reconcile.memory import WorkerMemory
from compaction.core.reconcile.observations import PolicySnapshot

FACTOR = 2


@dataclass(frozen=True, slots=True)
class Raised:
    """Bytes for the status: only what is more than the policy says."""

    driver: int | None
    executor: int | None


def learned(snapshot: PolicySnapshot, policy: CompactionPolicy, memory: WorkerMemory) -> WorkerMemory:
    """The memory with the bytes that the next driver and executors get."""
    workers, status = policy.spec.workers, policy.status
    ended = [process for process in snapshot.processes if process.ended]
    drivers = (one.memory for one in ended if one.ending is WorkerEnding.OUT_OF_MEMORY)
    executors = (one.executor_memory for one in ended if one.ending is WorkerEnding.EXECUTORS_OUT_OF_MEMORY)
    return replace(
        memory,
        driver_memory=_next(workers.driver, memory.driver_memory or status.driver_memory_bytes, drivers),
        executor_memory=_next(workers.executor, memory.executor_memory or status.executor_memory_bytes, executors),
    )


def _next(spec: GrowingPod, before: int | None, killed: Iterable[int]) -> int:
    least, most = int(spec.memory), max(int(spec.memory), int(spec.max_memory))
    return min(most, max(least, before or 0, *(FACTOR * had for had in killed)))


def raised(policy: CompactionPolicy, memory: WorkerMemory) -> Raised:
    """What the status says of it."""
    workers = policy.spec.workers
    return Raised(_above(workers.driver, memory.driver_memory), _above(workers.executor, memory.executor_memory))


def _above(spec: GrowingPod, bytes_now: int | None) -> int | None:
    return bytes_now if bytes_now is not None and bytes_now > int(spec.memory) else None


def announced(policy: CompactionPolicy, before: WorkerMemory, after: WorkerMemory) -> tuple[Announce, ...]:
    """The Events that say which pods get more from now on."""
    workers, status, now = policy.spec.workers, policy.status, raised(policy, after)
    events = []
    if (now.driver or 0) > (before.driver_memory or status.driver_memory_bytes or int(workers.driver.memory)):
        words = "a driver was killed for using more memory than it has: the next one gets"
        events.append(Announce("DriverMemoryRaised", f"{words} {format_bytes(now.driver or 0)}", warning=True))
    if (now.executor or 0) > (before.executor_memory or status.executor_memory_bytes or int(workers.executor.memory)):
        words = "executors were killed for using more memory than they have: the next ones get"
        events.append(Announce("ExecutorMemoryRaised", f"{words} {format_bytes(now.executor or 0)}", warning=True))
    return tuple(events)
