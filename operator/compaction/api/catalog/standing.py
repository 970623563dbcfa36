"""What each reason of a CatalogCompaction means for its conditions (docs/design/catalog-compaction.md#conditions)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compaction.api.catalog.reasons import Reason
from compaction.api.policy.standing import PolicyStanding


class CatalogReason(StrEnum):
    """Reasons in the conditions of a CatalogCompaction beside those that a round ends with."""

    STARTING = "Starting"  # no round with this spec has ended yet
    SUSPENDING = "Suspending"  # spec.suspend is true, and the round that ran then still runs
    SUSPENDED = "Suspended"  # spec.suspend is true: no round begins
    INVALID_SPEC = "InvalidSpec"  # stored under an older schema; the message names the field


PASSING: Final = frozenset(
    {
        Reason.COMPACTED,
        Reason.PROPAGATED,
        Reason.NOTHING_TO_COMPACT,
        Reason.NOTHING_TO_PROPAGATE,
        Reason.DRY_RUN,
        Reason.NOT_NEWER,
        Reason.LOW_WATERMARK,
        Reason.TRANSACTION,
        Reason.REPLAY,
        Reason.REBALANCE,
        Reason.NO_WATERMARK,
        Reason.UNDEFINED_PARTITION,
        Reason.NOT_READY,
        Reason.INDEX_CONSTRUCTION,
        Reason.DELETED_TABLE_READABLE,
    }
)
"""Ends by itself when participants have done what they are doing."""

NEEDS_A_USER: Final = frozenset({Reason.SECRET_MISSING, Reason.PERMISSION_DENIED})
"""No round ends it before a user has changed something: it is said at once."""

STANDING: Final[Mapping[str, PolicyStanding]] = MappingProxyType(
    {
        CatalogReason.STARTING: PolicyStanding.APPLYING,
        CatalogReason.SUSPENDING: PolicyStanding.APPLYING,
        CatalogReason.SUSPENDED: PolicyStanding.WORKING,
        CatalogReason.INVALID_SPEC: PolicyStanding.STALLED,
    }
)


def standing_of(reason: str, *, lasts: bool) -> PolicyStanding:
    """How a reason stands. `lasts`: it has stood for more than a round; a participant that restarts misses one."""
    if reason in STANDING:
        return STANDING[reason]
    if reason in PASSING:
        return PolicyStanding.WORKING
    return PolicyStanding.STALLED if lasts or reason in NEEDS_A_USER else PolicyStanding.APPLYING
