"""Idle policies: what a decision to do nothing depends on, and when the store is scanned meanwhile.

A key comes out of the queue for many reasons, most of which change nothing. As long as everything that the last
decision saw is the same object, the decision is the same, and it is not made again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compaction.core.planning.reading import ScanResult
from compaction.core.reconcile.actions import Rest
from compaction.core.reconcile.allowance import Allowance
from compaction.core.reconcile.memory import Memory
from compaction.core.reconcile.store_work import pause
from compaction.kube.client.resources import Obj
from compaction.kube.informer.cache import ObjectCache, ObjectKey
from compaction.kube.launchers.base import WorkerObservation


@dataclass(frozen=True, slots=True)
class Seen:
    """What a decision depends on besides the store and the clock. Objects in the cache are never changed in place."""

    policy: Obj | None
    jobs: tuple[Obj, ...]
    leases: tuple[Obj, ...]
    workers: tuple[WorkerObservation, ...]
    allowance: Allowance
    held_by: str

    @classmethod
    def of(
        cls,
        cache: ObjectCache,
        key: ObjectKey,
        *,
        workers: tuple[WorkerObservation, ...],
        allowance: Allowance,
        held_by: str,
    ) -> Seen:
        """As it is now."""
        jobs, leases = tuple(cache.jobs_of(key)), tuple(cache.leases_of(key))
        return cls(cache.policies.get(*key), jobs, leases, workers, allowance, held_by)

    def is_same(self, other: Seen) -> bool:
        """Whether nothing has changed since; bodies are compared by identity, as the cache keeps each version once."""
        return (
            self.policy is other.policy
            and len(self.jobs) == len(other.jobs)
            and len(self.leases) == len(other.leases)
            and all(one is two for one, two in zip(self.jobs, other.jobs, strict=True))
            and all(one is two for one, two in zip(self.leases, other.leases, strict=True))
            and self.workers == other.workers
            and self.allowance == other.allowance
            and self.held_by == other.held_by
        )


@dataclass(frozen=True, slots=True)
class Resting:
    """An idle period, and what it depends on."""

    rest: Rest
    seen: Seen

    def after_look(self, reading: ScanResult, memory: Memory) -> Resting:
        """The idle period after a scan that found nothing new."""
        rest = self.rest
        due = reading.started + pause(rest.interval, started=reading.started, waits_since=rest.waits_since)
        ends = [at for at in (rest.until, memory.store.sweep_due, memory.store.look_due) if at is not None]
        return replace(self, rest=replace(rest, look_at=due, until=min(ends)))
