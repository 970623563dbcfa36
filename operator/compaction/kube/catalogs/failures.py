"""Which reason an error of the log is."""

from __future__ import annotations

from typing import Final

from compaction.catalogs.compaction.reasons import Reason
from compaction.exceptions import (
    CatalogError,
    CatalogLogAccessError,
    CatalogLogLimitError,
    CatalogLogRewoundError,
    CatalogValueError,
    CorruptCatalogLogError,
    CorruptCatalogValueError,
    InapplicableEntryError,
    UnsupportedCatalogValueError,
)

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
    (Reason.SNAPSHOT_REFUSED, (CatalogLogLimitError, CatalogValueError)),
    (Reason.PERMISSION_DENIED, (CatalogLogAccessError,)),
)


def reason_of(error: CatalogError) -> Reason:
    """LOG_UNAVAILABLE for what another round may find repaired."""
    return next((reason for reason, kinds in _REASONS if isinstance(error, kinds)), Reason.LOG_UNAVAILABLE)
