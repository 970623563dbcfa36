"""The queue that follows the index is the queue that a restart would read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from compaction.blocks.index.claims import claim, retire
from compaction.blocks.index.queued import Fault, quarantine, release
from compaction.blocks.index.registering import BlockReplacement, register, replace
from compaction.blocks.index.rows import read_schemas
from compaction.blocks.index.tables import IndexDatabase
from compaction.blocks.index.tombstones import RetentionPeriods, expire
from compaction.blocks.model import RowFingerprint
from compaction.blocks.planning.batches import BlockRules, LevelRule
from compaction.blocks.planning.offers import offer
from compaction.blocks.schema.classes import schema_of_text, schema_text
from compaction.blocks.waiting import LookUp, WaitingBlocks
from compaction.core.planning.debt import HeldJob
from compaction.storage.errors import ObjectStoreUnavailableError
from support.blocks.block_stores import NOON, SECOND, a_block, block_id
from support.timing import seeds

SCHEMAS = {
    name: schema_text(pa.schema([("ts", pa.timestamp(name[:2] if name != "more" else "ms")), (name, pa.bool_())]))
    for name in ("ms", "us", "more")
}
"""Of two units of time, and one with another column."""
RULES = BlockRules(levels=(LevelRule(3, 36.0), LevelRule(2, 720.0)), span=0)


def in_index(index: IndexDatabase) -> LookUp:
    """What the index says of schemas."""
    return lambda examples: {name: schema_of_text(text) for name, text in read_schemas(index, examples).items()}


def offered(waiting: WaitingBlocks, now: int) -> list[tuple[str, int, tuple[str, ...]]]:
    """(lane, level, blocks) of everything that is offered."""
    found = offer(waiting.queue, now=now / SECOND, sensed_at=0.0)
    return sorted((candidate.target, candidate.level, candidate.groups[0].sources) for candidate in found.candidates)


def reread(index: IndexDatabase, jobs: dict[str, HeldJob]) -> WaitingBlocks:
    fresh = WaitingBlocks(index, RULES, in_index(index))
    fresh.refresh(jobs.values())
    return fresh


class History:
    """Random things that happen to one store, and the jobs that exist in it."""

    def __init__(self, index: IndexDatabase, seed: int) -> None:
        self.index = index
        self.chance = random.Random(seed)
        self.now = NOON
        self.made = 0
        self.jobs: dict[str, HeldJob] = {}
        self.live: dict[str, int] = {}
        self.schemas: dict[str, str] = {}
        self.aside: set[str] = set()

    def step(self, waiting: WaitingBlocks) -> None:
        self.now += self.chance.randrange(20 * SECOND)
        moves = (self.arrive, self.arrive, self.plan, self.succeed, self.delete_job, self.damage, self.repair, self.age)
        self.chance.choice(moves)(waiting)

    def arrive(self, waiting: WaitingBlocks) -> None:
        numbers = range(self.made, self.made + self.chance.randrange(1, 5))
        self.made = numbers.stop
        chosen = [self.chance.choice(("ms", "ms", "us", "more")) for _ in numbers]
        blocks = [a_block(n, schema_id=name, schema=SCHEMAS[name]) for n, name in zip(numbers, chosen, strict=True)]
        register(self.index, blocks, now=self.now)
        self.schemas |= {block.id: block.schema_id for block in blocks}
        self.live |= dict.fromkeys(map(block_id, numbers), 0)

    def plan(self, waiting: WaitingBlocks) -> None:
        for lane, level, blocks in offered(waiting, self.now):
            if not any(job.target == lane for job in self.jobs.values()):
                self.jobs[f"job-{self.now}-{blocks[0]}"] = HeldJob(lane, level, blocks)

    def succeed(self, waiting: WaitingBlocks) -> None:
        if not self.jobs:
            return
        name = self.chance.choice(sorted(self.jobs))
        job = self.jobs.pop(name)
        if not all(block in self.live and block not in self.aside for block in job.sources):
            return
        claim(self.index, job=name, token=1, sources=job.sources, now=self.now, output_level=job.level + 1)
        number, self.made = self.made, self.made + 1
        contents = [a_block(self.number(block)).fingerprint for block in job.sources if self.live[block] == 0]
        total = sum(contents, RowFingerprint())
        if len(contents) != len(job.sources):
            retire(self.index, name, now=self.now)  # outputs of outputs: their content is not kept here
            return
        kin = {self.schemas.get(block, "ms") for block in job.sources}
        assert "us" not in kin or kin == {"us"}, "blocks of two classes in one job"
        made = {"schema_id": max(kin), "schema": SCHEMAS[max(kin)]}
        output = a_block(number, level=job.level + 1, rows=total.rows, fingerprint=total, **made)
        self.schemas[output.id] = output.schema_id
        result = BlockReplacement(name, 1, tuple(job.sources), (output,), "done")
        replace(self.index, result, clock=lambda: self.now)
        for block in job.sources:
            del self.live[block]
        self.live[output.id] = job.level + 1

    @staticmethod
    def number(block: str) -> int:
        return next(number for number in range(10_000) if block_id(number) == block)

    def delete_job(self, waiting: WaitingBlocks) -> None:
        if self.jobs:
            del self.jobs[self.chance.choice(sorted(self.jobs))]

    def damage(self, waiting: WaitingBlocks) -> None:
        if sound := sorted(self.live.keys() - self.aside):
            block = self.chance.choice(sound)
            self.aside.add(block)
            quarantine(self.index, {block: Fault("Corrupt", "bad")}, now=self.now)

    def repair(self, waiting: WaitingBlocks) -> None:
        if self.aside:
            block = self.chance.choice(sorted(self.aside))
            self.aside.discard(block)
            release(self.index, block, now=self.now)

    def age(self, waiting: WaitingBlocks) -> None:
        rule = RetentionPeriods(default=(self.made - 5) * SECOND) if self.chance.random() < 0.2 else RetentionPeriods()
        for gone in expire(self.index, rule, clock=lambda: NOON + 2 * self.made * SECOND):
            self.live.pop(gone.block, None)
            self.aside.discard(gone.block)


@pytest.mark.parametrize("seed", seeds(16))
def test_a_queue_that_follows_is_the_one_that_is_read(index: IndexDatabase, seed: int) -> None:
    history = History(index, seed)
    waiting = WaitingBlocks(index, RULES, in_index(index))
    for _ in range(40):
        history.step(waiting)
        waiting.refresh(history.jobs.values())
        assert offered(waiting, history.now) == offered(reread(index, history.jobs), history.now)
        held = [block for job in waiting.queue.held.values() for block in job.blocks]
        assert len(held) == len(set(held))
    assert history.made > 10


def test_a_block_of_a_job_is_offered_in_no_other(index: IndexDatabase) -> None:
    register(index, [a_block(number) for number in range(6)], now=NOON)
    waiting = WaitingBlocks(index, RULES, in_index(index))
    waiting.refresh(())
    (first, second) = offered(waiting, NOON)
    jobs = {"job": HeldJob(first[0], 0, first[2])}
    waiting.refresh(jobs.values())
    assert offered(waiting, NOON) == [first, second]
    assert list(waiting.queue.held) == [first[0]]
    waiting.refresh(())
    assert not waiting.queue.held
    assert offered(waiting, NOON) == [first, second]


def test_halves_of_a_job_share_its_lane_and_give_back_what_is_left(index: IndexDatabase) -> None:
    register(index, [a_block(number) for number in range(3)], now=NOON)
    waiting = WaitingBlocks(index, RULES, in_index(index))
    waiting.refresh(())
    ((lane, _, blocks),) = offered(waiting, NOON)
    whole, half = HeldJob(lane, 0, blocks), HeldJob(lane, 0, blocks[:1])
    waiting.refresh([whole, half])
    assert waiting.queue.held[lane].blocks == tuple(sorted(waiting.queue.held[lane].blocks))
    assert len(waiting.queue.held[lane].blocks) == 3
    waiting.refresh([half])
    assert [block.id for block in waiting.queue.held[lane].blocks] == list(blocks[:1])


def test_blocks_whose_classes_change_are_read_again(index: IndexDatabase) -> None:
    """`old` has no column `v`: it goes with either, until there are two kinds of those that have it."""
    schemas = {
        "old": pa.schema([("n", pa.int8())]),
        "text": pa.schema([("v", pa.string())]),
        "number": pa.schema([("v", pa.int8())]),
    }
    blocks = [a_block(number, schema_id=name, schema=schema_text(schemas[name])) for number, name in enumerate(schemas)]
    waiting = WaitingBlocks(index, RULES, in_index(index))
    register(index, blocks[:2], now=NOON)
    waiting.refresh(())
    assert offered(waiting, NOON + 40 * SECOND) == [(f"t/0/L0/{block_id(0)}", 0, (block_id(0), block_id(1)))]
    assert waiting.conflicts() == ()
    register(index, blocks[2:], now=NOON + SECOND)
    waiting.refresh(())
    assert offered(waiting, NOON + 40 * SECOND) == [(f"t/0/L0/{block_id(0)}", 0, (block_id(0), block_id(2)))]
    (conflict,) = waiting.conflicts()
    assert str(conflict) == "2 schemas of `t` cannot be merged: column v int8 | string"
    assert (conflict.blocks, conflict.alone) == (3, 0)


def test_a_look_that_fails_takes_in_nothing(index: IndexDatabase) -> None:
    """The objects may be away when a footer has to be read; the next look begins where this one did."""
    away = True

    def look_up(examples: Mapping[str, Sequence[str]]) -> Mapping[str, pa.Schema]:
        if away:
            raise ObjectStoreUnavailableError("objects", "refused")
        return in_index(index)(examples)

    waiting = WaitingBlocks(index, RULES, look_up)
    blocks = [a_block(number, schema_id=name, schema=SCHEMAS[name]) for number, name in enumerate(("ms", "more", "us"))]
    for part in (blocks[:1], blocks[1:]):
        register(index, part, now=NOON)
    with pytest.raises(ObjectStoreUnavailableError):
        waiting.refresh(())
    away = False
    waiting.refresh(())
    assert [blocks for _, _, blocks in offered(waiting, NOON + 40 * SECOND)] == [(block_id(0), block_id(1))]
    assert len(waiting.queue) == 3


def test_blocks_without_rows_are_dropped_wherever_and_of_whatever_schema_they_are(index: IndexDatabase) -> None:
    """Each is of the time at which it was made, and nothing may be known of its schema."""
    day = 86_400 * SECOND
    empties = [
        a_block(n, rows=0, fingerprint=RowFingerprint(), schema_id=f"unknown-{n}", at=NOON + n * day) for n in (1, 2)
    ]
    register(index, [*empties, a_block(3)], now=NOON)
    waiting = reread(index, {})
    assert [blocks for _, _, blocks in offered(waiting, NOON + 60 * SECOND)] == [tuple(empty.id for empty in empties)]
    assert waiting.conflicts() == ()
