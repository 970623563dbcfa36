"""Blocks without rows: dropped when they are due, alone if need be, and merged with nothing that has rows."""

from __future__ import annotations

from compaction.blocks.planning.batches import NO_ROWS, QueuedBlock
from compaction.blocks.planning.offers import offer
from compaction.blocks.planning.queue import kept_apart
from stores.blocks.planning.queues import block, queue_of, ready, rules_of

RULES = rules_of(3, 2, age=36.0, span=100)


def empty(number: int, key: str = "A0", level: int = 0) -> QueuedBlock:
    return block(number, key, level, schema=NO_ROWS)


def test_a_lone_one_is_ready_when_it_is_due() -> None:
    queue = queue_of(empty(1), block(2, min_time=5), rules=RULES)
    assert ready(queue, 36.9) == []
    assert queue.next_due() == 37.0
    assert ready(queue, 37.0) == ["A0-L0{1}"]
    assert ready(queue, 1e6) == ["A0-L0{1}"], "the other one has nothing to be merged with"


def test_many_are_dropped_by_one_job_and_no_block_with_rows_is_in_it() -> None:
    queue = queue_of(empty(1), block(2), empty(3), empty(4, "B0"), empty(5), rules=RULES)
    assert ready(queue, 6.0) == ["A0-L0{1,3,5}"], "three are a full batch"
    assert ready(queue, 50.0) == ["A0-L0{1,3,5}", "B0-L0{4}"]


def test_those_of_the_highest_level_that_is_merged_go_too() -> None:
    assert ready(queue_of(empty(1, level=1), rules=RULES), 50.0) == ["A0-L1{1}"]


def test_one_that_a_job_has_is_offered_to_the_planner_like_any_batch() -> None:
    queue = queue_of(empty(1), rules=RULES)
    (candidate,) = offer(queue, now=50.0, sensed_at=0.0).candidates
    assert (candidate.groups[0].sources, candidate.level) == (("1",), 0)
    queue.hold(candidate.target, 0, ["1"])
    assert [candidate.target for candidate in offer(queue, now=50.0, sensed_at=0.0).candidates] == [candidate.target]


def test_they_are_in_no_conflict_of_schemas() -> None:
    queue = queue_of(empty(1), block(2, schema="a"), rules=RULES)
    queue.advance(10.0)
    assert kept_apart(queue) == ()
