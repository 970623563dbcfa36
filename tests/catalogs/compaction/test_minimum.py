"""Each thing that a participant reports holds the required time by itself, whatever it has computed from the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from compaction.api.catalog.reasons import Reason
from compaction.catalogs.compaction.round import Round, required
from compaction.catalogs.model.descriptors import hybrid, later
from compaction.catalogs.participants.reports import Cause, PartitionReport, Rebalance, Report, Role
from support.catalogs.rounds import NOW, report, round_of

OLD = hybrid(5_000)
EARLY = later(OLD, 100)
IDLE = report("a", NOW, [PartitionReport(9, 0, Role.PRIMARY, NOW), PartitionReport(9, 1, Role.REPLICA, NOW)])
PARTITIONS = (PartitionReport(9, 0, Role.PRIMARY, NOW), PartitionReport(9, 1, Role.REPLICA, OLD))

PINNED: tuple[tuple[str, Report, Reason, str], ...] = (
    (
        "a transaction",
        replace(IDLE, transactions=OLD, oldest_transaction=EARLY),
        Reason.TRANSACTION,
        f"transaction {EARLY}",
    ),
    ("a replay", replace(IDLE, partitions=PARTITIONS), Reason.REPLAY, "partition 1 of table 9"),
    ("a rebalance", replace(IDLE, rebalances=(Rebalance(7, OLD, EARLY),)), Reason.REBALANCE, "zone 7"),
    ("readers", replace(IDLE, low_watermark=OLD), Reason.LOW_WATERMARK, ""),
    ("its own minimum", replace(IDLE, minimum=OLD, cause=Cause.PARTITION, subject="p"), Reason.REPLAY, "p"),
    ("its own watermark", replace(IDLE, minimum=OLD), Reason.LOW_WATERMARK, ""),
    ("its own rebalance", replace(IDLE, minimum=OLD, cause=Cause.REBALANCE, subject="z"), Reason.REBALANCE, "z"),
)


def beside_others(one: Report, others: Iterable[str] = ("0", "b", "c")) -> Round:
    return round_of([*(replace(IDLE, name=name) for name in others), one])


@pytest.mark.parametrize(("report", "reason", "subject"), [row[1:] for row in PINNED], ids=[row[0] for row in PINNED])
def test_each_restriction_holds_the_required_time_by_itself(report: Report, reason: Reason, subject: str) -> None:
    pin = required(beside_others(report))
    assert (pin.time, pin.reason, pin.participant, pin.subject) == (OLD, reason, "a", subject)


def test_the_watermark_of_the_coordinator_holds_it_when_no_participant_does() -> None:
    pin = required(replace(beside_others(IDLE), low_watermark=OLD))
    assert (pin.time, pin.reason, pin.participant) == (OLD, Reason.LOW_WATERMARK, "")


def test_the_earliest_of_several_decides() -> None:
    rows = [replace(row[1], name=f"p{place}") for place, row in enumerate(PINNED)]
    earliest = later(OLD, -1)
    rows[2] = replace(rows[2], rebalances=(Rebalance(8, NOW, NOW), Rebalance(7, earliest, EARLY)))
    pin = required(round_of(rows))
    assert (pin.time, pin.participant, pin.subject) == (earliest, "p2", "zone 7")


def test_since_when_is_what_the_participant_reports() -> None:
    transaction, _, rebalance = (required(beside_others(row[1])) for row in PINNED[:3])
    assert (transaction.since, rebalance.since) == (EARLY, EARLY)
    checkpointed = required(beside_others(replace(PINNED[1][1], checkpoint=EARLY)))
    assert checkpointed.since == EARLY
