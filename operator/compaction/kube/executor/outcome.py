"""What carrying out a decision came to, and what the coordinator remembers of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from compaction.core.reconcile.jobs.claims import Refused, learned
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.workers.fleet import launch_failed


@dataclass(slots=True)
class ExecutionResult:
    """What carrying out a decision came to. `stale`: something had changed, decide again at once.

    `claims` are jobs whose claim was refused, `claimed` those whose claim the store accepted; `failed_jobs` are jobs
    whose write did not happen. `launch_errors` are messages; `not_launched` are the workers that were certainly not
    started.
    """

    stale: bool = False
    plan_failed: bool = False
    status_failed: bool = False
    claims: dict[str, Refused] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)
    launch_errors: list[str] = field(default_factory=list)
    not_launched: set[str] = field(default_factory=set)
    failed_jobs: set[str] = field(default_factory=set)

    def remembered(self, memory: Memory, *, now: float) -> Memory:
        """The memory with refused claims, failed launches, and writes that have to be made again. `now`: monotonic."""
        memory = learned(memory, refused=self.claims, claimed=self.claimed, now=now)
        for message in self.launch_errors:
            workers = launch_failed(memory.workers, message, now, names=self.not_launched)
            memory = replace(memory, workers=workers)
        if self.plan_failed:
            memory = replace(memory, planning=replace(memory.planning, reading=-1))
        if self.status_failed:
            memory = replace(memory, status_written_at=-1e9)
        return memory
