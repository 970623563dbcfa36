"""Answers of the adapters of staging areas when something is wrong, and the branches that are furthest behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from compaction.api.enums import PolicyReason
from compaction.api.policy.policy_status import MAX_BEHIND
from compaction.core.planning.debt import ScanResult, TargetMeasures, TargetProblem
from compaction.core.planning.planner import LeftOut
from compaction.errors import ClaimRefusal, ClaimRefusedError, CompactionError
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
from compaction.staging.reasons import StagingReason
from compaction.staging.sensor import BranchDebt
from compaction.storage.adapter import Sensed, SenseRequest
from compaction.storage.errors import (
    DatabaseUnavailableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
    SecretError,
    StorageError,
)
from compaction.storage.secrets import reason_of

# What the adapters of staging areas answer when something is wrong, and what their plans leave out.

_REASONS: Final[tuple[tuple[type[CompactionError], str], ...]] = (
    (ObjectStoreUnavailableError, PolicyReason.STORE_UNREACHABLE),
    (ObjectAccessError, PolicyReason.STORE_UNREACHABLE),
    (DatabaseUnavailableError, PolicyReason.STORE_UNREACHABLE),
    (ForeignRepositoryError, StagingReason.FOREIGN_REPOSITORY),
    (UnknownRefError, StagingReason.REPOSITORY_NOT_FOUND),
    (LiveStoreRefusedError, StagingReason.LIVE_STORE_REFUSED),
    (RepositoryReadOnlyError, StagingReason.LIVE_STORE_REFUSED),
)


def unreadable(
    request: SenseRequest,
    location: str,
    error: StagingStoreError | StorageError,
    *,
    clock: Callable[[], float],
    wall: Callable[[], float],
) -> Sensed:
    """A scan that read nothing. `clock`: monotonic seconds; `wall`: epoch seconds."""
    reading = ScanResult(
        number=request.number,
        generation=request.generation,
        started=request.asked,
        ended=clock(),
        wall=wall(),
        problem=TargetProblem(location, _reason_of(error), str(error)),
    )
    return Sensed(reading, None)


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
