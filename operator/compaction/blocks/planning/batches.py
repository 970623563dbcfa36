"""Batches of blocks: one class (tenant, shard, mergeable schema) and window of time, by the rules of a policy."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, cast

# Data of the queue of blocks: a block that waits, the time when a level is due, and the reasons for leaving a block
# alone.
#
# Units: bytes; epoch seconds for `arrived`; microseconds (UTC) for times of data and for `span`; seconds for ages.
#
# Source: docs/design/blocks.md#levels (counts and ages of the levels, one span for all of them). Sizes are ours: the
# reference has none, and grows blocks that no worker can hold (§10, 6).

LARGE_ENOUGH_BYTES: Final = 512 << 20
"""A block of this size gains nothing from growing: readers of Parquet work by row group."""
SPAN: Final = 3 * 3600 * 1_000_000
"""Three hours: the age of the highest level, as in the reference."""


class BlockReason(StrEnum):
    """The reason for which a block that waits is in no batch that becomes a job."""

    WAITING_FOR_MORE = "WaitingForMore"
    NOTHING_TO_MERGE_WITH = "NothingToMergeWith"
    LARGE_ENOUGH = "LargeEnough"
    HIGHEST_LEVEL = "HighestLevel"


NO_ROWS: Final = "no rows"
"""Stands in `BlockClass.schema` for blocks without rows, whatever their schema; no id of a schema is this."""


class BlockClass(NamedTuple):
    """Blocks of one class may be merged with one another; the blocks of a class share one of these. `schema` stands for
    all schemas that can be unified (blocks/schema/classes.py), as one of their ids.
    """

    tenant: str
    shard: int
    schema: str = ""

    @property
    def is_obsolete(self) -> bool:
        """Its blocks have no rows: nothing is lost with them, so they are dropped, each alone if need be."""
        return self.schema == NO_ROWS


class QueuedBlock(NamedTuple):
    """A block that waits. `arrived` and `number` are when and as which it was registered: together they order blocks,
    and no two have the same number. `level` is the block's own, which may be lower than that at which it is merged.
    """

    id: str
    kin: BlockClass
    level: int
    bytes: int
    min_time: int
    arrived: float
    number: int


@dataclass(frozen=True, slots=True)
class LevelRule:
    """The rule by which a batch of one level is ready: it has `max_blocks` or `max_bytes`, or its first block is
    `max_age` seconds old.

    `max_bytes` 0: no size is enough. A block that alone has `max_bytes` skips the level.
    """

    max_blocks: int
    max_age: float
    max_bytes: int = LARGE_ENOUGH_BYTES

    def __post_init__(self) -> None:
        if self.max_blocks < 2 or not self.max_age > 0 or self.max_bytes < 0:
            raise ValueError(f"{self}: a level needs at least 2 blocks, an age above 0 and no negative size")


DEFAULT_LEVELS: Final = (LevelRule(20, 36.0), LevelRule(10, 720.0), LevelRule(10, 10_800.0))


@dataclass(frozen=True, slots=True)
class BlockRules:
    """The rules of a store. Blocks of level i are merged by `levels[i]` into one of level i + 1; what has come through
    all of them is left alone.

    span: blocks are merged only with those whose data begin in the same window of this width (0: with all). Windows are
        aligned to the epoch, so all levels meet the same borders, and retention and readers can drop whole blocks.
    strict_gain: no job is made of a single block that has rows. One that is still alone when its batch is due is
        treated as a block of the next level from then on, without being rewritten. False: it is rewritten, as in the
        reference.
    max_bytes_per_job: a batch never has more (0: no limit).
    """

    levels: tuple[LevelRule, ...] = DEFAULT_LEVELS
    span: int = SPAN
    strict_gain: bool = True
    max_bytes_per_job: int = 0

    def __post_init__(self) -> None:
        if not self.levels or self.span < 0 or self.max_bytes_per_job < 0:
            raise ValueError(f"{self}: at least one level is needed, and nothing may be negative")

    def level_of(self, level: int, size: int) -> int | BlockReason:
        """The level at which a block of `level` and so many bytes is merged, or why it is at none."""
        levels = self.levels
        if level >= len(levels):
            return BlockReason.HIGHEST_LEVEL
        if not self.max_bytes_per_job or size < self.max_bytes_per_job:
            for at in range(level, len(levels)):
                enough = levels[at].max_bytes
                if not enough or size < enough:
                    return at
        return BlockReason.LARGE_ENOUGH

    def window_of(self, min_time: int) -> int:
        """The number of the window in which a block's data begin."""
        return min_time // self.span if self.span else 0


