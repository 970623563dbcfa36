"""The planner's scenarios of docs/design/blocks.md, row by row, with our outcome where it differs by design.

The differences:

* Batches become ready by their timers, not by the next push on the level (P8, P16).
* A hole is filled from what came behind it: batches depend on what waits, not on what was here before (P6, P11).
* Tenants take turns inside a level (P2). Within a tenant the order is that of the reference.
* Windows of time are aligned, and are about the data, not about when a block was made (P9).
* Limits of bytes belong to each level, also to level 0; a block that is large enough skips the level (P25).
* Names are made by the planner that all stores share. What rows say about stores and metrics (P18 to P23) belongs to
  the index: here it is that the queue is filled again in any order of calls and counts what it has.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from blocks.planning.queues import block, ids, queue_of, ready, rules_of
from compaction.blocks.planning.batches import NO_ROWS, BlockClass, BlockReason, BlockRules, QueuedBlock
from compaction.blocks.planning.offers import offer
from compaction.blocks.planning.queue import BlockQueue, Waits, figures_of, kept_apart
from compaction.core.planning.planner import JobInventory, Plan, PlanLimits, Planner, PlanTrigger

# The planner's scenarios of docs/design/blocks.md, row by row, with our outcome where it differs by design.
#
# The differences:
#
# * Batches become ready by their timers, not by the next push on the level (P8, P16).
# * A hole is filled from what came behind it: batches depend on what waits, not on what was here before (P6, P11).
# * Tenants take turns inside a level (P2). Within a tenant the order is that of the reference.
# * Windows of time are aligned, and are about the data, not about when a block was made (P9).
# * Limits of bytes belong to each level, also to level 0; a block that is large enough skips the level (P25).
# * Names are made by the planner that all stores share. What rows say about stores and metrics (P18 to P23) belongs
#   to the index: here it is that the queue is filled again in any order of calls and counts what it has.

P1 = [block(n, key) for n, key in enumerate(["A0", "B2", "A1", "A1", "B2", "A1", "B2", "A0", "A1", "A0", "B2", "A1"])]
P2 = [*P1, block(12, "B2"), block(13, "A1"), block(14, "B2")]


def plan(queue: BlockQueue, *, now: float = 1000.0, inventory: JobInventory | None = None) -> Plan:
    planner = Planner("blocks", "uid", PlanLimits(1 << 60, 1000), PlanTrigger())
    offered = offer(queue, now=now, sensed_at=0.0)
    return planner.plan(offered.candidates, {}, inventory or JobInventory(), now=now, left_out=offered.left_out)


def test_p1_jobs_in_the_order_in_which_batches_are_full() -> None:
    assert ready(queue_of(*P1)) == ["A1-L0{2,3,5}", "B2-L0{1,4,6}", "A0-L0{0,7,9}"]


def test_p2_a_second_plan_repeats_the_first_and_adds() -> None:
    """The reference has A1{8,11,13} before B2{10,12,14}: here tenant A has had two turns by then, B one."""
    queue = queue_of(*P1)
    first = plan(queue)
    queue.push_all(P2[12:])
    again = ready(queue)
    assert again == ["A1-L0{2,3,5}", "B2-L0{1,4,6}", "A0-L0{0,7,9}", "B2-L0{10,12,14}", "A1-L0{8,11,13}"]
    assert {job.name for job in first.jobs} <= {job.name for job in plan(queue).jobs}


def test_p2_of_one_tenant_is_in_the_order_of_the_reference() -> None:
    shards = {"A0": 0, "A1": 1, "B2": 2}
    queue = queue_of(*(item._replace(kin=BlockClass("T", shards[f"{item.kin.tenant}{item.kin.shard}"])) for item in P2))
    assert ready(queue) == ["T1-L0{2,3,5}", "T2-L0{1,4,6}", "T0-L0{0,7,9}", "T1-L0{8,11,13}", "T2-L0{10,12,14}"]


def test_p3_lower_levels_first() -> None:
    queue = queue_of(block(0, "B2", 1), block(1, "A1"), block(2, "A1"), block(3, "B2", 1), block(4, "A1"))
    assert ready(queue) == ["A1-L0{1,2,4}", "B2-L1{0,3}"]


def test_p4_nothing_then_one_then_a_job() -> None:
    queue = queue_of()
    assert ready(queue) == []
    queue.push(block(0, level=1))
    assert ready(queue) == []
    queue.push(block(1, level=1))
    assert ready(queue) == ["A0-L1{0,1}"]


P5 = [block(n, "A1" if n % 2 == 0 else "B2") for n in range(6)]


def test_p5_a_batch_that_lost_blocks_is_not_full_any_more() -> None:
    queue = queue_of(*P5)
    assert queue.remove(["0", "4"]) == 2
    assert ready(queue) == ["B2-L0{1,3,5}"]


def test_p6_a_hole_is_filled_from_what_comes() -> None:
    """The reference has A first, whose place in the line was taken by blocks that are gone. Here A is ready since 7."""
    queue = queue_of(*P5)
    queue.remove(["0", "4"])
    queue.push_all(block(n, "A1") for n in (6, 7, 8))
    assert ready(queue) == ["B2-L0{1,3,5}", "A1-L0{2,6,7}"]


def test_p7_nothing_is_left_of_a_batch_without_blocks() -> None:
    queue = queue_of(*(block(n) for n in range(3)))
    queue.remove(["2", "0", "1"])
    assert ready(queue) == []
    assert len(queue) == 0


P8 = [block(1, "A1", at=10), block(2, "B0", at=20), block(3, "A1", at=30)]


def test_p8_by_time() -> None:
    """The reference leaves 3 where it is, for want of a push that would flush it. Ours are due at 15 and 25; what comes
    before a job is made of a batch joins it.
    """
    queue = queue_of(*P8[:1], rules=rules_of(5, age=5, strict_gain=False))
    assert queue.next_due() == 15
    assert ready(queue, 14.9) == []
    assert ready(queue, 15) == ["A1-L0{1}"]
    queue.push_all(P8[1:])
    assert ready(queue, 40) == ["A1-L0{1,3}", "B0-L0{2}"]
    queue.hold("job", 0, ["1", "3"])
    assert ready(queue, 40) == ["B0-L0{2}"]


def test_p8_with_strict_gain_no_job_of_a_single_block() -> None:
    """They climb through all levels without being rewritten, and wait at the highest for company."""
    queue = queue_of(*P8, rules=rules_of(5, 5, 5, age=5))
    assert ready(queue, 39) == []
    reasons = {row.reason: (row.count, row.example) for row in queue.left_alone()}
    assert reasons == {BlockReason.NOTHING_TO_MERGE_WITH: (2, "1"), BlockReason.WAITING_FOR_MORE: (1, "3")}
    assert ready(queue, 40) == ["A1-L2{1,3}"], "3 has climbed to where 1 waits"
    assert [(row.count, row.example) for row in queue.left_alone()] == [(1, "2")]
    queue.push(block(4, "B0", level=2, at=70))
    assert "B0-L2{2,4}" in ready(queue, 70), "company has come, and its time is over already"


def test_p9_time_split() -> None:
    second, hours = 1_000_000, 3600 * 1_000_000
    times = [n * 15 * second for n in range(10)] + [6 * hours + n * 15 * second for n in range(5)]
    queue = queue_of(*(block(n, at=t / 1e6, min_time=t) for n, t in enumerate(times)), rules=BlockRules())
    assert [len(ids(batch)) for batch in queue.ready(1e6)] == [10, 5]


def test_p10_removing_what_is_staged_leaves_what_is_ready() -> None:
    queue = queue_of(*(block(n, "A0") for n in range(3)), block(3, "B0"), block(4, "B0"))
    queue.remove(["3", "4"])
    assert ready(queue) == ["A0-L0{0,1,2}"]
    assert ready(queue) == ["A0-L0{0,1,2}"], "exactly one, however often it is asked for"


def test_p11_push_and_flush() -> None:
    """In the reference 3 stays in a batch of its own; here 4 and 5, which came behind, fill the holes."""
    queue = queue_of(*(block(n) for n in (1, 2, 3)))
    assert ready(queue) == ["A0-L0{1,2,3}"]
    queue.push_all([block(4), block(5)])
    assert {row.reason: row.count for row in queue.left_alone()} == {BlockReason.WAITING_FOR_MORE: 2}
    queue.remove(["1", "2"])
    assert ready(queue) == ["A0-L0{3,4,5}"]
    queue.remove(["3"])
    assert ready(queue) == []
    queue.push_all([block(6), block(7)])
    assert ready(queue) == ["A0-L0{4,5,6}"]
    assert {row.reason: (row.count, row.example) for row in queue.left_alone()} == {
        BlockReason.WAITING_FOR_MORE: (1, "7")
    }


def test_p12_duplicate() -> None:
    queue = queue_of()
    assert queue.push(block(1))
    assert not queue.push(block(1))
    assert len(queue) == 1


def test_p13_removing_what_is_unknown() -> None:
    queue = queue_of()
    assert queue.remove(["1"]) == 0
    queue.push(block(1))
    assert queue.remove(["2"]) == 0
    queue.push_all([block(2), block(3)])
    assert ready(queue) == ["A0-L0{1,2,3}"]


def test_p14_looking_changes_nothing() -> None:
    queue = queue_of(*(block(n) for n in range(1, 7)), rules=rules_of(2))
    for _ in range(3):
        assert ready(queue) == ["A0-L0{1,2}", "A0-L0{3,4}", "A0-L0{5,6}"]
    queue.push(block(7))
    queue.remove(["7"])
    assert len(ready(queue)) == 3
    for name in "324165":
        queue.remove([name])
    assert ready(queue) == []
    assert len(queue) == 0


def test_p15_drain() -> None:
    queue = queue_of(*(block(n, f"A{n % 50}") for n in range(5000)))
    names = [str(n) for n in range(5000)]
    random.Random(15).shuffle(names)
    for place, name in enumerate(names):
        assert queue.remove([name]) == 1
        if place % 500 == 0:
            queue.ready(1e6)
    assert (ready(queue), len(queue), queue.ready_size) == ([], 0, 0)
    assert queue._groups == {}, "no key is left"


def test_p16_flush_by_age() -> None:
    """The reference flushes 1 to 4 while 5 is pushed; 1 and 2 together, because the push of 2 flushes both. Here each
    is due one second after it came, and whoever comes later joins what no job was made of.
    """
    pushed = [(1, "A1", 5), (2, "A1", 15), (3, "A0", 30), (4, "A0", 35), (5, "B0", 40)]
    rules = rules_of(3, 5, age=1, strict_gain=False)
    queue = queue_of(*(block(n, key, 1, at=at) for n, key, at in pushed), rules=rules)
    assert ready(queue, 40) == ["A1-L1{1,2}", "A0-L1{3,4}"]
    assert ready(queue, 41) == ["A1-L1{1,2}", "B0-L1{5}", "A0-L1{3,4}"]
    for name, left in (("5", 2), ("4", 2), ("3", 1), ("1", 1), ("2", 0)):
        queue.remove([name])
        queue.advance(41)
        assert len(queue._groups) == left


def test_p17_two_keys_alternate() -> None:
    queue = queue_of(*(block(n, f"A{n % 2}") for n in range(20)))
    found = [ids(batch) for batch in queue.ready(100)]
    numbers = ["0 2 4", "1 3 5", "6 8 10", "7 9 11", "12 14 16", "13 15 17"]
    assert found == [tuple(row.split()) for row in numbers]


@pytest.mark.parametrize("_again", range(2))
def test_p18_a_block_that_could_not_be_stored_is_not_queued(_again: int) -> None:
    """Storing is the index's: it registers and enqueues in one transaction, and the queue is told afterwards. What it
    was told in vain is taken back by `remove`, and can come again.
    """
    queue = queue_of(block(0))
    queue.push(block(1))
    assert queue.remove(["1"]) == 1
    assert queue.push(block(1))


def test_p19_apply() -> None:
    queue = queue_of(*(block(n) for n in range(10)))
    for _ in range(2):
        planned = plan(queue)
        assert [job.groups[0].sources for job in planned.jobs] == [tuple("012"), tuple("345"), tuple("678")]
    for job in planned.jobs:
        assert queue.hold(job.target, job.level, job.groups[0].sources) == 3
        assert queue.hold(job.target, job.level, job.groups[0].sources) == 0, "applied again"
    exists = JobInventory(names=frozenset(job.name for job in planned.jobs))
    assert plan(queue, inventory=exists).jobs == ()
    assert sum(queue.remove(job.groups[0].sources) for job in planned.jobs) == 9
    assert sum(queue.remove(job.groups[0].sources) for job in planned.jobs) == 0
    assert plan(queue).jobs == ()
    assert len(queue) == 1


def test_p20_restore() -> None:
    assert ready(queue_of(*(block(n) for n in range(4)))) == ["A0-L0{0,1,2}"]


def test_p21_what_is_restored_is_in_the_order_of_arrival() -> None:
    blocks = [block(n) for n in range(1000)]
    queue = queue_of(*blocks, rules=rules_of(10))
    queue.remove(str(n) for n in range(0, 1000, 4))
    left = [str(n) for n in range(1000) if n % 4]
    assert [name for batch in queue.ready(1e6) for name in ids(batch)] == left
    shuffled = [item for item in blocks if item.id in queue]
    random.Random(21).shuffle(shuffled)
    assert ready(queue_of(*shuffled, rules=rules_of(10)), 1e6) == ready(queue, 1e6), "however it is told"


def test_p22_p23_counts_are_those_of_what_is_there() -> None:
    """A0 three times and A1 once at level 0, B0 three times at level 1: 7 blocks, 3 keys, 2 batches that are ready.
    The reference counts twice after a restore; here there is nothing that could be counted twice.
    """
    blocks = [block(n) for n in range(3)] + [block(3, "A1")] + [block(n, "B0", 1) for n in range(4, 7)]
    for queue in (queue_of(*blocks, rules=rules_of(3, 3)), queue_of(*blocks, *blocks, rules=rules_of(3, 3))):
        assert len(ready(queue)) == queue.ready_size == 2
        assert (len(queue), len({batch.group.key for batch in queue.batches()})) == (7, 3)


def sized(sizes: list[int], level: int = 1) -> list[QueuedBlock]:
    return [block(n, level=level, bytes=size) for n, size in enumerate(sizes, start=1)]


def by_bytes(count: int, size: int) -> BlockRules:
    """Level 0 without a limit of bytes, as the reference has it; level 1 with one."""
    free, limited = rules_of(count).levels[0], rules_of(count, bytes=size).levels[0]
    return BlockRules((free, limited), span=0, strict_gain=False)


@pytest.mark.parametrize(
    ("row", "sizes", "rules", "level", "jobs"),
    [
        ("P24", [40, 40, 40, 10], by_bytes(4, 100), 1, ["A0-L1{1,2,3}"]),
        # The reference makes a job of the large block alone; here it needs none: it is at its goal already.
        ("P25", [500, 10], by_bytes(2, 100), 1, []),
        ("P26", [1000, 1000], by_bytes(2, 10), 0, ["A0-L0{1,2}"]),
        ("P27", [0, 40, 40, 40, 10, 10], by_bytes(6, 100), 1, ["A0-L1{1,2,3,4}"]),
        ("P28, 3/10 of 10/100", [4, 3, 3], by_bytes(10, 100), 1, []),
        ("P28, 5/10 of 5/1000", [2, 2, 2, 2, 2], by_bytes(5, 1000), 1, ["A0-L1{1,2,3,4,5}"]),
        ("P28, 2/150 of 100/100", [75, 75], by_bytes(100, 100), 1, ["A0-L1{1,2}"]),
        ("P28, L0 1/1e6 of 100/10", [1_000_000], by_bytes(100, 10), 0, []),
        ("P28, L1 1/1e6 of 100/0", [1_000_000], by_bytes(100, 0), 1, []),
    ],
)
def test_p24_to_p28_by_bytes(row: str, sizes: list[int], rules: BlockRules, level: int, jobs: list[str]) -> None:
    assert ready(queue_of(*sized(sizes, level), rules=rules)) == jobs, row


def test_p25_a_large_block_skips_its_level() -> None:
    """Level 0 is done with 100 bytes, level 1 with 1000: 500 bytes are merged with what comes out of level 0."""
    rules = rules_of(2, 2)
    low, high = rules.levels
    rules = replace(rules, levels=(replace(low, max_bytes=100), replace(high, max_bytes=1000)))
    queue = queue_of(block(1, bytes=500), block(2, bytes=10), block(3, level=1, bytes=10), rules=rules)
    assert ready(queue) == ["A0-L1{1,3}"]


def test_what_is_large_enough_for_all_levels_is_left_alone() -> None:
    """A size-capped output that is selected for ever (docs/design/blocks.md#levels) cannot be."""
    queue = queue_of(block(1, level=1, bytes=1000), block(2, level=9), rules=rules_of(2, 2, bytes=1000))
    assert {row.reason: row.example for row in queue.left_alone()} == {
        BlockReason.LARGE_ENOUGH: "1",
        BlockReason.HIGHEST_LEVEL: "2",
    }
    assert queue.remove(["1", "2"]) == 2
    assert queue.left_alone() == ()


def test_a_job_never_has_more_than_it_may() -> None:
    rules = rules_of(4, max_bytes_per_job=9)
    queue = queue_of(*(block(n, bytes=size) for n, size in enumerate((4, 4, 5))), rules=rules)
    assert ready(queue) == ["A0-L0{0,1}"]
    queue.remove(["2"])
    queue.push(block(3, bytes=1))
    queue.advance(10)
    assert {ids(batch) for batch in queue.batches()} == {("0", "1", "3")}, "what was too much is gone: there is room"


# Blocks without rows: dropped when they are due, alone if need be, and merged with nothing that has rows.

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


# What is kept apart by schemas, and what a queue holds: said as of the last look, from batches and jobs alike.


def of(schemas: str, *, key: str = "A0", start: int = 0, **more: int) -> list[QueuedBlock]:
    """A block for each letter, whose schema it is."""
    return [block(start + n, key, schema=schema, **more) for n, schema in enumerate(schemas)]


def apart(queue: BlockQueue, now: float = 1000.0) -> list[tuple[str, int, str, int, int]]:
    queue.advance(now)
    return [
        (item.tenant, item.shard, "".join(sorted(kin.schema for kin in item.classes)), item.blocks, item.alone)
        for item in kept_apart(queue)
    ]


def test_blocks_of_a_class_are_merged_and_of_two_are_not() -> None:
    queue = queue_of(*of("xyxyxy"), rules=rules_of(3))
    assert [[item.kin.schema for item in batch.blocks] for batch in queue.ready(1000.0)] == [["x"] * 3, ["y"] * 3]
    assert apart(queue) == [("A", 0, "xy", 6, 0)]


def test_one_class_is_nothing_to_tell() -> None:
    assert apart(queue_of(*of("xxx"), *of("yy", key="A1", start=3), *of("z", key="B0", start=9))) == []


def test_classes_of_two_windows_never_meet_and_are_not_told() -> None:
    queue = queue_of(*of("xx"), *of("yy", start=2, min_time=100), rules=rules_of(3, span=10))
    assert apart(queue) == []
    queue.push_all(of("y", start=4))
    assert apart(queue) == [("A", 0, "xy", 3, 0)]


def test_blocks_that_only_their_schemas_keep_from_a_merge_are_counted() -> None:
    queue = queue_of(*of("xyzz"), rules=rules_of(9, age=5.0))
    assert apart(queue, 1.0) == [("A", 0, "xyz", 4, 0)], "their time has not come"
    assert apart(queue) == [("A", 0, "xyz", 4, 2)], "z has company"
    assert apart(queue_of(*of("xyy"), rules=rules_of(9, age=5.0))) == [("A", 0, "xy", 3, 0)], "one alone has no other"


def test_blocks_of_jobs_count_too() -> None:
    queue = queue_of(*of("xxy"))
    queue.hold("lane", 0, ["0", "1"])
    assert apart(queue) == [("A", 0, "xy", 3, 0)]


def test_what_is_due_waits_or_is_in_a_job_by_level_and_tenant() -> None:
    blocks = [*(block(n) for n in range(5)), *(block(n, level=1) for n in (5, 6)), block(7, "B0")]
    queue = queue_of(*blocks, rules=rules_of(3, 9, age=50.0))
    queue.hold("lane", 1, ["5"])
    queue.advance(20.0)
    found = figures_of(queue)
    assert found.waits == {
        (0, "A"): Waits(blocks=5, due=3, bytes=5, oldest=0.0, next_due=53.0, missing=1),
        (0, "B"): Waits(blocks=1, bytes=1, oldest=7.0, next_due=57.0, missing=2),
        (1, "A"): Waits(blocks=2, in_jobs=1, bytes=2, oldest=5.0, next_due=56.0, missing=8),
    }
    assert figures_of(queue, tenant="B").waits.keys() == {(0, "B")}
    (row,) = [row for row in queue.left_alone() if row.reason is BlockReason.WAITING_FOR_MORE]
    assert (row.count, row.bytes, row.due, row.missing) == (4, 4, 53.0, 1)
    queue.advance(1000.0)
    assert (figures_of(queue, tenant="B").waits, figures_of(queue, tenant="B").alone) == ({}, 1)


def test_a_class_is_what_its_blocks_share() -> None:
    assert block(1, "B2", schema="x").kin == BlockClass("B", 2, "x")
