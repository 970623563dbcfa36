"""Blocks for tests of the queue, and what the queue should hold, said in the most naive way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compaction.blocks.planning.batches import BlockBatch, BlockClass, BlockReason, BlockRules, LevelRule, QueuedBlock
from compaction.blocks.planning.queue import BlockQueue

NO_AGE = 1e9
"""Seconds that no test waits: batches are ready when they are full."""


def block(number: int, key: str = "A0", level: int = 0, *, at: float | None = None, **more: int | str) -> QueuedBlock:
    """Block `number` of a key such as B2: tenant B, shard 2. It arrives at `number` unless `at` says
    otherwise. `schema`: blocks of others are not merged with it.
    """
    return QueuedBlock(
        id=str(more.get("id", number)),
        kin=BlockClass(key[0], int(key[1:]), str(more.get("schema", ""))),
        level=level,
        bytes=int(more.get("bytes", 1)),
        min_time=int(more.get("min_time", 0)),
        arrived=float(number) if at is None else at,
        number=number,
    )


def rules_of(*counts: int, age: float = NO_AGE, **more: int | bool) -> BlockRules:
    """Levels of so many blocks; the configuration C of docs/design/blocks.md#scenarios-of-the-planner is (3, 2, 2)."""
    size = int(more.pop("bytes", 0))
    return BlockRules(tuple(LevelRule(count, age, size) for count in counts or (3, 2, 2)), **{"span": 0, **more})  # type: ignore[arg-type]


def queue_of(*blocks: QueuedBlock, rules: BlockRules | None = None) -> BlockQueue:
    queue = BlockQueue(rules or rules_of())
    queue.push_all(blocks)
    return queue


def ids(batch: BlockBatch) -> tuple[str, ...]:
    return tuple(item.id for item in batch.blocks)


def ready(queue: BlockQueue, now: float = 1000.0, **more: object) -> list[str]:
    """The ready batches in order, such as `A1-L0{2,3,5}`."""
    return [
        f"{batch.group.key[0].tenant}{batch.group.key[0].shard}-L{batch.level}{{{','.join(ids(batch))}}}"
        for batch in queue.ready(now, **more)  # type: ignore[arg-type]
    ]


Found = tuple[int, tuple[str, ...], float | None]
"""A batch: its level, its blocks in order, since when it is ready."""


def found(queue: BlockQueue) -> set[Found]:
    """The batches that the queue has, as of its last look."""
    return {(batch.level, ids(batch), batch.ready[0] if batch.ready else None) for batch in queue.batches()}


@dataclass
class _Open:
    level: int
    since: float
    blocks: list[QueuedBlock] = field(default_factory=list)
    ready: float | None = None
    rang: bool = False


def expected(rules: BlockRules, blocks: Iterable[QueuedBlock], now: float) -> set[Found]:
    """The batches that there should be, from nothing but the blocks that wait and the time."""
    groups: dict[tuple[BlockClass, int], list[QueuedBlock]] = {}
    for item in blocks:
        groups.setdefault((item.kin, rules.window_of(item.min_time)), []).append(item)
    return {batch for group in groups.values() for batch in _batches(rules, group, now)}


def _batches(rules: BlockRules, blocks: list[QueuedBlock], now: float) -> set[Found]:
    batches: list[_Open] = []
    current: dict[int, _Open] = {}

    def lone_may_climb(batch: _Open) -> int | None:
        level = rules.level_of(batch.level + 1, batch.blocks[0].bytes)
        return None if isinstance(level, BlockReason) else level

    def end_of_waiting(batch: _Open, at: float) -> None:
        if batch.ready is not None:
            return
        if len(batch.blocks) > 1 or not rules.strict_gain:
            batch.ready = at
        elif (level := lone_may_climb(batch)) is not None:
            batches.remove(batch)
            current.pop(batch.level, None)
            put(batch.blocks[0], level, at)

    def put(one: QueuedBlock, level: int, at: float) -> None:
        batch, limit = current.get(level), rules.max_bytes_per_job
        if batch is not None and limit and sum(b.bytes for b in batch.blocks) + one.bytes > limit:
            del current[level]
            end_of_waiting(batch, at)
            batch = None
        if batch is None:
            batch = current[level] = _Open(level, at)
            batches.append(batch)
        batch.blocks.append(one)
        rule = rules.levels[level]
        full = len(batch.blocks) >= rule.max_blocks or 0 < rule.max_bytes <= sum(b.bytes for b in batch.blocks)
        if full:
            del current[level]
        if batch.ready is None and (full or batch.rang):
            batch.ready = at

    def ring(until: float) -> None:
        while True:
            waiting = [(b.since + rules.levels[b.level].max_age, b.level) for b in current.values() if not b.rang]
            if not waiting or min(waiting)[0] > until:
                return
            at, level = min(waiting)
            current[level].rang = True
            end_of_waiting(current[level], at)

    for item in sorted(blocks, key=lambda b: (b.arrived, b.number)):
        ring(item.arrived)
        level = rules.level_of(item.level, item.bytes)
        assert not isinstance(level, BlockReason)
        put(item, level, item.arrived)
    ring(now)
    return {(b.level, tuple(item.id for item in b.blocks), b.ready) for b in batches}