# Blocks that lie in the same windows of time and are not merged with one another because of their schemas.

MOST_COLUMNS: Final = 3
"""Columns that a message names."""


@dataclass(frozen=True, slots=True)
class SchemaConflict:
    """Of one tenant.

    schemas: how many kinds there are, each of which is merged by itself.
    columns: the columns whose types have no common one, in words; empty when nothing tells what some schemas hold.
    alone: blocks that would be merged, were it not for their schemas.
    """

    tenant: str
    schemas: int
    columns: tuple[str, ...]
    blocks: int
    alone: int = 0

    def __str__(self) -> str:
        named, more = "; ".join(self.columns[:MOST_COLUMNS]), len(self.columns) - MOST_COLUMNS
        why = f"{named}{f'; {more} more' * (more > 0)}" or "footers that say what they hold cannot be read"
        return f"{self.schemas} schemas of `{self.tenant}` cannot be merged: {why}"


# The division of blocks into batches: one class (tenant, shard, mergeable schema) and window of time, all levels.
#
# Blocks are taken in the order of their arrival. At each level one batch is open; a block joins it. A batch is
# *ready* (a job may be made of it) when it is full or when it is due, its first block being `max_age` old; one that
# is due and not full goes on growing until a job is made of it, so a queue that is behind makes full jobs and not
# many small ones.
#
# A block that is alone when its batch is due climbs: it joins the open batch of the next level as if it had arrived
# there at that moment. At the highest level it waits for company. One without rows does neither: its batch is ready,
# and the job drops it.
#
# Invariant (tests/blocks/planning/test_properties.py): the batches are a function of the blocks that wait and
# of the time, not of the time of a scan or of what was here before. So a restart finds the batches that were there.

NEVER: Final = math.inf
_NONE: Final = cast("list[QueuedBlock]", ())
"""The blocks of all batches that have none, in one place: it is immutable."""


class BlockBatch:
    """Blocks of one level in the order in which they came there; no blocks: it is gone.

    `ready`: since when (epoch seconds) and by which block (number); None while it is not. `due` is NEVER once its time
    has come.
    """

    __slots__ = ("blocks", "bytes", "due", "group", "level", "ready")

    def __init__(self, group: Group, level: int, due: float) -> None:
        self.group = group
        self.level = level
        self.due = due
        self.bytes = 0
        self.blocks = _NONE
        self.ready: tuple[float, int] | None = None

    @property
    def is_alone(self) -> bool:
        """Return whether the batch has nothing to be merged with, at any level, and no time at which that changes."""
        return self.ready is None and (self.group.open[self.level] is not self or self.due == NEVER)


class Group:
    """Blocks that may be merged with one another: `key` is a class and the number of a window. `settled`: time and
    number of the last event in the group; a block that comes later, but arrived before, is `late` and needs the group
    to be cut again. `limited`: a batch was closed because the next block would have been too much, so that it depends
    on that block.
    """

    __slots__ = ("batches", "empty", "key", "late", "limited", "next_due", "open", "settled", "settled_number")

    def __init__(self, key: tuple[BlockClass, int], levels: int) -> None:
        self.key = key
        self.late: BlockBatch | None = None
        self.reset(levels)

    def reset(self, levels: int) -> None:
        """Nothing has come yet, except what is late."""
        self.open: list[BlockBatch | None] = [None] * levels
        self.batches: list[BlockBatch] = []
        self.empty = 0
        self.limited = False
        self.next_due = NEVER
        self.settled = -NEVER
        self.settled_number = -1

    def drop(self, batch: BlockBatch) -> None:
        """The batch is gone. It does not change what its neighbours are, except in a group with a limit."""
        batch.blocks, batch.ready = _NONE, None
        if self.open[batch.level] is batch:
            self.open[batch.level] = None
        self.empty += 1
        if self.empty * 2 > len(self.batches):
            self.batches = [batch for batch in self.batches if batch.blocks]
            self.empty = 0

    def __lt__(self, other: Group) -> bool:
        """Return whether this group goes first when both are due at the same moment."""
        return self.key < other.key

    @property
    def is_empty(self) -> bool:
        return self.empty == len(self.batches) and self.late is None


