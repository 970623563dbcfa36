"""From which time on the catalog is needed, and who needs it (docs/design/catalog-compaction.md#required-time)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from compaction.api.catalog.reasons import PINS, UNDEFINED, Finding, Reason
from compaction.catalogs.compaction.round import Round
from compaction.catalogs.participants.report import Cause, Report

_PLACE: Final = attrgetter("minimum", "table_id", "partition")
_RANK: Final = {reason: place for place, reason in enumerate(PINS)}
_REASON_OF: Final = {
    Cause.LOW_WATERMARK: Reason.LOW_WATERMARK,
    Cause.PARTITION: Reason.REPLAY,
    Cause.REBALANCE: Reason.REBALANCE,
}


@dataclass(frozen=True, slots=True)
class Pin:
    """Who needs the catalog from `time` on, and why. `participant` is empty for the coordinator's own watermark.

    `since`: hybrid timestamp from which on it does, UNDEFINED when the report does not say.
    """

    time: int
    reason: Reason
    participant: str = ""
    subject: str = ""
    since: int = UNDEFINED

    def finding(self) -> Finding:
        """Why nothing was cut although there are versions to cut."""
        who = f"participant {self.participant}: " if self.participant else "the low watermark of the coordinator: "
        return Finding(self.reason, who + _WORDS[self.reason].format(self.subject), self.participant, self.subject)


_WORDS: Final = {
    Reason.LOW_WATERMARK: "readers may use the catalog from the watermark on; versions are cut as it moves",
    Reason.TRANSACTION: "{} is active and uses an old version; versions are cut when it has ended",
    Reason.REPLAY: "{} has published no later minimum; versions are cut after its next checkpoint",
    Reason.REBALANCE: "{} is rebalanced; versions are cut when its partitions have moved",
}


def required(round: Round) -> Pin:
    """The smallest of all times: nothing that a participant reports is left out, whatever minimum it computed itself.

    Of equal times the one that a user can act upon is named: a transaction before a replay, a rebalance, a watermark.
    """
    pins = [Pin(round.low_watermark, Reason.LOW_WATERMARK)]
    for answer in round.by_name.values():
        pins.extend(_pins(answer.report))
    return min(pins, key=lambda pin: (pin.time, _RANK[pin.reason], pin.participant, pin.subject))


def transactions_minimum(round: Round) -> int:
    """The time from which on read-write transactions need the catalog, to be published by every partition.

    A participant that joined after the round began is not asked; what it begins, it begins after the horizon.
    """
    return min(round.horizon, *(answer.report.transactions for answer in round.by_name.values()))


def _pins(report: Report) -> Iterator[Pin]:
    yield Pin(report.low_watermark, Reason.LOW_WATERMARK, report.name)
    if report.cause is not Cause.NOT_READY:
        yield Pin(report.minimum, _REASON_OF[report.cause], report.name, report.subject)
    # Without a transaction this is the participant's clock, which is past every watermark.
    subject = "a transaction" if report.oldest_transaction == UNDEFINED else f"transaction {report.oldest_transaction}"
    yield Pin(report.transactions, Reason.TRANSACTION, report.name, subject, report.oldest_transaction)
    if report.partitions:  # there may be thousands: only the one that counts becomes a pin
        first = min(report.partitions, key=_PLACE)
        place = f"partition {first.partition} of table {first.table_id}"
        yield Pin(first.minimum, Reason.REPLAY, report.name, place, report.checkpoint)
    for move in report.rebalances:
        yield Pin(move.minimum, Reason.REBALANCE, report.name, f"zone {move.zone_id}", move.since)
