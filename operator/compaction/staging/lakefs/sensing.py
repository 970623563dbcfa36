"""What is behind on the branches of a live lakeFS. No writer counts there, so tokens are counted by reading them.

A sealed token changes no more once its late writes have landed, so it is counted once; of a staging token, and of a
token with very many rows, only the first ones are counted: thresholds are far below that, so a lower bound is enough.
docs/design/staging-areas.md#live-lakefs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from compaction.api.policy.staging_area import MAX_TOKENS_PER_JOB, LakeFsMergeSpec, StagingAreaSpec
from compaction.errors import CompactionError
from compaction.staging.changes import tombstones
from compaction.staging.compaction.work import BranchWork
from compaction.staging.errors import LiveStoreRefusedError, StagingStoreError
from compaction.staging.format.messages import CommitData
from compaction.staging.lakefs.branch_rows import BranchRow, read_branch_row
from compaction.staging.lakefs.claims import LiveClaim, read_claim, record_of
from compaction.staging.lakefs.control import holder_of, note, read_notes
from compaction.staging.lakefs.repository import LiveRepository
from compaction.staging.lakefs.settings import MergeSettings
from compaction.staging.refs.names import COMMIT_KEYS
from compaction.staging.sensor import BranchDebt, BranchScan, selected
from compaction.staging.staged.counters import Counts
from compaction.staging.staged.rows import decode_rows
from compaction.unexpected import defect

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
        return notes.sealed / 1000 + MergeSettings().seal_every if notes.sealed else 0.0

    def _rests_until(self, live: LiveRepository, row: BranchRow, claim: LiveClaim) -> float:
        """When the branch will have been as it is for the idle time; it is never merged while another merger has it."""
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