class Cutter:
    """Cuts groups into batches and keeps their timers. `where` records in which batch each block is, `on_ready` is
    called with every batch that becomes ready.
    """

    def __init__(
        self, rules: BlockRules, where: dict[str, BlockBatch], on_ready: Callable[[BlockBatch], object]
    ) -> None:
        self.rules = rules
        self._where = where
        self._on_ready = on_ready
        self._limit = rules.max_bytes_per_job or NEVER
        self._levels = tuple((rule.max_blocks, rule.max_age, rule.max_bytes or NEVER) for rule in rules.levels)
        self._timers: list[tuple[float, Group]] = []

    def append(self, group: Group, level: int, block: QueuedBlock) -> None:
        """Add a block that arrived after everything else that has happened in its group."""
        _, _, _, size, _, at, number = block
        if group.next_due <= at:
            self.run(group, at)
        group.settled, group.settled_number = at, number
        self._place(group, level, block, size, at)

    def run(self, group: Group, now: float) -> None:
        """Everything that is due in the group by `now`, in order."""
        while group.next_due <= now:
            batch = min((item for item in group.open if item is not None), key=_by_due, default=None)
            if batch is None or batch.due > now:
                group.next_due = batch.due if batch is not None else NEVER
                return
            due, batch.due = batch.due, NEVER
            # Blocks of the very same moment come after the timer, so their numbers, from 0 on, are all larger.
            group.settled, group.settled_number = due, -1
            if self._gains(batch):
                self._make_ready(batch, due, batch.blocks[0].number)
            else:
                self._climb(group, batch, due)

    def run_all(self, now: float) -> None:
        """Everything that is due anywhere by `now`."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            self.run(heapq.heappop(timers)[1], now)

    def next_due(self) -> float | None:
        """Return the time at which the next batch is due; None when none waits for its time."""
        timers = self._timers
        while timers and not any(item is not None and item.due == timers[0][0] for item in timers[0][1].open):
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def cut_anew(self, group: Group, blocks: Iterable[QueuedBlock]) -> None:
        """The group as if only `blocks` had ever come."""
        for batch in group.batches:
            batch.blocks, batch.ready = [], None
        group.late = None
        group.reset(len(self._levels))
        for block in sorted(blocks, key=lambda block: (block.arrived, block.number)):
            level = self.rules.level_of(block.level, block.bytes)
            assert not isinstance(level, BlockReason), f"{block.id} was queued, so it has a level"
            self.append(group, level, block)

    def _place(self, group: Group, level: int, block: QueuedBlock, size: int, at: float) -> None:
        batch = group.open[level]
        if batch is not None and batch.bytes + size > self._limit:
            self._close(group, batch, at, block.number)
            batch = None
        most_blocks, max_age, enough = self._levels[level]
        if batch is None:
            group.open[level] = batch = BlockBatch(group, level, at + max_age)
            if group.batches:
                group.batches.append(batch)
            else:
                group.batches = [batch]  # of exactly one: there may be as many groups as blocks
            if batch.due < group.next_due:
                group.next_due = batch.due
            heapq.heappush(self._timers, (batch.due, group))
        blocks = batch.blocks
        if blocks:
            blocks.append(block)
        else:
            blocks = batch.blocks = [block]
        batch.bytes += size
        self._where[block[0]] = batch
        if len(blocks) >= most_blocks or batch.bytes >= enough:
            group.open[level] = None
            if batch.ready is None:
                self._make_ready(batch, at, block.number)
        elif batch.due == NEVER and batch.ready is None:
            self._make_ready(batch, at, block.number)  # it was alone when its time had come

    def _close(self, group: Group, batch: BlockBatch, at: float, number: int) -> None:
        """The next block would be too much for a job."""
        group.open[batch.level] = None
        group.limited = True
        if batch.ready is not None:
            return
        if self._gains(batch):
            self._make_ready(batch, at, number)
        else:
            self._climb(group, batch, at)

    def _gains(self, batch: BlockBatch) -> bool:
        """Return whether a job of the batch leaves fewer blocks than before, or the rules do not ask for that."""
        return len(batch.blocks) > 1 or not self.rules.strict_gain or batch.group.key[0].is_obsolete

    def _climb(self, group: Group, batch: BlockBatch, at: float) -> None:
        (block,) = batch.blocks
        level = self.rules.level_of(batch.level + 1, block.bytes)
        if isinstance(level, BlockReason):
            return  # it stays where it is, and goes on waiting when its batch is still open
        group.drop(batch)
        self._place(group, level, block, block.bytes, at)

    def _make_ready(self, batch: BlockBatch, at: float, number: int) -> None:
        batch.ready = (at, number)
        self._on_ready(batch)


def _by_due(batch: BlockBatch) -> tuple[float, int]:
    return batch.due, batch.level
