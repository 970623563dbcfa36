"""`spec.store` of a policy: a union of which exactly one member is set, one member for each kind of store."""

from typing import Annotated, Final

from pydantic.alias_generators import to_camel

from compaction.api.base import ApiModel
from compaction.api.members import OneOf, StoreMember, StoreModel
from compaction.api.policy.block_store import BLOCK_STORE, BlockStoreSpec
from compaction.api.policy.segment_logs import SEGMENT_LOGS, SegmentLogsSpec
from compaction.api.policy.staging_area import STAGING_AREA, StagingAreaSpec
from compaction.api.rules import Rule, exactly_one_of

STORES: Final[list[StoreMember]] = [SEGMENT_LOGS, BLOCK_STORE, STAGING_AREA]
"""All kinds, in the order of the members. `extend.add_member` appends."""


def exactly_one_store() -> tuple[Rule, ...]:
    """The rule of the union, of the kinds there are."""
    members = tuple(one.member for one in STORES)
    return (exactly_one_of(tuple(map(to_camel, members)), members, what="store"),)


StoreName = Annotated[str, OneOf(lambda: (one.name for one in STORES))]


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
        return next(one for one in STORES if getattr(self, one.member) is not None)
