"""The operator's limits at the edge: the ledger of a term, its first entries, and the task that shares out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from compaction.api.policy.resource import CompactionPolicy
from compaction.core.reconcile.allowance import NO_ALLOWANCE, Allowance, LimitDemand, OperatorLimits
from compaction.core.reconcile.observations import Moment
from compaction.core.reconcile.shared_limits import SharedLimits, waited_for_worker
from compaction.kube.gather import is_worker
from compaction.kube.informer.cache import ObjectKey
from compaction.kube.launchers.base import WorkerObservation
from compaction.kube.replica.runtime import Runtime

SHARE_OUT: Final = 0.2
"""Seconds between two sharings: what they cost does not grow with what happens in between."""
_PAUSES: Final = 200
"""So many times as long as a sharing took, when it takes long: for thousands of policies they come less often."""


class Sharing:
    """Owned by the controller. Without limits it does nothing and costs nothing."""

    def __init__(self, limits: OperatorLimits, *, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._commons: SharedLimits[ObjectKey] | None = None

    def begin(self, runtime: Runtime, workers: Mapping[ObjectKey, tuple[WorkerObservation, ...]]) -> None:
        """Enter the workers that there are, once a term: after everything was listed, before anything is decided."""
        if self._commons is not None or not self._limits.any:
            return
        keys = {*runtime.cache.policies.keys(), *workers}
        holds = {key: _workers_of(runtime, key, workers.get(key, ())) for key in keys}
        self._commons = SharedLimits(self._limits, holds, now=self._monotonic())

    def allowance(self, key: ObjectKey) -> Allowance:
        """What a policy may have."""
        return NO_ALLOWANCE if self._commons is None else self._commons.allowance(key)

    def note(self, key: ObjectKey, demand: LimitDemand, policy: CompactionPolicy | None, now: Moment) -> None:
        """A decision was made: before anything is awaited, so that no other depends on less than is known."""
        if self._commons is not None:
            waited = waited_for_worker(policy, now) if policy is not None else 0.0
            self._commons.note(key, demand, now=now.monotonic, waited=waited)

    def give_up(self, key: ObjectKey) -> None:
        """The policy cannot be read any more."""
        if self._commons is not None:
            self._commons.give_up(key)

    async def run(self, runtime: Runtime) -> None:
        """Share out every now and then; policies that may do something new are queued. Returns without limits."""
        for name, value in asdict(self._limits).items():
            if value is not None:
                runtime.metrics.limits.labels(name).set(value)
        took = 0.0
        while self._limits.any:
            await asyncio.sleep(max(SHARE_OUT, _PAUSES * took))
            began = self._monotonic()
            if self._commons is not None:
                for key in self._commons.share_out(self._monotonic()):
                    runtime.queue.add(key)
                runtime.metrics.workers_held.set(self._commons.held)
            took = self._monotonic() - began


def _workers_of(runtime: Runtime, key: ObjectKey, observed: tuple[WorkerObservation, ...]) -> int:
    leases = {body["metadata"]["name"] for body in runtime.cache.leases_of(key) if is_worker(body)}
    return len(leases | {worker.name for worker in observed if not worker.ended})
