"""The adapter of a repository of a live lakeFS, for policies that opt in, and what is behind on its branches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.staging_area import MAX_TOKENS_PER_JOB, LakeFsMergeSpec, StagingAreaSpec
from compaction.core.planning.debt import HeldJob, TargetProblem
from compaction.core.planning.planner import LeftOut
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError
from compaction.staging.answers import RepositoryAdapter, claiming, left_out, sources_of
from compaction.staging.compaction import BranchWork
from compaction.staging.connecting import connection_of, work_of
from compaction.staging.errors import LiveStoreRefusedError, StagingStoreError
from compaction.staging.format.columns import tombstones
from compaction.staging.format.messages import CommitData
from compaction.staging.kind import branch_of_target
from compaction.staging.kv.sql import SqlKeyValueStore
from compaction.staging.lakefs.cleaning import drop_deleted, drop_due, next_drop, recover
from compaction.staging.lakefs.control import (
    LiveClaim,
    TokenMergeSettings,
    claim_branch,
    claimed_branches,
    forget_claims,
    holder_of,
    note,
    read_claim,
    read_notes,
    record_of,
    retire_job,
    stopped_because,
)
from compaction.staging.lakefs.repository import (
    BranchRow,
    LiveRepository,
    check_layout,
    open_live_repository,
    read_branch_row,
)
from compaction.staging.reasons import StagingReason
from compaction.staging.refs.names import COMMIT_KEYS
from compaction.staging.sensor import BranchDebt, BranchScan, candidate_of, next_change, selected
from compaction.staging.staged.counters import Counts
from compaction.staging.staged.rows import decode_rows
from compaction.staging.store import StagingConnection
from compaction.storage.adapter import SWEEP_AGAIN, Sensed, SenseRequest, Swept
from compaction.storage.opened import explaining
from compaction.storage.secrets import Secrets
from compaction.unexpected import defect

# The debt of the branches of a live lakeFS. No writer counts there, so tokens are counted by reading them.
#
# A sealed token changes no more once its late writes have landed, so it is counted once; of a staging token, and of a
# token with very many rows, only the first ones are counted: thresholds are far below that, so a lower bound is
# enough. docs/design/staging-areas.md#live-lakefs.

COUNTED: Final = 10_000
"""Rows of a token that are counted at most."""
_REMEMBERED: Final = 100_000
"""Tokens and commits that a sensor keeps."""


@dataclass(frozen=True, slots=True)
class LiveScan:
    """All branches that the policy selects. `rests`: until when (epoch seconds) a branch is left alone, by its name, of
    those that were not at rest when their row was read: a scan may take longer than the idle time.
    """

    scan: BranchScan
    rests: dict[str, float]


@dataclass(slots=True)
class LiveSensor:
    """Scans one repository; keep it: it remembers what it counted."""

    spec: StagingAreaSpec
    lakefs: LakeFsMergeSpec
    _tokens: dict[str, Counts] = field(default_factory=dict)
    _commits: dict[str, float] = field(default_factory=dict)

    def scan(self, live: LiveRepository, *, noted: bool = True) -> LiveScan:
        """Every branch that the policy selects. `noted`: write down how each is, which tells how long it stays so.

        Raises DatabaseError, and what `LiveRepository.check` raises. What one branch has wrong is `damaged`.
        """
        live.check()
        chosen = selected(self.spec.include, self.spec.exclude)
        debts, damaged, tokens, rests = [], list[tuple[str, StagingStoreError]](), set[str](), dict[str, float]()
        for name, raw in live.branch_rows():
            try:
                row = read_branch_row(raw, name=name, repository=live.name)
                tokens.update((row.data.staging_token, *row.sealed))
                if not chosen(name) or row.data.hidden:
                    continue
                claim, _ = read_claim(live, name)
                read_at, until = live.clock(), self._rests_until(live, row, claim)
                if noted:
                    note(live, row)
                debt = self._debt(live, row, claim)
                if debt.work is not None and row.data.staging_token in debt.work.tokens:
                    until = max(until, self._sealed_until(live, row))
                if until > read_at:
                    rests[name] = until
                debts.append(debt)
            except StagingStoreError as error:
                # Every row is decoded for its tokens; a branch that the policy leaves out is no problem of the policy.
                if chosen(name):
                    damaged.append((name, error))
            except CompactionError:
                raise  # of the store as a whole
            except Exception as error:  # noqa: BLE001 - of one branch: the others are scanned all the same
                damaged.append((name, StagingStoreError(f"branch {name}: {defect(error, name)}")))
        return LiveScan(BranchScan(tuple(debts), tuple(damaged), frozenset(tokens)), rests)

    def _sealed_until(self, live: LiveRepository, row: BranchRow) -> float:
        """From when on the staging token may be sealed again; a merge that names it before that is refused."""
        notes, _ = read_notes(live, row.name)
        return notes.sealed / 1000 + TokenMergeSettings().seal_every if notes.sealed else 0.0

    def _rests_until(self, live: LiveRepository, row: BranchRow, claim: LiveClaim) -> float:
        """Return the time at which the branch will have been as it is for the idle time; it is never merged while
        another merger has it.
        """
        notes, _ = read_notes(live, row.name)
        holder = holder_of(live, row.name)
        unchanged = notes.since / 1000 if notes.is_of(row) else live.clock()
        other = holder != "" and not holder.startswith(f"{claim.claim_job or claim.compacted_job}/")
        return (live.clock() if other else unchanged) + float(self.lakefs.idle)

    def _debt(self, live: LiveRepository, row: BranchRow, claim: LiveClaim) -> BranchDebt:
        record = replace(record_of(row), compaction_started=claim.compaction_started)
        staged = self._counted(live, row.data.staging_token) if self.lakefs.seal_staging else Counts()
        sealed = sum((self._known(live, token) for token in row.sealed), Counts())
        tokens = record.tokens if staged.writes else row.sealed
        tokens = tokens[-MAX_TOKENS_PER_JOB:]
        work = None
        if len(tokens) >= self.lakefs.least_tokens:
            work = BranchWork(live.name, row.name, row.data.commit_id, "", tokens)
        return BranchDebt(row.name, record, work, sealed + staged, self._committed_at(live, row.data.commit_id))

    def _known(self, live: LiveRepository, token: str) -> Counts:
        """Of a sealed token: counted when it was first seen sealed."""
        if token not in self._tokens:
            if len(self._tokens) >= _REMEMBERED:
                self._tokens.clear()
            self._tokens[token] = self._counted(live, token)
        return self._tokens[token]

    def _counted(self, live: LiveRepository, token: str) -> Counts:
        counts = Counts()
        for page in live.kv.scan(token, page=COUNTED):
            changes = decode_rows(token, page)
            counts += Counts(len(changes), int(tombstones(changes).sum()), changes.nbytes)
            if counts.writes >= COUNTED:
                break
        return counts

    def _committed_at(self, live: LiveRepository, commit_id: str) -> float:
        if commit_id not in self._commits:
            raw = live.kv.get(live.partition, (COMMIT_KEYS + commit_id).encode())
            if raw is None:
                raise LiveStoreRefusedError(f"commit {commit_id}", "a branch is on it, and it has no row")
            created = CommitData.decode(raw, name=f"commit {commit_id}").creation_date
            if len(self._commits) >= _REMEMBERED:
                self._commits.clear()
            self._commits[commit_id] = created.seconds + created.nanos / 1e9 if created is not None else 0.0
        return self._commits[commit_id]


# The adapter of a repository of a live lakeFS, for policies that opt in: sealed tokens of a branch become one.
#
# Nothing of the servers is changed but rows of branches, by the swap of a merge. Claims, notes and the journal are
# rows beside them (docs/design/staging-areas.md#live-lakefs).

RESTED = 1.0
"""Seconds until the next scan when a branch has come to rest meanwhile."""
PATIENCE = 10.0
"""Seconds for which a scan or a claim waits for a database that is away: the next one is not far."""


class LiveAdapter(RepositoryAdapter[SqlKeyValueStore, LiveRepository]):
    """Implements `StoreAdapter`. Keep it while the spec stays: its sensor remembers what it counted."""

    merges = True

    def __init__(
        self,
        spec: StagingAreaSpec,
        lakefs: LakeFsMergeSpec,
        *,
        secrets: Secrets,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(spec, _open, secrets=secrets, clock=clock, wall=wall)
        self._lakefs = lakefs
        self._sensor = LiveSensor(spec, lakefs)

    # -- scans --------------------------------------------------------------------------------------------------------

    def _sense(self, request: SenseRequest, live: LiveRepository) -> Sensed:
        _ = live.ranges  # a namespace that a worker could not open either is said now, not by its attempts
        found = self._sensor.scan(live, noted=request.recover)
        scan, now = found.scan, self._wall()
        offered = [
            candidate_of(debt, debt.work, self._spec, sensed_at=request.asked, now=now)
            for debt in scan.branches
            if debt.work is not None and debt.name not in found.rests
        ]
        ready = [item for item in offered if not request.quarantined.get(item.target)]
        stopped = stopped_because(live.kv)
        aside = StagingReason.MERGING_STOPPED if stopped else StagingReason.DRY_RUN if self._lakefs.dry_run else None
        kept = left_out(aside, [(branch_of_target(item.target), None) for item in ready]) if aside else ()
        reading = replace(
            self._scanned(request, scan, now, live.name, live.kv, live.ranges),
            candidates=() if aside else tuple(ready),
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
            look_in=min((wake for wake in wakes if wake > 0), default=None),
        )

    def _outdated(self, live: LiveRepository, found: LiveScan, jobs: Mapping[str, HeldJob]) -> frozenset[str]:
        """Jobs whose tokens are no more the oldest of their branch, unless they have merged them."""
        records = {branch.name: branch.record for branch in found.scan.branches}
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

    def _sweep(self) -> Swept:
        with self._kv() as kv:
            drop_deleted(kv, clock=self._wall, sleep=time.sleep)
        with self._repository() as live:  # which reads no object
            discarded = recover(live).discarded
            dropped = drop_due(live)
            # The claims first: a branch that is created and claimed meanwhile keeps its claim.
            claimed = claimed_branches(live)
            forget_claims(live, claimed - {name for name, _ in live.branch_rows()})
        problems = tuple(
            TargetProblem(
                self._spec.location, "TokenInUse", f"{token}: a branch names a token that was merged: it stays"
            )
            for token in dropped.in_use
        )
        return Swept(discarded + dropped.tokens, 0, problems, SWEEP_AGAIN if problems else dropped.next_in)

    def high_water(self, target: str, job: str) -> int:
        """See `StoreAdapter`."""
        with claiming(), self._repository() as live:
            return read_claim(live, branch_of_target(target))[0].high_water(job)

    def claim(self, spec: CompactionJobSpec, *, job: str, token: int) -> None:
        """See `StoreAdapter`. The branch itself stays as it is."""
        sources = sources_of(spec, job)
        if self._lakefs.dry_run:
            why = f"branch {sources.branch}: the policy says lakefs.dryRun: true, so nothing is merged"
            raise ClaimRefusedError(ClaimRefusal.BUSY, why, StagingReason.DRY_RUN)
        with claiming(), self._repository() as live:
            claim_branch(live, work_of(sources), job=job, token=token)

    def retire(self, target: str, job: str) -> None:
        """See `StoreAdapter`."""
        with self._repository() as live:
            retire_job(live, branch_of_target(target), job)

    @contextmanager
    def _kv(self) -> Iterator[SqlKeyValueStore]:
        """The key-value store, whatever is in it. Raises SecretError, StagingStoreError."""
        wanted = connection_of(self._spec.reference, self._secrets)
        with self._opened.use(wanted) as kv, explaining(wanted.address()):
            check_layout(kv)
            yield kv

    @contextmanager
    def _repository(self) -> Iterator[LiveRepository]:
        wanted = connection_of(self._spec.reference, self._secrets)
        with self._opened.use(wanted) as kv:
            with explaining(wanted.address()):
                live = open_live_repository(kv, self._spec.repository, options=wanted.options, clock=self._wall)
            # Only now the place of the objects is known.
            with explaining(wanted.address(live.namespace)):
                yield replace(live, clock=self._wall)


def _open(wanted: StagingConnection) -> SqlKeyValueStore:
    return wanted.open_kv(patience=PATIENCE)


def _active(found: LiveScan) -> tuple[LeftOut, ...]:
    waiting = [branch.name for branch in found.scan.branches if branch.work is not None and branch.name in found.rests]
    return left_out(StagingReason.BRANCH_ACTIVE, [(name, found.rests[name]) for name in waiting])
