"""Published minimums: undefined at first, only larger afterwards, and only what a checkpoint holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.model.descriptors import MAXIMUM, MINIMUM
from compaction.catalogs.participants.reference import Checkpoint, PartitionKey, PublishedMinimums
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

ONE, TWO = PartitionKey(1, 0), PartitionKey(1, 1)


def test_collector() -> None:
    """empty; add p1,p2 -> 0,0; p1=1; p2=2; p1=2,p2=4; p1=3; p1=1 ignored (3); remove p2; record p2=1000 ignored;
    remove twice ok.
    """
    found = PublishedMinimums()
    assert found.snapshot() == {}
    found.add(ONE)
    found.add(TWO)
    assert found.snapshot() == {ONE: UNDEFINED, TWO: UNDEFINED}
    assert found.record(ONE, 1)
    assert found.snapshot() == {ONE: 1, TWO: UNDEFINED}
    found.record(TWO, 2)
    found.record(ONE, 2)
    found.record(TWO, 4)
    assert found.snapshot() == {ONE: 2, TWO: 4}
    found.record(ONE, 3)
    found.record(ONE, 1)
    assert found.snapshot() == {ONE: 3, TWO: 4}
    found.remove(TWO)
    assert not found.record(TWO, 1000)
    assert found.snapshot() == {ONE: 3}
    found.remove(TWO)


def test_adding_a_partition_again_makes_it_undefined() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.record(ONE, 5)
    found.add(ONE)
    assert found.snapshot() == {ONE: UNDEFINED}


def test_a_minimum_is_published_by_the_next_checkpoint_that_succeeds() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    running = found.begin_checkpoint()
    assert found.store(ONE, 7)
    running.succeed()
    assert found.snapshot() == {ONE: UNDEFINED}, "it began before the minimum was stored"
    running = found.begin_checkpoint()
    assert found.snapshot() == {ONE: UNDEFINED}, "it has not finished"
    running.succeed()
    assert found.snapshot() == {ONE: 7}


def test_a_checkpoint_that_fails_publishes_nothing_and_loses_nothing() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.store(ONE, 7)
    failed = found.begin_checkpoint()
    found.store(ONE, 5)
    failed.fail()
    assert found.snapshot() == {ONE: UNDEFINED}
    found.begin_checkpoint().succeed()
    assert found.snapshot() == {ONE: 7}


def test_a_checkpoint_publishes_what_was_stored_before_it_began_and_no_more() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.store(ONE, 5)
    running = found.begin_checkpoint()
    found.store(ONE, 9)
    running.succeed()
    assert found.snapshot() == {ONE: 5}
    found.begin_checkpoint().succeed()
    assert found.snapshot() == {ONE: 9}


def test_a_published_minimum_never_goes_back_and_a_failure_leaves_it() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.record(ONE, 7)
    found.store(ONE, 5)
    found.begin_checkpoint().succeed()
    assert found.snapshot() == {ONE: 7}, "an earlier minimum was stored later"
    found.store(ONE, 9)
    found.begin_checkpoint().fail()
    assert found.snapshot() == {ONE: 7}
    found.begin_checkpoint().succeed()
    assert found.snapshot() == {ONE: 9}


def test_a_checkpoint_of_a_partition_that_was_removed_meanwhile() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.store(ONE, 7)
    running = found.begin_checkpoint()
    found.remove(ONE)
    found.add(ONE)
    running.succeed()
    assert found.snapshot() == {ONE: UNDEFINED}, "the new one has replayed nothing"
    assert not found.store(TWO, 1)


def test_a_restart_keeps_partitions_and_forgets_what_they_published() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.record(ONE, 5)
    found.store(ONE, 9)
    running = found.begin_checkpoint()
    found.forget()
    running.succeed()
    found.begin_checkpoint().succeed()
    assert found.snapshot() == {ONE: UNDEFINED}


def test_a_checkpoint_ends_once() -> None:
    found = PublishedMinimums()
    found.add(ONE)
    found.store(ONE, 5)
    running = found.begin_checkpoint()
    running.fail()
    running.succeed()
    assert found.snapshot() == {ONE: UNDEFINED}


def test_a_copy_does_not_change() -> None:
    found = PublishedMinimums()
    found.add(TWO)
    copy = found.snapshot()
    found.add(ONE)
    found.record(TWO, 3)
    assert copy == {TWO: UNDEFINED}
    assert list(found.snapshot()) == [ONE, TWO]


STEPS = st.lists(st.tuples(st.sampled_from(["store", "begin", "succeed", "fail", "restart"]), st.integers(1, 50)))


@given(STEPS)
def test_what_is_published_was_stored_before_a_finished_checkpoint_and_only_grows(steps: list[tuple[str, int]]) -> None:
    found = PublishedMinimums()
    found.add(ONE)
    running: list[tuple[Checkpoint, int]] = []
    durable: dict[str, int] = defaultdict(int)
    stored = 0
    for kind, number in steps:
        before = found.snapshot()[ONE]
        if kind == "store":
            found.store(ONE, number)
            stored = max(stored, number)
        elif kind == "begin":
            running.append((found.begin_checkpoint(), stored))
        elif kind == "restart":
            found.forget()
            running.clear()
            stored = durable["most"] = before = 0
        elif running:
            checkpoint, held = running.pop(number % len(running))
            (checkpoint.succeed if kind == "succeed" else checkpoint.fail)()
            if kind == "succeed":
                durable["most"] = max(durable["most"], held)
        assert before <= found.snapshot()[ONE] <= durable["most"]


# The minimum of a report and its cause; and reports that contradict themselves.

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
