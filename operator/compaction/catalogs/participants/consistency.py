"""What a report may say: rules that hold for every honest participant
(docs/design/catalog-compaction.md#what-a-report-may-say).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.hybrid import MAXIMUM, MINIMUM
from compaction.catalogs.participants.report import Cause, Report
from compaction.catalogs.participants.required import required

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
    defined |= {f"since of index {one.index_id}": one.since for one in report.index_builds}
    defined |= {f"since of zone {one.zone_id}": one.since for one in report.rebalances}
    defined |= {f"minimum of zone {one.zone_id}": one.minimum for one in report.rebalances}
    optional = {
        "lowWatermark": report.low_watermark,
        "oldestTransaction": report.oldest_transaction,
        "checkpoint": report.checkpoint,
    }
    # There may be thousands of partitions: only those that are wrong get a text.
    optional |= {
        f"minimum of table {one.table_id} partition {one.partition}": one.minimum
        for one in report.partitions
        if not UNDEFINED <= one.minimum <= MAXIMUM
    }
    for least, times in ((MINIMUM, defined), (UNDEFINED, optional)):
        for name, value in times.items():
            if not least <= value <= MAXIMUM:
                yield f"{name} {value} is no hybrid timestamp: {least} to {MAXIMUM}"
    numbers = [one.index_id for one in report.index_builds] + [one.zone_id for one in report.rebalances]
    numbers += [min(one.table_id, one.partition) for one in report.partitions if one.table_id < 0 or one.partition < 0]
    if negative := [number for number in numbers if number < 0]:
        yield f"an id or partition is {negative[0]}: they are not negative"


def _texts(report: Report) -> Iterator[str]:
    for name, text in (("name", report.name), ("subject", report.subject)):
        if not 1 <= len(text) <= LONGEST_TEXT or not text.isprintable():
            yield f"{name} is not 1 to {LONGEST_TEXT} printable characters"


def _unique(report: Report) -> Iterator[str]:
    for name, keys in (
        ("partition", [(one.table_id, one.partition) for one in report.partitions]),
        ("index build", [one.index_id for one in report.index_builds]),
        ("rebalance of zone", [one.zone_id for one in report.rebalances]),
    ):
        if (twice := _repeated(keys)) is not None:
            yield f"{name} {twice} is reported twice"


def _ready(report: Report) -> Iterator[str]:
    undefined = report.low_watermark == UNDEFINED or any(one.minimum == UNDEFINED for one in report.partitions)
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
