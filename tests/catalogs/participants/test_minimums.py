"""Published minimums: undefined at first, only larger afterwards, and only what a checkpoint holds."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from compaction.api.catalog.reasons import UNDEFINED
from compaction.catalogs.participants.reference import Checkpoint, PartitionKey, PublishedMinimums

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
