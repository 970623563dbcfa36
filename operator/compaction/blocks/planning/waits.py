"""Why one block is not merged now: what `inspect` says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from compaction.blocks.planning.batches import NEVER, BlockBatch
from compaction.blocks.planning.queue import BlockQueue
from compaction.blocks.planning.rules import BlockReason


class BlockWait(StrEnum):
    """Of one block: as `BlockReason`, and what else may be."""

    DUE = "Due"
    WAITING_FOR_MORE = "WaitingForMore"
    NOTHING_TO_MERGE_WITH = "NothingToMergeWith"
    LARGE_ENOUGH = "LargeEnough"
    HIGHEST_LEVEL = "HighestLevel"


@dataclass(frozen=True, slots=True)
class WaitingBlock:
    """A block that no job has. `level`: at which it is merged, None when at none. `others`: how many wait with it in
    its batch, of which `most` make it full; `due`: when it is merged even so, epoch seconds, None when at no time.
    `obsolete`: it has no rows and is dropped then.
    """

    reason: BlockWait
    level: int | None = None
    others: int = 0
    most: int = 0
    due: float | None = None
    obsolete: bool = False


def waiting_of(queue: BlockQueue, block: str, *, now: float) -> WaitingBlock | None:
    """Why a block waits; None for one that is in no queue, or that a job has. `now`: epoch seconds."""
    queue.advance(now)
    place = queue.place_of(block)
    if isinstance(place, BlockReason):
        return WaitingBlock(BlockWait(place.value))
    if not isinstance(place, BlockBatch):
        return None
    if place.ready is not None:
        reason = BlockWait.DUE
    else:
        reason = BlockWait.NOTHING_TO_MERGE_WITH if place.is_alone else BlockWait.WAITING_FOR_MORE
    return WaitingBlock(
        reason,
        level=place.level,
        others=len(place.blocks) - 1,
        most=queue.rules.levels[place.level].max_blocks,
        due=None if place.due == NEVER or place.ready is not None else place.due,
        obsolete=place.group.key[0].is_obsolete,
    )
