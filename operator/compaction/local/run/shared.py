"""A store in which other processes claim jobs at the same moment: what they have is left to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from compaction.api.enums import JobReason, PolicyReason
from compaction.api.job.resource import CompactionJobSpec
from compaction.core.planning.candidates import LeftOutReason
from compaction.core.planning.planner import LeftOut
from compaction.core.planning.reading import HeldJob, ScanResult, TargetProblem, UnofferedDebt
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError
from compaction.storage.adapter import Sensed, SenseRequest, StoreAdapter, Swept

Others = Callable[[], Mapping[str, HeldJob]]


class SharedStore:
    """Implements `StoreAdapter` over one. Scans offer nothing that jobs of others have; a job that another process has
    claimed after this one is neither claimed again nor retired.

    Args:
        others: the jobs of others that are open now, by name, with a target of their own. Raises CompactionError.
    """

    def __init__(self, store: StoreAdapter, others: Others) -> None:
        self._store = store
        self._others = others
        self._claimed: dict[str, int] = {}

    def sense(self, request: SenseRequest) -> Sensed:
        """See `StoreAdapter`."""
        try:
            others = self._others()
        except CompactionError as error:
            return Sensed(_unreadable(request, str(error)), None)
        held = {name: job for name, job in others.items() if name not in request.jobs}
        sensed = self._store.sense(replace(request, jobs={**held, **request.jobs}))
        while gone := sensed.reading.outdated & held.keys():
            # Jobs some of whose sources were replaced or expired by others: what is left of them is free to plan.
            held = {name: job for name, job in held.items() if name not in gone}
            sensed = self._store.sense(replace(request, jobs={**held, **request.jobs}))
        return replace(sensed, reading=_without(sensed.reading, held))

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`."""
        return self._store.sweep(active=active)

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        known = self._store.high_water(target, job)
        if known > self._claimed.get(job, known):
            why = f"job {job}: another process has claimed it with token {known}, and works on it"
            raise ClaimRefusedError(ClaimRefusal.BUSY, why, JobReason.STALE_TOKEN)
        return known

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`."""
        self._store.claim(spec, job=job, token=token)
        self._claimed[job] = token

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`. Only what this process has claimed; raises when another has since."""
        if job in self._claimed and self.high_water(target, job):
            self._store.retire(target, job)

    def close(self) -> None:
        """See `StoreAdapter`."""
        self._store.close()


def _without(reading: ScanResult, held: Mapping[str, HeldJob]) -> ScanResult:
    """The scan without the targets of those jobs: what they have is behind, and in no plan."""
    targets = {job.target for job in held.values()}
    theirs = [one for one in reading.candidates if one.target in targets]
    rows = [LeftOut(LeftOutReason.JOB_UNFINISHED, len(job.sources), name) for name, job in sorted(held.items())]
    debt = [UnofferedDebt(one.level, one.tenant, one.debt_sources, one.debt_bytes) for one in theirs]
    return replace(
        reading,
        candidates=tuple(one for one in reading.candidates if one.target not in targets),
        beyond=(*reading.beyond, *debt),
        left_out=(*reading.left_out, *rows),
    )


def _unreadable(request: SenseRequest, message: str) -> ScanResult:
    return ScanResult(
        number=request.number,
        generation=request.generation,
        started=request.asked,
        ended=time.monotonic(),
        wall=time.time(),
        problem=TargetProblem("", PolicyReason.SENSE_FAILED, message),
    )
