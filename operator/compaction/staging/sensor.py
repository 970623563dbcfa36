"""The debt on the branches of a repository, from counters: a scan costs O(branches), not O(changes).

docs/design/staging-areas.md#sensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Final

from compaction.api.policy.staging_area import MAX_TOKENS_PER_JOB, StagingAreaSpec
from compaction.core.planning.candidates import Candidate, GroupCandidate
from compaction.errors import CompactionError
from compaction.staging.compaction import BranchWork
from compaction.staging.errors import CorruptMessageError, StagingStoreError
from compaction.staging.flows.area import Area
from compaction.staging.kind import (
    AGE_REACHED,
    BRANCHES,
    MOST_SEALED_TOKENS,
    MOST_TOMBSTONES,
    SEALED_TOKENS,
    STAGED_BYTES,
    STAGED_WRITES,
    TOMBSTONES,
    target_name,
)
from compaction.staging.refs.branches import Branch, BranchRecord
from compaction.staging.staged.counters import Counts
from compaction.unexpected import defect

REST_SECONDS: Final = 60.0
"""For so long after the start of a compaction a branch is left alone that a commit has come to since."""
_REMEMBERED: Final = 100_000
"""Times of commits, and tokens known to have no counters, that a sensor keeps."""


@dataclass(frozen=True, slots=True)
class BranchDebt:
    """One branch: the compaction of what it has, and what that is. Times in seconds since 1970; `work` is None when
    nothing is staged. `counts`: of the tokens of the work. `committed_at`: of the branch's commit.
    """

    name: str
    record: BranchRecord
    work: BranchWork | None
    counts: Counts
    committed_at: float

    @property
    def began_at(self) -> float | None:
        """The time at which the last compaction began; None: never."""
        return self.record.compaction_started / 1000 if self.record.compaction_started else None

    @property
    def since(self) -> float:
        """Since when changes may have been waiting: the last compaction, or the commit."""
        return max(self.committed_at, self.began_at or 0.0)

    def rests_until(self) -> float | None:
        """Return the time at which a branch is compacted again that was committed after its last compaction had begun;
        None for a branch that was not.
        """
        began = self.began_at
        return began + REST_SECONDS if began is not None and self.committed_at > began else None


@dataclass(frozen=True, slots=True)
class BranchScan:
    """All branches of a repository that the policy selects, by name; `damaged` could not be read. `tokens`: those of
    every branch of the repository, also of others.
    """

    branches: tuple[BranchDebt, ...]
    damaged: tuple[tuple[str, StagingStoreError], ...]
    tokens: frozenset[str]

    @property
    def measures(self) -> dict[str, float]:
        """Of the whole store."""
        counts = [branch.counts for branch in self.branches]
        sealed = [len(branch.record.sealed_tokens) for branch in self.branches]
        return {
            TOMBSTONES: sum(count.tombstones for count in counts),
            SEALED_TOKENS: sum(sealed),
            STAGED_WRITES: sum(count.writes for count in counts),
            STAGED_BYTES: sum(count.nbytes for count in counts),
            MOST_TOMBSTONES: max((count.tombstones for count in counts), default=0),
            MOST_SEALED_TOKENS: max(sealed, default=0),
            BRANCHES: len(self.branches),
        }


@dataclass(slots=True)
class BranchSensor:
    """Scans one repository; keep it: it remembers when commits were made, and which tokens have no counters."""

    spec: StagingAreaSpec
    _commits: dict[str, float] = field(default_factory=dict)
    _primed: set[str] = field(default_factory=set)

    def scan(self, area: Area, *, store: bool = True) -> BranchScan:
        """Every branch that the policy selects. A token without counters is counted by a scan of its rows, once;
        `store` False: without writing the result down.

        Raises DatabaseError: the store cannot be read. What one branch has wrong is `damaged`.
        """
        damaged: list[tuple[str, StagingStoreError]] = []

        def unreadable(name: str, error: CorruptMessageError) -> None:
            damaged.append((name, error))

        every = list(area.branches.every(unreadable))
        chosen = selected(self.spec.include, self.spec.exclude)
        branches = [item for item in every if chosen(item.name)]
        counted = area.counters.read({token for branch in branches for token in branch.record.tokens})
        debts = []
        for branch in branches:
            try:
                debts.append(self._debt(area, branch, counted, store))
            except StagingStoreError as error:
                damaged.append((branch.name, error))
            except CompactionError:
                raise  # of the store as a whole
            except Exception as error:  # noqa: BLE001 - of one branch: the others are scanned all the same
                damaged.append((branch.name, StagingStoreError(f"branch {branch.name}: {defect(error, branch.name)}")))
        damaged = [(name, error) for name, error in damaged if chosen(name)]
        tokens = frozenset(token for item in every for token in item.record.tokens)
        return BranchScan(tuple(debts), tuple(damaged), tokens)

    def _debt(self, area: Area, branch: Branch, counted: dict[str, Counts], store: bool) -> BranchDebt:
        record = branch.record
        of = {token: self._counts(area, token, counted, store) for token in record.tokens}
        tokens = record.tokens if of[record.staging_token].writes else record.sealed_tokens
        tokens = tokens[-MAX_TOKENS_PER_JOB:]
        work = None
        if tokens:
            work = BranchWork(area.repository.name, branch.name, record.commit_id, record.compacted_base, tokens)
        counts = sum((of[token] for token in tokens), Counts())
        return BranchDebt(branch.name, record, work, counts, self._committed_at(area, record.commit_id))

    def _counts(self, area: Area, token: str, counted: dict[str, Counts], store: bool) -> Counts:
        if token in counted or token in self._primed:
            return counted.get(token, Counts())
        counts = area.counters.prime(token, store=store)
        if store:
            # Counters of its writers follow within a second, so its rows are counted here only once.
            if len(self._primed) >= _REMEMBERED:
                self._primed.clear()
            self._primed.add(token)
        return counts

    def _committed_at(self, area: Area, commit_id: str) -> float:
        if commit_id not in self._commits:
            created = area.commits.get(commit_id).creation_date
            if len(self._commits) >= _REMEMBERED:
                self._commits.clear()
            self._commits[commit_id] = created.seconds + created.nanos / 1e9 if created is not None else 0.0
        return self._commits[commit_id]


def candidate_of(
    debt: BranchDebt, work: BranchWork, spec: StagingAreaSpec, *, sensed_at: float, now: float
) -> Candidate:
    """A branch with something staged as the planner sees it; the kind's thresholds are compared with its measures."""
    counts = debt.counts
    measures = {
        TOMBSTONES: float(counts.tombstones),
        SEALED_TOKENS: float(len(debt.record.sealed_tokens)),
        STAGED_WRITES: float(counts.writes),
        STAGED_BYTES: float(counts.nbytes),
    }
    longest = spec.thresholds.max_age
    if longest is not None:
        measures[AGE_REACHED] = float(now - debt.since >= float(longest))
    group = GroupCandidate(
        sources=work.tokens,
        identities=work.tokens,
        copy_bytes=counts.nbytes,
        gain_bytes=counts.nbytes,
    )
    return Candidate(
        target=target_name(work.repository, work.branch),
        tenant="",
        base_version=work.base_version,
        groups=(group,),
        obsolete=(),
        debt_bytes=counts.nbytes,
        debt_sources=len(work.tokens),
        sensed_at=sensed_at,
        oldest_debt_at=debt.since,
        compacted_at=debt.began_at,
        measures=tuple(measures.items()),
    )


def next_change(debts: Iterable[BranchDebt], spec: StagingAreaSpec, *, now: float) -> float | None:
    """Seconds until a branch becomes due by its age, or is no more left alone; None: no branch does."""
    longest = spec.thresholds.max_age
    moments = []
    for debt in debts:
        if debt.work is None:
            continue
        if longest is not None:
            moments.append(debt.since + float(longest))
        rested = debt.rests_until()
        if rested is not None:
            moments.append(rested)
    return min((moment - now for moment in moments if moment > now), default=None)


def selected(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Return a test for names of branches that match one of the patterns, and none of the others; * stands for any
    characters.
    """
    taken = [re.compile(translate(pattern)) for pattern in include]
    left = [re.compile(translate(pattern)) for pattern in exclude]

    def chosen(name: str) -> bool:
        return any(item.match(name) for item in taken) and not any(item.match(name) for item in left)

    return chosen
