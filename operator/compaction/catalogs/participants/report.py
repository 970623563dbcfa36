"""What a participant says about itself (docs/design/catalog-compaction.md#reports)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a participant needs the catalog from its minimum required time on."""

    LOW_WATERMARK = "LowWatermark"
    PARTITION = "Partition"
    """A replay of a partition's log starts there."""
    REBALANCE = "Rebalance"
    NOT_READY = "NotReady"
    """It has no watermark yet, or a partition has published no minimum: nothing may be cut."""


class Role(StrEnum):
    """What a participant is for a partition."""

    PRIMARY = "Primary"
    REPLICA = "Replica"
    LEARNER = "Learner"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A partition of a table that this participant holds. `minimum`: its published minimum, UNDEFINED when none."""

    table_id: int
    partition: int
    role: Role
    minimum: int


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """An index this participant builds. `since`: hybrid timestamp of its beginning."""

    index_id: int
    since: int


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A zone whose partitions move. `minimum`: the catalog is needed from there on."""

    zone_id: int
    minimum: int
    since: int


@dataclass(frozen=True, slots=True)
class Report:
    """All times are hybrid timestamps (docs/design/catalogs.md#hybrid-timestamps).

    `minimum`: the catalog is needed from there on, and `cause` says why; `subject` names the partition, zone or
    transaction. `transactions`: the smallest begin version's activation time over active read-write transactions, the
    participant's clock when there are none; `oldest_transaction`: begin time of the oldest, UNDEFINED without one.
    `checkpoint`: of the last finished one. `clock`: the participant's clock when it answered. `reads_old_rows`: whether
    it may read rows that were written with an older column set of their table, and needs that set for it.
    """

    name: str
    minimum: int
    cause: Cause
    subject: str
    transactions: int
    oldest_transaction: int
    low_watermark: int
    partitions: tuple[PartitionReport, ...]
    index_builds: tuple[IndexBuild, ...]
    rebalances: tuple[Rebalance, ...]
    checkpoint: int
    clock: int
    reads_old_rows: bool = True
