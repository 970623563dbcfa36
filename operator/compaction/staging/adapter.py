"""The adapter of staging areas: scan, claim, retire and sweep in the words of `StoreAdapter`.

Nothing is decided here: what is behind comes from the sensor, jobs from the planner, and who may swap the base of a
branch is the word of its record (docs/design/staging-areas.md#claims).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.staging_area import StagingAreaSpec
from compaction.core.planning.debt import HeldJob
from compaction.staging.answers import RepositoryAdapter, claiming, left_out, sources_of
from compaction.staging.compaction import claim, high_water_of, retire
from compaction.staging.connecting import connection_of, work_of
from compaction.staging.errors import UnknownRefError
from compaction.staging.flows.area import Area
from compaction.staging.kind import branch_of_target, target_name
from compaction.staging.lakefs.lakefs_adapter import LiveAdapter
from compaction.staging.reasons import StagingReason
from compaction.staging.sensor import BranchScan, BranchSensor, candidate_of, next_change
from compaction.staging.store import OpenedRepository, StagingConnection
from compaction.staging.sweep import journal_rows, next_due, note_unused, sweep_objects, sweep_tokens
from compaction.storage.adapter import OpenRequest, Sensed, SenseRequest, StoreAdapter, Swept
from compaction.storage.opened import explaining
from compaction.storage.secrets import Secrets

PATIENCE: Final = 10.0
"""Seconds for which a scan or a claim waits for a database that is away: the next one is not far."""
OBJECTS_EVERY: Final = 6 * 3600.0
"""Seconds between searches for objects that no tree has, when no token was dropped: each lists the whole namespace."""
STRAY_SECONDS: Final = 86_400.0
"""A claim is taken for one that is left over when its job is not the policy's and it began so long ago."""


class StagingAdapter(RepositoryAdapter[OpenedRepository, Area]):
    """Implements `StoreAdapter`. Keep it while the spec stays: its sensor remembers what does not change."""

    def __init__(
        self,
        spec: StagingAreaSpec,
        *,
        grace: float,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(spec, self._open, secrets=secrets, clock=clock, wall=wall)
        self._grace = grace
        self._sensor = BranchSensor(spec)
        self._objects_due = clock() + OBJECTS_EVERY

    # -- scans --------------------------------------------------------------------------------------------------------

    def _sense(self, request: SenseRequest, area: Area) -> Sensed:
        # Before the branches are read: a token that a branch gets in between must not look unused.
        journal = journal_rows(area)
        scan = self._sensor.scan(area, store=request.recover)
        now = self._wall()
        if request.recover:
            note_unused(area, journal, scan.tokens)
            self._retire_strays(area, scan, request.jobs)
        repository = area.repository.name
        candidates, resting = [], []
        for debt in scan.branches:
            if debt.work is None or request.quarantined.get(target_name(repository, debt.name)):
                continue
            rested = debt.rests_until()
            if rested is not None and rested > now:
                resting.append((debt.name, rested))
                continue
            candidates.append(candidate_of(debt, debt.work, self._spec, sensed_at=request.asked, now=now))
        reading = replace(
            self._scanned(request, scan, now, repository, area.kv, area.ranges),
            candidates=tuple(candidates),
            left_out=left_out(StagingReason.BRANCH_BUSY, resting),
            outdated=_outdated(scan, request.jobs),
        )
        due = next_due(area, journal, scan.tokens, grace=self._grace)
        search = max(0.0, self._objects_due - self._clock())
        return Sensed(
            reading,
            search if due is None else max(0.0, min(due, search)),
            overdue=max(0.0, -due) if due is not None else 0.0,
            look_in=next_change(scan.branches, self._spec, now=now),
        )

    def _retire_strays(self, area: Area, scan: BranchScan, jobs: Mapping[str, HeldJob]) -> None:
        """Claims of jobs that are no more keep what they may have written from the sweep."""
        for branch in scan.branches:
            job, began = branch.record.claim_job, branch.began_at or 0.0
            if job and job not in jobs and self._wall() - began > STRAY_SECONDS:
                retire(area, branch.name, job)

    # -- the rest of the protocol -------------------------------------------------------------------------------------

    def _sweep(self) -> Swept:
        with self._repository() as area:
            tokens = sweep_tokens(area, grace=self._grace)
            deleted, size = tokens.tokens, 0
            if tokens.tokens or self._clock() >= self._objects_due:
                objects = sweep_objects(area, grace=self._grace)
                deleted, size = deleted + objects.objects, objects.bytes
                # What is too young now is deleted when its grace is over.
                self._objects_due = self._clock() + (self._grace if objects.unreached else OBJECTS_EVERY)
        search = max(0.0, self._objects_due - self._clock())
        return Swept(deleted, size, (), min(search, tokens.next_in) if tokens.next_in is not None else search)

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        with claiming(), self._repository() as area:
            branch = area.branches.find(branch_of_target(target))
            return 0 if branch is None else high_water_of(branch.record, job)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`. The claim seals what is staged; a job that was committed needs none."""
        sources = sources_of(spec, job)
        with claiming(), self._repository() as area:
            claim(area, work_of(sources), job=job, token=token)

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`. A branch that is gone has no claims."""
        with self._repository() as area:
            try:
                retire(area, branch_of_target(target), job)
            except UnknownRefError:
                return

    @contextmanager
    def _repository(self) -> Iterator[Area]:
        wanted = connection_of(self._spec.reference, self._secrets)
        with self._opened.use(wanted) as opened:
            with explaining(wanted.address()):
                area = opened.area()
            with explaining(wanted.address(area.repository.namespace)):
                yield replace(area, clock=self._wall)

    def _open(self, wanted: StagingConnection) -> OpenedRepository:
        return OpenedRepository.open(wanted, self._spec.repository, patience=PATIENCE)


def _outdated(scan: BranchScan, jobs: Mapping[str, HeldJob]) -> frozenset[str]:
    """Jobs whose tokens are no more the oldest of their branch. One that has committed keeps its branch's word."""
    records = {branch.name: branch.record for branch in scan.branches}
    found = set()
    for name, job in jobs.items():
        record = records.get(branch_of_target(job.target))
        if record is None or (record.compacted_job != name and record.tokens[-len(job.sources) :] != job.sources):
            found.add(name)
    return frozenset(found)


def open_adapter(request: OpenRequest) -> StoreAdapter:
    """See `storage.adapter.OpenAdapter`."""
    spec = request.spec.store.staging_area
    assert spec is not None, "the kind is chosen by this member"
    if spec.lakefs is not None:
        return LiveAdapter(spec, spec.lakefs, secrets=request.secrets, clock=request.clock, wall=lambda: _wall())
    return StagingAdapter(spec, grace=request.grace, secrets=request.secrets, clock=request.clock, wall=lambda: _wall())


def _wall() -> float:
    return time.time()
