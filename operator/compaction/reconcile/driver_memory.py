"""How much memory the next driver gets: what the policy says, or more after one was killed for using more than it had.

It is doubled from what that driver had, so the same death seen twice raises it once; never beyond driver.maxMemory.
Kept in status, so that a restart does not begin the lesson anew.
"""

from __future__ import annotations

from dataclasses import replace

from compaction.api.enums import WorkerEnding
from compaction.api.formatting import format_bytes
from compaction.api.policy import CompactionPolicy
from compaction.reconcile.actions import Announce
from compaction.reconcile.observations import Memory, Snapshot

FACTOR = 2


def learned(snapshot: Snapshot, policy: CompactionPolicy, memory: Memory) -> Memory:
    """The memory with the bytes that the next driver gets."""
    driver = policy.spec.workers.driver
    least, most = int(driver.memory), max(int(driver.memory), int(driver.max_memory))
    before = memory.driver_memory or policy.status.driver_memory_bytes or 0
    wanted = [
        FACTOR * process.memory
        for process in snapshot.processes
        if process.ended and process.ending is WorkerEnding.OUT_OF_MEMORY
    ]
    return replace(memory, driver_memory=min(most, max(least, before, *wanted)))


def raised(policy: CompactionPolicy, memory: Memory) -> int | None:
    """The bytes for the status: only what is more than the policy says."""
    bytes_now = memory.driver_memory or 0
    return bytes_now if bytes_now > int(policy.spec.workers.driver.memory) else None


def announced(policy: CompactionPolicy, before: Memory, after: Memory) -> tuple[Announce, ...]:
    """The Event that says that drivers get more from now on."""
    known = before.driver_memory or policy.status.driver_memory_bytes or int(policy.spec.workers.driver.memory)
    now = after.driver_memory or 0
    if now <= known or raised(policy, after) is None:
        return ()
    words = f"a driver was killed for using more memory than it has: the next one gets {format_bytes(now)}"
    return (Announce("DriverMemoryRaised", words, warning=True),)
