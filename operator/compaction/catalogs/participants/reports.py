"""Reports of participants: their form, the required time in them, and the rules that every honest one keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.descriptors import MAXIMUM, MINIMUM

# The report of a participant about itself (docs/design/catalog-compaction.md#reports).


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


# The time from which on a participant needs the catalog, and why (docs/design/catalog-compaction.md#reports).

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
    for partition in partitions:
        if partition.minimum == UNDEFINED:
            return Required(MINIMUM, Cause.NOT_READY, partition_subject(partition))
    found = [Required(low_watermark, Cause.LOW_WATERMARK, WATERMARK_SUBJECT)]
    if partitions:  # there are many: only the one that counts gets a text
        first = min(partitions, key=_MINIMUM)
        found.append(Required(first.minimum, Cause.PARTITION, partition_subject(first)))
    found += [Required(rebalance.minimum, Cause.REBALANCE, rebalance_subject(rebalance)) for rebalance in rebalances]
    return min(found, key=_MINIMUM)


def partition_subject(report: PartitionReport) -> str:
    """As reports name a partition."""
    return f"table {report.table_id} partition {report.partition}"


def rebalance_subject(rebalance: Rebalance) -> str:
    """As reports name a rebalance."""
    return f"zone {rebalance.zone_id}"


# Permitted contents of a report: rules that hold for every honest participant
# (docs/design/catalog-compaction.md#what-a-report-may-say).

LONGEST_TEXT: Final = 200


class ReportRule(StrEnum):
    """The rules, by the names under which a conformance run reports them."""

    TIMES = "times-are-timestamps"
    TEXTS = "texts-are-short"
    UNIQUE = "subjects-are-unique"
    NOT_READY = "undefined-is-not-ready"
    COVERS = "minimum-covers-all"
    TRANSACTIONS = "transactions-before-clock"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A rule that a report breaks, and how."""

    rule: ReportRule
    what: str


def contradictions(report: Report) -> Iterator[Contradiction]:
    """Every rule that this report breaks. Nothing may be cut by a report that breaks one: which of its times is wrong
    cannot be known.
    """
    for rule, found in (
        (ReportRule.TIMES, _times(report)),
        (ReportRule.TEXTS, _texts(report)),
        (ReportRule.UNIQUE, _unique(report)),
        (ReportRule.NOT_READY, _ready(report)),
        (ReportRule.COVERS, _covered(report)),
        (ReportRule.TRANSACTIONS, _transactions(report)),
    ):
        yield from (Contradiction(rule, what) for what in found)


def _times(report: Report) -> Iterator[str]:
    defined = {"minimum": report.minimum, "transactions": report.transactions, "clock": report.clock}
    defined |= {f"since of index {build.index_id}": build.since for build in report.index_builds}
    defined |= {f"since of zone {rebalance.zone_id}": rebalance.since for rebalance in report.rebalances}
    defined |= {f"minimum of zone {rebalance.zone_id}": rebalance.minimum for rebalance in report.rebalances}
    optional = {
        "lowWatermark": report.low_watermark,
        "oldestTransaction": report.oldest_transaction,
        "checkpoint": report.checkpoint,
    }
    # There may be thousands of partitions: only those that are wrong get a text.
    optional |= {
        f"minimum of table {partition.table_id} partition {partition.partition}": partition.minimum
        for partition in report.partitions
        if not UNDEFINED <= partition.minimum <= MAXIMUM
    }
    for least, times in ((MINIMUM, defined), (UNDEFINED, optional)):
        for name, value in times.items():
            if not least <= value <= MAXIMUM:
                yield f"{name} {value} is no hybrid timestamp: {least} to {MAXIMUM}"
    numbers = [build.index_id for build in report.index_builds] + [rebalance.zone_id for rebalance in report.rebalances]
    numbers += [
        min(partition.table_id, partition.partition)
        for partition in report.partitions
        if partition.table_id < 0 or partition.partition < 0
    ]
    if negative := [number for number in numbers if number < 0]:
        yield f"an id or partition is {negative[0]}: they are not negative"


def _texts(report: Report) -> Iterator[str]:
    for name, text in (("name", report.name), ("subject", report.subject)):
        if not 1 <= len(text) <= LONGEST_TEXT or not text.isprintable():
            yield f"{name} is not 1 to {LONGEST_TEXT} printable characters"


def _unique(report: Report) -> Iterator[str]:
    for name, keys in (
        ("partition", [(partition.table_id, partition.partition) for partition in report.partitions]),
        ("index build", [build.index_id for build in report.index_builds]),
        ("rebalance of zone", [rebalance.zone_id for rebalance in report.rebalances]),
    ):
        if (twice := _repeated(keys)) is not None:
            yield f"{name} {twice} is reported twice"


def _ready(report: Report) -> Iterator[str]:
    undefined = report.low_watermark == UNDEFINED or any(
        partition.minimum == UNDEFINED for partition in report.partitions
    )
    if undefined and report.cause is not Cause.NOT_READY:
        yield f"the cause is {report.cause.value} while the watermark or a partition is undefined: it is NotReady then"
    if report.cause is Cause.NOT_READY and report.minimum != MINIMUM:
        yield f"the minimum is {report.minimum} with the cause NotReady: it is {MINIMUM} then"


def _covered(report: Report) -> Iterator[str]:
    own = required(report.low_watermark, report.partitions, report.rebalances)
    if report.minimum > own.minimum:
        yield f"the minimum {report.minimum} is later than {own.minimum} of {own.subject}"


def _transactions(report: Report) -> Iterator[str]:
    if report.transactions > report.clock:
        yield f"the minimum of transactions {report.transactions} is later than the clock {report.clock}"
    if report.oldest_transaction and report.transactions > report.oldest_transaction:
        yield f"the minimum of transactions {report.transactions} is later than the oldest, {report.oldest_transaction}"


def _repeated(keys: Sequence[object]) -> object | None:
    if len(set(keys)) == len(keys):
        return None
    seen: set[object] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None
