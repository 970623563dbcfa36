"""What the adapters of staging areas answer when something is wrong, and what their plans leave out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from compaction.api.enums import PolicyReason
from compaction.core.planning.planner import LeftOut
from compaction.core.planning.reading import ScanResult, TargetProblem
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
from compaction.staging.reasons import StagingReason
from compaction.storage.adapter import Sensed, SenseRequest
from compaction.storage.errors import (
    DatabaseUnavailableError,
    ObjectAccessError,
    ObjectStoreUnavailableError,
    SecretError,
    StorageError,
)
from compaction.storage.secrets import reason_of

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
    name, due = min(branches, key=lambda one: (one[1] is None, one[1] or 0.0, one[0]))
    return (LeftOut(reason, len(branches), name, due=due),)
