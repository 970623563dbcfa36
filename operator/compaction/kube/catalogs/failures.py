"""Which reason an error of the log is."""

from __future__ import annotations

from compaction.catalogs.compaction.reasons import Reason
from compaction.exceptions import (
    CatalogError,
    CatalogValueError,
    CorruptCatalogValueError,
    InapplicableEntryError,
    UnsupportedCatalogValueError,
)

_CORRUPT = (CorruptCatalogValueError, InapplicableEntryError, UnsupportedCatalogValueError)


def reason_of(error: CatalogError) -> Reason:
    """LOG_UNAVAILABLE for what another round may find repaired."""
    if isinstance(error, _CORRUPT):
        return Reason.LOG_CORRUPT
    if isinstance(error, CatalogValueError):
        return Reason.SNAPSHOT_REFUSED
    return Reason.LOG_UNAVAILABLE
