"""Common parts of the adapters of staging areas: what they answer, also when something is wrong, and the branches that
are furthest behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final, Generic, TypeVar

from compaction.api.enums import PolicyReason
from compaction.api.job.job import CompactionJobSpec
from compaction.api.policy.policy_status import MAX_BEHIND
from compaction.api.policy.staging_area import MetarangeSources, StagingAreaSpec
from compaction.core.planning.debt import ScanResult, TargetMeasures, TargetProblem
from compaction.core.planning.planner import LeftOut
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError, InvalidAssignmentError
from compaction.staging.damage import DamageChecks
from compaction.staging.errors import (
    ForeignRepositoryError,
    LiveStoreRefusedError,
    RepositoryReadOnlyError,
    StagingStoreError,
    TooManyTriesError,
    UnknownRefError,
    WorkOutdatedError,
)
from compaction.staging.kind import (
    SEALED_TOKENS,
    SEALED_TOKENS_AFTER,
    STAGED_BYTES,
    STAGED_WRITES,
    TOMBSTONES,
    TOMBSTONES_AFTER,
    target_name,
)
from compaction.staging.kv.port import KeyValueStore
from compaction.staging.reasons import StagingReason
from compaction.staging.sensor import BranchDebt, BranchScan
from compaction.staging.store import StagingConnection
from compaction.staging.tree.storage import RangeStorage
from compaction.storage.adapter import SWEEP_AGAIN, Sensed, SenseRequest, Swept
from compaction.storage.errors import (
    DatabaseUnavailableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
    SecretError,
    StorageError,
)
from compaction.storage.opened import Closable, KeptOpen
from compaction.storage.secrets import Secrets, reason_of

# Answers of the adapters of staging areas when something is wrong, and the parts that their plans leave out.

_REASONS: Final[tuple[tuple[type[CompactionError], str], ...]] = (
    (ObjectStoreUnavailableError, PolicyReason.STORE_UNREACHABLE),
    (ObjectAccessError, PolicyReason.STORE_UNREACHABLE),
    (DatabaseUnavailableError, PolicyReason.STORE_UNREACHABLE),
    (ForeignRepositoryError, StagingReason.FOREIGN_REPOSITORY),
    (UnknownRefError, StagingReason.REPOSITORY_NOT_FOUND),
    (LiveStoreRefusedError, StagingReason.LIVE_STORE_REFUSED),
    (RepositoryReadOnlyError, StagingReason.LIVE_STORE_REFUSED),
)


def _reason_of(error: CompactionError) -> str:
    if isinstance(error, SecretError):
        return reason_of(error)
    found = next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
    return found or PolicyReason.SENSE_FAILED


@contextmanager
def claiming() -> Iterator[None]:
    """The errors of a claim in the words of every store."""
    try:
        yield
    except (WorkOutdatedError, UnknownRefError) as error:
        raise ClaimRefusedError(ClaimRefusal.GONE, str(error)) from error
    except TooManyTriesError as error:
        raise ClaimRefusedError(ClaimRefusal.BUSY, str(error), StagingReason.BRANCH_BUSY) from error
    except (StagingStoreError, StorageError) as error:
        raise ClaimRefusedError(ClaimRefusal.ERROR, str(error)) from error


def left_out(reason: StagingReason, branches: Sequence[tuple[str, float | None]]) -> tuple[LeftOut, ...]:
    """Branches (name, epoch seconds from which it is planned, None when that is not known) that a plan leaves out."""
    if not branches:
        return ()
    name, due = min(branches, key=lambda branch: (branch[1] is None, branch[1] or 0.0, branch[0]))
    return (LeftOut(reason, len(branches), name, due=due),)


def sources_of(spec: CompactionJobSpec, job: str) -> MetarangeSources:
    """The tokens that a job names. Raises InvalidAssignmentError."""
    if spec.sources.metarange is None:
        raise InvalidAssignmentError(f"job {job}: {spec.kind} names no tokens")
    return spec.sources.metarange


S = TypeVar("S", bound=Closable)
R = TypeVar("R")


class RepositoryAdapter(ABC, Generic[S, R]):
    """The part of `StoreAdapter` that every repository has in common. `S`: the store that stays open; `R`: the
    repository in it. `clock`: monotonic seconds; `wall`: epoch seconds. `merges`: see `furthest_behind`.
    """

    merges = False

    def __init__(
        self,
        spec: StagingAreaSpec,
        opened: Callable[[StagingConnection], S],
        *,
        secrets: Secrets,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._spec, self._secrets = spec, secrets
        self._clock, self._wall = clock, wall
        self._opened: KeptOpen[StagingConnection, S] = KeptOpen(opened)
        self._damage = DamageChecks(clock)

    def sense(self, request: SenseRequest) -> Sensed:
        """See `StoreAdapter`."""
        try:
            with self._repository() as repository:
                return self._sense(request, repository)
        except (StagingStoreError, StorageError) as error:
            problem = TargetProblem(self._spec.location, _reason_of(error), str(error))
            return Sensed(self._reading(request, self._wall(), problem), None)

    def sweep(self, *, active: frozenset[tuple[str, int]]) -> Swept:
        """See `StoreAdapter`. What an active attempt has written is kept for it, so no one has to report it."""
        try:
            return self._sweep()
        except (StagingStoreError, StorageError) as error:
            problem = TargetProblem(self._spec.location, "SweepFailed", str(error))
            return Swept(0, 0, (problem,), SWEEP_AGAIN)

    def close(self) -> None:
        """See `StoreAdapter`. A coordinator ends without waiting for its threads: the last of them closes the store."""
        self._opened.close()

    @abstractmethod
    def _repository(self) -> AbstractContextManager[R]:
        """The repository, opened again when a Secret has changed. Raises SecretError, StagingStoreError."""

    @abstractmethod
    def _sense(self, request: SenseRequest, repository: R) -> Sensed: ...

    @abstractmethod
    def _sweep(self) -> Swept: ...

    def _reading(self, request: SenseRequest, now: float, problem: TargetProblem | None = None) -> ScanResult:
        return ScanResult(
            number=request.number,
            generation=request.generation,
            started=request.asked,
            ended=self._clock(),
            wall=now,
            problem=problem,
        )

    def _scanned(
        self, request: SenseRequest, scan: BranchScan, now: float, name: str, kv: KeyValueStore, ranges: RangeStorage
    ) -> ScanResult:
        """All that a scan of the repository of that name says of its branches, whatever is planned."""
        records = {target_name(name, branch.name): branch.record for branch in scan.branches}
        return replace(
            self._reading(request, now),
            problems=tuple(
                TargetProblem(target_name(name, branch), PolicyReason.SENSE_FAILED, str(error))
                for branch, error in scan.damaged
            ),
            targets=frozenset(records),
            measures=scan.measures,
            behind=furthest_behind(name, scan.branches, merges=self.merges),
            identities=self._damage.identities(kv, ranges, records, request.quarantined),
        )


# The branches of a scan that are furthest behind, for the status of a policy.
#
# docs/design/staging-areas.md#sensor.

RANKED = (TOMBSTONES, SEALED_TOKENS, STAGED_WRITES)
"""Each makes reads of a branch slower by itself."""


def furthest_behind(
    repository: str, debts: Sequence[BranchDebt], *, merges: bool = False
) -> tuple[TargetMeasures, ...]:
    """At most MAX_BEHIND branches that compaction would change. A branch ranks by the measure in which it comes closest
    to the worst branch, so the worst of each measure is always among them.

    merges: tokens become one (a live lakeFS), whose tombstones may have to stay; otherwise they become the base.
    """
    measured = {debt.name: _measures(debt, merges=merges) for debt in debts if debt.work is not None}
    most = {name: max((item[name] for item in measured.values()), default=0.0) for name in RANKED}

    def rank(branch: str) -> tuple[float, float, str]:
        shares = [measured[branch][name] / most[name] for name in RANKED if most[name]]
        return -max(shares, default=0.0), -sum(shares), branch

    worst = sorted(measured, key=rank)[:MAX_BEHIND]
    return tuple(TargetMeasures(target_name(repository, name), tuple(measured[name].items())) for name in worst)


def _measures(debt: BranchDebt, *, merges: bool) -> dict[str, float]:
    sealed = len(debt.record.sealed_tokens)
    named = len(debt.work.tokens) if debt.work is not None else 0
    return {
        TOMBSTONES: float(debt.counts.tombstones),
        SEALED_TOKENS: float(sealed),
        STAGED_WRITES: float(debt.counts.writes),
        STAGED_BYTES: float(debt.counts.nbytes),
        TOMBSTONES_AFTER: float(debt.counts.tombstones if merges else 0),
        SEALED_TOKENS_AFTER: float(max(0, sealed - named) + merges),
    }
