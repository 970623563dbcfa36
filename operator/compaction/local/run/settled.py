"""When a run that ends has nothing left to do. Pure: from the objects in memory and what the reconciler remembers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from compaction.api.enums import JobState
from compaction.api.job.resource import CompactionJob
from compaction.core.planning.reading import ScanResult
from compaction.core.reconcile import store_work
from compaction.core.reconcile.actions import StoreTask
from compaction.core.reconcile.jobs.job import is_finished
from compaction.core.reconcile.memory import Memory


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run knows. `repeated` are jobs that have ended in this run and were made again: whatever they are, they
    are no reason to go on. `changed_at`: when something became of a job last (monotonic).
    """

    jobs: Mapping[str, CompactionJob]
    memory: Memory
    reading: ScanResult | None = None
    repeated: Set[str] = frozenset()
    changed_at: float = -math.inf

    @property
    def open(self) -> frozenset[str]:
        """Jobs of which something becomes without waiting for others: those whose claim the store refused wait."""
        waiting = self.memory.claims.keys() | self.repeated
        return frozenset(name for name, job in self.jobs.items() if name not in waiting and not is_finished(job.status))

    @property
    def marks(self) -> frozenset[tuple[str, str]]:
        """What a scan has to be newer than, when it changes: the states of jobs, refused claims, and jobs that are
        gone. A job that goes after it has succeeded changes nothing.
        """
        jobs = [(name, job.status.state) for name, job in self.jobs.items() if name not in self.repeated]
        unfinished = [(name, str(state)) for name, state in jobs if state is not JobState.SUCCEEDED]
        return frozenset([*unfinished, *((name, problem.reason) for name, problem in self.memory.claims.items())])

    @property
    def settled(self) -> bool:
        """Whether only others, time or a person can give the run something to do: no job is open, the last scan is
        newer than the end of the last job, and all that it offers was planned from.
        """
        reading, planning = self.reading, self.memory.planning
        if reading is None or self.open or reading.started < self.changed_at:
            return False
        return reading.problem is not None or (planning.reading == reading.number and not planning.unmade.jobs)

    def paced(self, now: float) -> Memory:
        """The memory with scans at the pace of a run that ends: none beside jobs that are open, as it would take the
        thread that gives them to the worker; and then at once, not after the interval.
        """
        if self.open:
            return store_work.sense_started(self.memory)
        memory = store_work.ended(self.memory, StoreTask.SENSE)
        if self.reading is None or self.reading.started >= self.changed_at:
            return memory
        return replace(memory, store=replace(memory.store, look_wanted=now))
