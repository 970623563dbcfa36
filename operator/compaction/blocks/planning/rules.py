"""What the queue of blocks works with: a block that waits, when a level is due, and the reasons for leaving a block
alone.

Units: bytes; epoch seconds for `arrived`; microseconds (UTC) for times of data and for `span`; seconds for ages.

Source: docs/design/blocks.md#levels (counts and ages of the levels, one span for all of them). Sizes are ours: the
reference has none, and grows blocks that no worker can hold (§10, 6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

LARGE_ENOUGH_BYTES: Final = 512 << 20
"""A block of this size gains nothing from growing: readers of Parquet work by row group."""
SPAN: Final = 3 * 3600 * 1_000_000
"""Three hours: the age of the highest level, as in the reference."""


class BlockReason(StrEnum):
    """Why a block that waits is in no batch that a job is made of."""

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
    """When a batch of one level is ready: it has `max_blocks` or `max_bytes`, or its first block is `max_age` seconds
    old.

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
