"""What is kept apart by schemas, and what a queue holds: said as of the last look, from batches and jobs alike."""

from __future__ import annotations

from compaction.blocks.planning.batches import BlockClass, BlockReason, QueuedBlock
from compaction.blocks.planning.queue import BlockQueue, Waits, figures_of, kept_apart
from stores.blocks.planning.queues import block, queue_of, rules_of


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
