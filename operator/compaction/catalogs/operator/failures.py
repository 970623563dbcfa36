"""Which reason an error of a round's work is."""

from __future__ import annotations

from typing import Final

from compaction.api.catalog.reasons import Finding, Reason
from compaction.catalogs.errors import (
    CatalogError,
    CatalogLogAccessError,
    CatalogLogFullError,
    CatalogLogLimitError,
    CatalogLogRewoundError,
    CatalogValueError,
    CorruptCatalogLogError,
    CorruptCatalogValueError,
    InapplicableEntryError,
    ParticipantConfigError,
    UnsupportedCatalogValueError,
)
from compaction.errors import ApiError, ForbiddenError
from compaction.serving.errors import OwnTokenError
from compaction.storage.errors import SecretError, SecretForbiddenError

_REASONS: Final[tuple[tuple[Reason, tuple[type[CatalogError], ...]], ...]] = (
    (
        Reason.LOG_CORRUPT,
        (
            CorruptCatalogLogError,
            CorruptCatalogValueError,
            InapplicableEntryError,
            UnsupportedCatalogValueError,
            CatalogLogRewoundError,
        ),
    ),
    (Reason.NO_SPACE, (CatalogLogFullError,)),
    (Reason.SNAPSHOT_REFUSED, (CatalogLogLimitError, CatalogValueError)),
    (Reason.PERMISSION_DENIED, (CatalogLogAccessError,)),
)


def reason_of(error: CatalogError) -> Reason:
    """LOG_UNAVAILABLE for what another round may find repaired."""
    return next((reason for reason, kinds in _REASONS if isinstance(error, kinds)), Reason.LOG_UNAVAILABLE)


def failure_of(error: CatalogError | SecretError | OwnTokenError | ApiError) -> Finding:
    """How a process ends that met the error."""
    match error:
        case SecretForbiddenError():
            return Finding(Reason.PERMISSION_DENIED, str(error))
        case SecretError():
            return Finding(Reason.SECRET_MISSING, str(error))
        case OwnTokenError():
            return Finding(Reason.PERMISSION_DENIED, str(error))
        case ForbiddenError():
            return Finding(Reason.PERMISSION_DENIED, f"the operator's account may not: {error}")
        case ApiError():
            return Finding(Reason.PARTICIPANTS_UNKNOWN, f"the API server does not list the participants: {error}")
        case ParticipantConfigError():
            return Finding(Reason.ANSWER_REFUSED, str(error))
        case _:
            return Finding(reason_of(error), str(error))
