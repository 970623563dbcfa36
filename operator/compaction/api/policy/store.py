"""`spec.store` of a policy, a union with one member for each kind of store, and what each reason means for its
conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Final

from pydantic.alias_generators import to_camel

from compaction.api.base import ApiModel, Rule, exactly_one_of
from compaction.api.conditions import Conditions, remove_condition, set_condition
from compaction.api.enums import ConditionStatus, ConditionType, PolicyReason
from compaction.api.members import OneOf, StoreMember, StoreModel
from compaction.api.policy.block_store import BLOCK_STORE, BlockStoreSpec
from compaction.api.policy.segment_logs import SEGMENT_LOGS, SegmentLogsSpec
from compaction.api.policy.staging_area import STAGING_AREA, StagingAreaSpec

# `spec.store` of a policy: a union of which exactly one member is set, one member for each kind of store.

STORES: Final[list[StoreMember]] = [SEGMENT_LOGS, BLOCK_STORE, STAGING_AREA]
"""All kinds, in the order of the members. `extend.add_member` appends."""


def exactly_one_store() -> tuple[Rule, ...]:
    """The rule of the union, of the kinds there are."""
    members = tuple(store.member for store in STORES)
    return (exactly_one_of(tuple(map(to_camel, members)), members, what="store"),)


StoreName = Annotated[str, OneOf(lambda: (store.name for store in STORES))]


class StoreSpec(ApiModel):
    """The store a policy compacts: exactly one member."""

    segment_logs: SegmentLogsSpec | None = None
    """Segment logs in Ra's on-disk format: directories of numbered segment files with snapshots."""
    block_store: BlockStoreSpec | None = None
    """Immutable Parquet blocks in an object store, with an index in a database."""
    staging_area: StagingAreaSpec | None = None
    """Branches of a repository with uncommitted changes in a key-value store over ranges in an object store."""

    RULES = exactly_one_store()

    @property
    def chosen(self) -> StoreModel:
        """The member that is set."""
        store: StoreModel = getattr(self, self._member.member)
        return store

    @property
    def location(self) -> str:
        """Where the store is, as messages name it."""
        return self.chosen.location

    @property
    def name(self) -> str:
        """Name of the kind of store this is, as in `status.store`."""
        return self._member.name

    @property
    def _member(self) -> StoreMember:
        return next(store for store in STORES if getattr(self, store.member) is not None)


# The meaning of each reason of a policy for its conditions: the one table that decides Ready, Reconciling and Stalled.
#
# Ready answers one question: does a user have to act? True: no, the policy does its work, or is suspended. False:
# yes. Unknown: the operator is still carrying the spec out and cannot say. kstatus, and with it Flux, reads
# Reconciling and Stalled before Ready (docs/resources.md has the same table for people, adr 0230 the decisions).


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
        PolicyReason.HELD: PolicyStanding.WORKING,
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
    for item in (ConditionType.RECONCILING, ConditionType.STALLED):
        if item is not standing.abnormal:
            result = remove_condition(result, item)
    for item in present:
        result = set_condition(
            result,
            type=item,
            status=standing.ready if item is ConditionType.READY else ConditionStatus.TRUE,
            reason=reason,
            message=message,
            observed_generation=observed_generation,
            now=now,
        )
    return result
