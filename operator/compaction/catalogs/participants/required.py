"""The time from which on a participant needs the catalog, and why (docs/design/catalog-compaction.md#reports)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.hybrid import MINIMUM
from compaction.catalogs.participants.report import Cause, PartitionReport, Rebalance

WATERMARK_SUBJECT: Final = "low watermark"
_MINIMUM: Final = attrgetter("minimum")


@dataclass(frozen=True, slots=True)
class Required:
    """The same three fields of a report."""

    minimum: int
    cause: Cause
    subject: str


def required(low_watermark: int, partitions: Sequence[PartitionReport], rebalances: Sequence[Rebalance]) -> Required:
    """The smallest of the three. While one is undefined, everything is needed, and the first that is missing is named.

    Active transactions are no part of it: their minimum travels through the logs of the partitions, and counts once it
    is published there.
    """
    if low_watermark == UNDEFINED:
        return Required(MINIMUM, Cause.NOT_READY, WATERMARK_SUBJECT)
    for one in partitions:
        if one.minimum == UNDEFINED:
            return Required(MINIMUM, Cause.NOT_READY, partition_subject(one))
    found = [Required(low_watermark, Cause.LOW_WATERMARK, WATERMARK_SUBJECT)]
    if partitions:  # there are many: only the one that counts gets a text
        first = min(partitions, key=_MINIMUM)
        found.append(Required(first.minimum, Cause.PARTITION, partition_subject(first)))
    found += [Required(one.minimum, Cause.REBALANCE, rebalance_subject(one)) for one in rebalances]
    return min(found, key=_MINIMUM)


def partition_subject(one: PartitionReport) -> str:
    """As reports name a partition."""
    return f"table {one.table_id} partition {one.partition}"


def rebalance_subject(one: Rebalance) -> str:
    """As reports name a rebalance."""
    return f"zone {one.zone_id}"
