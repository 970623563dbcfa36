"""The minimum of a report and its cause; and reports that contradict themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.descriptors import MAXIMUM, MINIMUM
from compaction.catalogs.participants.reports import (
    Cause,
    IndexBuild,
    PartitionReport,
    Rebalance,
    ReportRule,
    Required,
    Role,
    contradictions,
    required,
)
from support.catalogs.participants import REPORT, report

PARTITION = PartitionReport(5, 3, Role.PRIMARY, 90)


@pytest.mark.parametrize(
    ("watermark", "partitions", "rebalances", "expected"),
    [
        (100, (), (), Required(100, Cause.LOW_WATERMARK, "low watermark")),
        (100, (PARTITION,), (), Required(90, Cause.PARTITION, "table 5 partition 3")),
        (80, (PARTITION,), (), Required(80, Cause.LOW_WATERMARK, "low watermark")),
        (100, (PARTITION,), (Rebalance(2, 70, 71),), Required(70, Cause.REBALANCE, "zone 2")),
        (UNDEFINED, (PARTITION,), (), Required(MINIMUM, Cause.NOT_READY, "low watermark")),
        (100, (PARTITION, replace(PARTITION, partition=4, minimum=UNDEFINED)), (Rebalance(2, 70, 71),),
         Required(MINIMUM, Cause.NOT_READY, "table 5 partition 4")),
    ],
)  # fmt: skip
def test_the_smallest_counts_and_is_named(watermark: int, partitions: Any, rebalances: Any, expected: Required) -> None:
    assert required(watermark, partitions, rebalances) == expected


@given(
    st.integers(0, 20),
    st.lists(st.integers(0, 20), max_size=4),
    st.lists(st.integers(1, 20), max_size=3),
)
def test_nothing_is_needed_from_before_the_minimum(watermark: int, published: list[int], moving: list[int]) -> None:
    partitions = [PartitionReport(1, number, Role.REPLICA, item) for number, item in enumerate(published)]
    found = required(watermark, partitions, [Rebalance(number, item, item) for number, item in enumerate(moving)])
    every = [watermark, *published, *moving]
    assert found.minimum == max(MINIMUM, min(every) if all(every) else MINIMUM)
    assert (found.cause is Cause.NOT_READY) == (UNDEFINED in every)


def test_an_honest_report_contradicts_nothing() -> None:
    assert list(contradictions(REPORT)) == []
    assert list(contradictions(report(minimum=MINIMUM, cause=Cause.NOT_READY, low_watermark=UNDEFINED))) == []


@pytest.mark.parametrize(
    ("changes", "rule", "what"),
    [
        ({"clock": -1}, ReportRule.TIMES, "clock -1 is no hybrid timestamp"),
        ({"minimum": 0}, ReportRule.TIMES, "minimum 0"),
        ({"checkpoint": MAXIMUM + 1}, ReportRule.TIMES, "checkpoint"),
        ({"index_builds": (IndexBuild(4, 0),)}, ReportRule.TIMES, "since of index 4"),
        ({"rebalances": (Rebalance(-4, 95, 95),)}, ReportRule.TIMES, "-4"),
        ({"name": ""}, ReportRule.TEXTS, "name is not"),
        ({"subject": "a\nb"}, ReportRule.TEXTS, "subject is not"),
        ({"name": "x" * 201}, ReportRule.TEXTS, "name is not"),
        ({"partitions": (PARTITION, PARTITION)}, ReportRule.UNIQUE, "partition (5, 3) is reported twice"),
        ({"index_builds": (IndexBuild(4, 9), IndexBuild(4, 8))}, ReportRule.UNIQUE, "index build 4"),
        ({"rebalances": (Rebalance(4, 95, 95), Rebalance(4, 95, 95))}, ReportRule.UNIQUE, "zone 4"),
        ({"low_watermark": 0, "minimum": 1}, ReportRule.NOT_READY, "the cause is Partition"),
        ({"cause": Cause.NOT_READY}, ReportRule.NOT_READY, "the minimum is 90"),
        ({"minimum": 91}, ReportRule.COVERS, "later than 90 of table 5 partition 3"),
        ({"low_watermark": 80}, ReportRule.COVERS, "later than 80 of low watermark"),
        ({"rebalances": (Rebalance(4, 70, 95),)}, ReportRule.COVERS, "later than 70 of zone 4"),
        ({"transactions": 201, "oldest_transaction": 0}, ReportRule.TRANSACTIONS, "later than the clock"),
        ({"transactions": 161}, ReportRule.TRANSACTIONS, "later than the oldest"),
    ],
)
def test_a_contradiction_is_named_by_its_rule(changes: dict[str, Any], rule: ReportRule, what: str) -> None:
    found = list(contradictions(report(**changes)))
    assert rule in {item.rule for item in found}
    assert any(what in item.what for item in found), found
