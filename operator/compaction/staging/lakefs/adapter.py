"""The adapter of a repository of a live lakeFS, for policies that opt in: sealed tokens of a branch become one.

Nothing of the servers is changed but rows of branches, by the swap of a merge. Claims, notes and the journal are rows
beside them (docs/design/staging-areas.md#live-lakefs).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from compaction.api.enums import PolicyReason
from compaction.api.job.resource import CompactionJobSpec
from compaction.api.policy.staging_area import LakeFsMergeSpec, StagingAreaSpec
from compaction.core.planning.planner import LeftOut
from compaction.core.planning.reading import HeldJob, ScanResult, TargetProblem
from compaction.errors import ClaimRefusal, ClaimRefusedError, InvalidAssignmentError
from compaction.staging.answers import claiming, left_out, unreadable
from compaction.staging.behind import furthest_behind
from compaction.staging.connecting import connection_of, work_of
from compaction.staging.damage import DamageChecks
from compaction.staging.errors import StagingStoreError
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.lakefs.claims import claim_branch, claimed_branches, forget_claims, read_claim, retire_job
from compaction.staging.lakefs.cleaning import drop_deleted, drop_due, next_drop, recover
from compaction.staging.lakefs.control import stopped_because
from compaction.staging.lakefs.repository import LiveRepository, check_layout, open_live_repository
from compaction.staging.lakefs.sensing import LiveScan, LiveSensor
from compaction.staging.reasons import StagingReason
from compaction.staging.sensor import candidate_of, next_change
from compaction.staging.store import StagingConnection
from compaction.staging.work import branch_of_target, target_name
from compaction.storage.adapter import SWEEP_AGAIN, Sensed, SenseRequest, Swept
from compaction.storage.errors import StorageError
from compaction.storage.opened import KeptOpen
from compaction.storage.secrets import Secrets
from compaction.storage.unreachable import explaining

RESTED = 1.0
"""Seconds until the next scan when a branch has come to rest meanwhile."""
PATIENCE = 10.0
"""Seconds for which a scan or a claim waits for a database that is away: the next one is not far."""


class LiveAdapter:
    """Implements `StoreAdapter`. Keep it while the spec stays: its sensor remembers what it counted."""

    def __init__(
        self,
        spec: StagingAreaSpec,
        lakefs: LakeFsMergeSpec,
        *,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._spec, self._lakefs, self._secrets = spec, lakefs, secrets
        self._clock, self._wall = clock, wall
        self._opened: KeptOpen[StagingConnection, SqlKeyValueStore] = KeptOpen(_open)
        self._sensor = LiveSensor(spec, lakefs)
        self._damage = DamageChecks(clock)

    # -- scans --------------------------------------------------------------------------------------------------------

    def sense(self, request: SenseRequest) -> Sensed:
        """See `StoreAdapter`."""
        try:
            with self._live() as live:
                return self._sense(request, live)
        except (StagingStoreError, StorageError) as error:
            return unreadable(request, self._spec.location, error, clock=self._clock, wall=self._wall)

    def _sense(self, request: SenseRequest, live: LiveRepository) -> Sensed:
        _ = live.ranges  # a namespace that a worker could not open either is said now, not by its attempts
        found = self._sensor.scan(live, noted=request.recover)
        scan, now = found.scan, self._wall()
        records = {target_name(live.name, one.name): one.record for one in scan.branches}
        offered = [
            candidate_of(debt, debt.work, self._spec, sensed_at=request.asked, now=now)
            for debt in scan.branches
            if debt.work is not None and debt.name not in found.rests
        ]
        ready = [one for one in offered if not request.quarantined.get(one.target)]
        stopped = stopped_because(live.kv)
        aside = StagingReason.MERGING_STOPPED if stopped else StagingReason.DRY_RUN if self._lakefs.dry_run else None
        kept = left_out(aside, [(branch_of_target(one.target), None) for one in ready]) if aside else ()
        reading = ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=now,
            candidates=() if aside else tuple(ready),
            problems=tuple(
                TargetProblem(target_name(live.name, name), PolicyReason.SENSE_FAILED, str(error))
                for name, error in scan.damaged
            ),
            targets=frozenset(records),
            measures=scan.measures,
            behind=furthest_behind(live.name, scan.branches, merges=True),
            identities=self._damage.identities(live.kv, live.ranges, records, request.quarantined),
            left_out=(*kept, *_active(found)),
            outdated=self._outdated(live, found, request.jobs),
        )
        due, changes = next_drop(live), next_change(scan.branches, self._spec, now=now)
        # A rest that ended during a long scan is looked for soon, and not an interval later.
        wakes = [max(until - now, RESTED) for until in found.rests.values()] + ([] if changes is None else [changes])
        return Sensed(
            reading,
            None if due is None else max(0.0, due),
            overdue=max(0.0, -due) if due is not None else 0.0,
            look_in=min((one for one in wakes if one > 0), default=None),
        )

    def _outdated(self, live: LiveRepository, found: LiveScan, jobs: Mapping[str, HeldJob]) -> frozenset[str]:
        """Jobs whose tokens are no more the oldest of their branch, unless they have merged them."""
        records = {one.name: one.record for one in found.scan.branches}
        outdated = set()
        for name, job in jobs.items():
            branch = branch_of_target(job.target)
            record = records.get(branch)
            if record is not None and record.tokens[-len(job.sources) :] == job.sources:
                continue
            if record is None or read_claim(live, branch)[0].compacted_job != name:
                outdated.add(name)
        return frozenset(outdated)

    # -- the rest of the protocol -------------------------------------------------------------------------------------

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`. What an active attempt has written is in the journal, under its lease."""
        try:
            with self._kv() as kv:
                drop_deleted(kv, clock=self._wall, sleep=time.sleep)
            with self._live() as live:  # which reads no object
                discarded = recover(live).discarded
                dropped = drop_due(live)
                # The claims first: a branch that is created and claimed meanwhile keeps its claim.
                claimed = claimed_branches(live)
                forget_claims(live, claimed - {name for name, _ in live.branch_rows()})
        except (StagingStoreError, StorageError) as error:
            problem = TargetProblem(self._spec.location, "SweepFailed", str(error))
            return Swept(0, 0, (problem,), SWEEP_AGAIN)
        problems = tuple(
            TargetProblem(
                self._spec.location, "TokenInUse", f"{token}: a branch names a token that was merged: it stays"
            )
            for token in dropped.in_use
        )
        return Swept(discarded + dropped.tokens, 0, problems, SWEEP_AGAIN if problems else dropped.next_in)

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        with claiming(), self._live() as live:
            return read_claim(live, branch_of_target(target))[0].high_water(job)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`. The branch itself stays as it is."""
        sources = spec.sources.metarange
        if sources is None:
            raise InvalidAssignmentError(f"job {job}: {spec.kind} names no tokens")
        if self._lakefs.dry_run:
            why = f"branch {sources.branch}: the policy says lakefs.dryRun: true, so nothing is merged"
            raise ClaimRefusedError(ClaimRefusal.BUSY, why, StagingReason.DRY_RUN)
        with claiming(), self._live() as live:
            claim_branch(live, work_of(sources), job=job, token=token)

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`."""
        with self._live() as live:
            retire_job(live, branch_of_target(target), job)

    def close(self) -> None:
        """See `StoreAdapter`."""
        self._opened.close()

    @contextmanager
    def _kv(self) -> Iterator[SqlKeyValueStore]:
        """The key-value store, whatever is in it. Raises SecretError, StagingStoreError."""
        wanted = connection_of(self._spec.reference, self._secrets)
        with self._opened.use(wanted) as kv, explaining(wanted.address()):
            check_layout(kv)
            yield kv

    @contextmanager
    def _live(self) -> Iterator[LiveRepository]:
        """The repository, opened again when a Secret has changed. Raises SecretError, StagingStoreError."""
        wanted = connection_of(self._spec.reference, self._secrets)
        with self._opened.use(wanted) as kv, explaining(wanted.address()):
            live = open_live_repository(kv, self._spec.repository, options=wanted.options, clock=self._wall)
            with explaining(wanted.address(live.namespace)):
                yield replace(live, clock=self._wall)


def _open(wanted: StagingConnection) -> SqlKeyValueStore:
    return wanted.open_kv(patience=PATIENCE)


def _active(found: LiveScan) -> tuple[LeftOut, ...]:
    waiting = [one.name for one in found.scan.branches if one.work is not None and one.name in found.rests]
    return left_out(StagingReason.BRANCH_ACTIVE, [(name, found.rests[name]) for name in waiting])
