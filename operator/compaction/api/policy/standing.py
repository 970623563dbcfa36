"""What each reason of a policy means for its conditions: the one table that decides Ready, Reconciling and Stalled.

Ready answers one question: does a user have to act? True: no, the policy does its work, or is suspended.
False: yes. Unknown: the operator is still carrying the spec out and cannot say. kstatus, and with it Flux, reads
Reconciling and Stalled before Ready (docs/resources.md has the same table for people, adr 0230 the decisions).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Final

from compaction.api.conditions import Conditions, remove_condition, set_condition
from compaction.api.enums import ConditionStatus, ConditionType, PolicyReason


class PolicyStanding(Enum):
    """How a policy stands: the status of Ready, and the condition that is present beside it, if any."""

    WORKING = (ConditionStatus.TRUE, None)
    APPLYING = (ConditionStatus.UNKNOWN, ConditionType.RECONCILING)
    ASKING = (ConditionStatus.FALSE, None)
    STALLED = (ConditionStatus.FALSE, ConditionType.STALLED)

    def __init__(self, ready: ConditionStatus, abnormal: ConditionType | None) -> None:
        self.ready = ready
        self.abnormal = abnormal


STANDING: Final[Mapping[str, PolicyStanding]] = MappingProxyType(
    {
        PolicyReason.SCHEDULED: PolicyStanding.WORKING,
        PolicyReason.COMPACTING: PolicyStanding.WORKING,
        PolicyReason.AWAITING_SCHEDULE: PolicyStanding.WORKING,
        PolicyReason.OUTSIDE_WINDOW: PolicyStanding.WORKING,
        PolicyReason.SUSPENDED: PolicyStanding.WORKING,
        PolicyReason.SENSING: PolicyStanding.APPLYING,
        PolicyReason.SUSPENDING: PolicyStanding.APPLYING,
        PolicyReason.APPROVAL_PENDING: PolicyStanding.ASKING,
        PolicyReason.INVALID_SPEC: PolicyStanding.STALLED,
        PolicyReason.PERMISSION_DENIED: PolicyStanding.STALLED,
        PolicyReason.SECRET_MISSING: PolicyStanding.STALLED,
        PolicyReason.STORE_UNREACHABLE: PolicyStanding.STALLED,
        PolicyReason.STORE_OVERLAPS: PolicyStanding.STALLED,
        PolicyReason.SENSE_FAILED: PolicyStanding.STALLED,
        PolicyReason.SOURCES_UNREADABLE: PolicyStanding.STALLED,
        PolicyReason.SOURCES_QUARANTINED: PolicyStanding.STALLED,
        PolicyReason.JOBS_FAULTY: PolicyStanding.STALLED,
        PolicyReason.LAUNCH_FAILED: PolicyStanding.STALLED,
    }
)


def standing_of(reason: str) -> PolicyStanding:
    """The standing of a reason. One that only the store's own code knows is about a store that cannot be used."""
    return STANDING.get(reason, PolicyStanding.STALLED)


def conditions_for(
    before: Conditions,
    *,
    reason: str,
    message: str,
    observed_generation: int,
    now: datetime,
    standing: PolicyStanding | None = None,
) -> Conditions:
    """The conditions of a policy that stands where its `reason` says; other conditions stay as they are. `standing`: of
    a reason that a kind of store adds.
    """
    standing = standing or standing_of(reason)
    present = [ConditionType.READY] + ([standing.abnormal] if standing.abnormal is not None else [])
    result = before
    for one in (ConditionType.RECONCILING, ConditionType.STALLED):
        if one is not standing.abnormal:
            result = remove_condition(result, one)
    for one in present:
        result = set_condition(
            result,
            type=one,
            status=standing.ready if one is ConditionType.READY else ConditionStatus.TRUE,
            reason=reason,
            message=message,
            observed_generation=observed_generation,
            now=now,
        )
    return result
